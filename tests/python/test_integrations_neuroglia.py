"""Controllers as hosted services of the real neuroglia."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import lcm
import pytest
import uvicorn
from controller_helpers import QUICK_AND_LASTING, eventually
from fastapi import FastAPI
from lcm.integrations.neuroglia import ControllerService
from lcm.testing import FakeCloud
from neuroglia.dependency_injection import ServiceCollection
from neuroglia.hosting import WebApplicationBuilder
from neuroglia.hosting.abstractions import ApplicationBuilder, HostedService


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """A fake cloud with the real clock, without delays, and with two workers to launch."""
    with FakeCloud(clock="real", delays="none") as cloud:
        cloud.add_template(name="tiny", instance_type="m5.large")
        for n in range(2):
            cloud.add_worker(id=f"w-{n}", status="pending", template_name="tiny", aws_region="us-east-1")
        yield cloud


@pytest.fixture(autouse=True)
def services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the services, which all builders of a process share."""
    for builder in (WebApplicationBuilder, ApplicationBuilder):
        monkeypatch.setattr(builder, "services", ServiceCollection())


def all_run(cloud: FakeCloud) -> bool:
    return all(worker.status is lcm.WorkerStatus.RUNNING for worker in cloud.workers())


class Jobs:
    """Resources of a custom controller."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def key(self, job: str, /) -> str:
        return job

    def list(self, everything: bool, /) -> list[str]:
        return ["backup"]

    def fetch(self, key: str, /) -> str | None:
        return key

    def reconcile(self, job: str, /) -> None:
        self.done.append(job)


def test_web_application_runs_both_kinds_of_controllers(fake_cloud: FakeCloud) -> None:
    jobs = Jobs()
    builder = WebApplicationBuilder()
    workers = ControllerService.configure(builder, lcm.Controller(fake_cloud.clients(QUICK_AND_LASTING)))
    others = lcm.ResourceController(jobs, name="jobs", settings={**fake_cloud.env, **QUICK_AND_LASTING})
    ControllerService.configure(builder, others)
    app: FastAPI = builder.build_app_with_lifespan(title="control plane")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))

    async def story() -> None:
        serving = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        await eventually(lambda: all_run(fake_cloud) and bool(jobs.done))
        assert workers.controller.is_running and others.is_running
        server.should_exit = True
        await serving
        assert not workers.controller.is_running and not others.is_running
        # The lease would have lasted ten minutes, so it was released.
        async with lcm.Controller(fake_cloud.clients(QUICK_AND_LASTING)) as successor:
            await asyncio.wait_for(successor.ready(), 60)

    asyncio.run(story())
    assert fake_cloud.count("RunInstances") == 2


def test_host_starts_and_stops_a_controller(fake_cloud: FakeCloud) -> None:
    async def story() -> None:
        builder = WebApplicationBuilder()
        service = ControllerService.configure(builder, lcm.Controller(fake_cloud.clients(QUICK_AND_LASTING)))
        host: Any = builder.build()
        assert host.services.get_services(HostedService) == [service]
        await host.stop_async()
        await host.start_async()
        await host.start_async()
        await eventually(lambda: all_run(fake_cloud))
        await host.stop_async()
        await host.stop_async()
        assert not service.controller.is_running

    asyncio.run(story())


def test_canceled_host_releases_the_lease(fake_cloud: FakeCloud) -> None:
    """``run`` of a host returns after the start and stops its services."""

    def run() -> lcm.Controller:
        controller = lcm.Controller(fake_cloud.clients(QUICK_AND_LASTING))
        builder: Any = ApplicationBuilder()  # type: ignore[no-untyped-call]
        builder.services.clear()
        ControllerService.configure(builder, controller)
        with builder.build() as host:
            host.run()
        return controller

    assert not run().is_running and not run().is_running


def test_other_objects_are_refused_as_controllers(fake_cloud: FakeCloud) -> None:
    with pytest.raises(TypeError, match=r"controller is a str; accepted: lcm.Controller or lcm.ResourceController"):
        ControllerService("mine")  # type: ignore[arg-type]


def test_missing_neuroglia_is_explained() -> None:
    script = """
import sys
sys.modules["neuroglia"] = None
import lcm
try:
    import lcm.integrations.neuroglia
except ModuleNotFoundError as error:
    print(error.name, "|", error)
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("neuroglia")
    assert "lcm.integrations.neuroglia needs neuroglia-python 0.9: pip install 'lcm-sdk[neuroglia]'" in run.stdout
