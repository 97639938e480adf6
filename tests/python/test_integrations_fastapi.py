"""Routes of FastAPI over a running controller, requested through the application."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import lcm
import pytest
from controller_helpers import QUICK, eventually
from fastapi import Depends, FastAPI, HTTPException
from lcm._vocabulary import AnyFailureKind
from lcm.integrations.fastapi import lifespan, probe_router, worker_router
from lcm.testing import FakeCloud
from python_control_plane import PythonControlPlane

Story = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud(clock="real", delays="none", control_plane="extended") as cloud:
        yield cloud


@asynccontextmanager
async def requests_to(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as client:
        yield client


def play(app: FastAPI, story: Story) -> None:
    """Run a story while the application runs."""

    async def run() -> None:
        async with app.router.lifespan_context(app), requests_to(app) as client:
            await story(client)

    asyncio.run(run())


def service(cloud: FakeCloud) -> tuple[FastAPI, lcm.Controller]:
    clients = cloud.clients(QUICK)
    controller = lcm.Controller(clients)
    app = FastAPI(lifespan=lifespan(controller))
    app.include_router(probe_router(controller))
    app.include_router(worker_router(clients))
    return app, controller


def add_running(cloud: FakeCloud, id: str = "w-1") -> lcm.Worker:
    instance = cloud.run(tags={"lcm:worker_id": id})
    fields = {"ec2_instance_id": instance.id, "aws_region": "us-east-1", "desired_status": "running"}
    return cloud.add_worker(id=id, status="running", is_idle_detection_enabled=False, **fields)


def test_lifespan_runs_the_controller(cloud: FakeCloud) -> None:
    app, controller = service(cloud)

    async def story(client: httpx.AsyncClient) -> None:
        assert controller.is_running
        await asyncio.wait_for(controller.ready(), 60)

    play(app, story)
    assert not controller.is_running


def test_probes_follow_the_controller(cloud: FakeCloud) -> None:
    app, controller = service(cloud)

    async def story(client: httpx.AsyncClient) -> None:
        await asyncio.wait_for(controller.ready(), 60)
        await eventually(lambda: controller.readiness_problem is None)
        assert (await client.get("/healthz")).json() == {"running": True, "role": "leader"}
        assert (await client.get("/readyz")).json() == {"ready": True, "reason": None}
        assert (await client.get("/stats")).json()["readiness"] == "ready"
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"] == controller.METRICS_CONTENT_TYPE
        assert "lcm_ready 1" in metrics.text

    play(app, story)


def test_probes_fail_before_the_start(cloud: FakeCloud) -> None:
    app, _ = service(cloud)

    async def story() -> None:
        async with requests_to(app) as client:
            assert (await client.get("/healthz")).status_code == 503
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["reason"]) == (503, "the controller does not run")

    asyncio.run(story())


def test_workers_are_explained_reconciled_and_drained(cloud: FakeCloud) -> None:
    app, _ = service(cloud)
    add_running(cloud)

    async def story() -> None:
        async with requests_to(app) as client:
            explanation = (await client.get("/workers/w-1/explanation")).json()
            assert explanation["plan"]["worker_id"] == "w-1"
            result = (await client.post("/workers/w-1/reconcile", params={"dry_run": True})).json()
            assert (result["worker_id"], result["dry_run"]) == ("w-1", True)
            drained = await client.post("/workers/w-1/drain", json={"reason": "image", "requested_by": "alice"})
            assert drained.json()["to_status"] == "draining"
            canceled = await client.post("/workers/w-1/cancel-drain", json={"reason": "class", "cancelled_by": "bob"})
            assert canceled.json()["to_status"] == "running"

    asyncio.run(story())
    assert cloud.worker("w-1").status == "running"


def test_refused_operation_is_409(cloud: FakeCloud) -> None:
    app, _ = service(cloud)
    add_running(cloud)

    async def story() -> None:
        async with requests_to(app) as client:
            canceled = await client.post("/workers/w-1/cancel-drain", json={"reason": "class", "cancelled_by": "bob"})
            assert canceled.status_code == 409 and "draining" in canceled.json()["detail"]
            assert (await client.get("/workers/w-none/explanation")).status_code == 409
            assert (await client.post("/workers/w-1/drain", json={"reason": "image"})).status_code == 422

    asyncio.run(story())


@pytest.mark.parametrize(
    ("kind", "status"),
    [("not_supported", 501), ("throttled", 429), ("unreachable", 503), ("unparsable", 502), ("conflict", 409)],
)
def test_failure_has_the_status_of_its_kind(cloud: FakeCloud, kind: AnyFailureKind, status: int) -> None:
    class Failing(PythonControlPlane):
        async def worker(self, id: str, /) -> Any:
            raise lcm.PortError("no", kind)

    app = FastAPI()
    app.include_router(worker_router(cloud.clients(control_plane=Failing())))

    async def story() -> None:
        async with requests_to(app) as client:
            failed = await client.get("/workers/w-1/explanation")
            assert (failed.status_code, failed.json()["detail"]) == (status, "no")

    asyncio.run(story())


def test_worker_routes_take_the_authentication_of_the_service(cloud: FakeCloud) -> None:
    def refuse() -> None:
        raise HTTPException(401, "no token")

    app = FastAPI()
    app.include_router(worker_router(cloud.clients()), dependencies=[Depends(refuse)])

    async def story() -> None:
        async with requests_to(app) as client:
            assert (await client.get("/workers/w-1/explanation")).status_code == 401

    asyncio.run(story())


def test_routes_are_described(cloud: FakeCloud) -> None:
    app, _ = service(cloud)
    described = app.openapi()
    assert "/workers/{id}/explanation" in described["paths"]
    assert {"Explanation", "ReconcileResult"} <= described["components"]["schemas"].keys()
    assert all(route["summary"] for path in described["paths"].values() for route in path.values())


def test_missing_fastapi_is_explained() -> None:
    script = "import sys; sys.modules['fastapi'] = None; import lcm.integrations.fastapi"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert "lcm.integrations.fastapi needs FastAPI: pip install 'lcm-sdk[fastapi]'" in run.stderr
