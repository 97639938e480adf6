"""Examples of services, run as processes and stopped by signals."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import lcm
import pytest
from controller_helpers import QUICK_AND_LASTING
from lcm.testing import FakeCloud
from pydantic import TypeAdapter
from worker_records import RecordsPort, WorkerRepository

EXAMPLES = Path(__file__).parents[2] / "lcm-py" / "examples"


def eventually(holds: Callable[[], bool], limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.05)


@contextmanager
def running(cloud: FakeCloud, *command: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process with the environment of the cloud."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", *command],
        env={**os.environ, **cloud.env, **QUICK_AND_LASTING, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str], by: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
    """Stop a process and return its exit code, output and errors."""
    process.send_signal(by)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def take_over(cloud: FakeCloud) -> None:
    """Lead at once, which takes ten minutes unless the previous leader released its lease."""

    async def story() -> None:
        async with lcm.Controller(cloud.clients(QUICK_AND_LASTING)) as successor:
            await asyncio.wait_for(successor.ready(), 60)

    asyncio.run(story())


def test_asyncio_example_runs_a_fleet(live_cloud: FakeCloud) -> None:
    service = EXAMPLES / "asyncio_service.py"
    assert len(service.read_text().splitlines()) <= 40
    names = [f"w-{n}" for n in range(5)]
    output: list[str] = []
    with running(live_cloud, str(service), *names) as process:
        assert process.stdout is not None
        while sum(" running " in line for line in output) < len(names):
            line = process.stdout.readline()
            assert line, f"the process ended: {output}"
            output.append(line)
        code, _, errors = end(process)
    assert (code, errors) == (0, "")
    instances = {instance.tags["lcm:worker_id"]: instance for instance in live_cloud.instances()}
    assert sorted(instances) == names
    assert {str(instance.state) for instance in instances.values()} == {"running"}
    reported = {match[1]: match[2] for match in (re.match(r"(\S+) running (\S+)", line) for line in output) if match}
    assert reported == {name: instance.id for name, instance in instances.items()}
    assert live_cloud.count("RunInstances") == 5 and live_cloud.count(service="control-plane") == 0
    take_over(live_cloud)


@contextmanager
def serving(cloud: FakeCloud, example: str, database: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run an example with uvicorn, and yield the process with a client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port), f"{example}:app")
    settings = {"FLEET_DATABASE": str(database), "EXTERNAL_STOP_POLICY": "respect"}
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    with running(cloud, *command, env=settings) as process, client:

        def responds() -> bool:
            assert process.poll() is None, process.communicate()
            try:
                return bool(client.get("/openapi.json").status_code == 200)
            except httpx.ConnectError:
                return False

        eventually(responds)
        yield process, client


def end_service(process: subprocess.Popen[str]) -> None:
    """Stop a service gracefully. After its shutdown, uvicorn ends with the signal it received."""
    code, _, errors = end(process)
    assert code == -signal.SIGTERM and "Application shutdown complete" in errors, errors


def test_port_of_the_service_is_short() -> None:
    lines = inspect.getsource(RecordsPort).splitlines()
    assert len(lines) <= 60


def test_fastapi_service_keeps_its_own_records(live_cloud: FakeCloud, tmp_path: Path) -> None:
    database = tmp_path / "fleet.db"
    with serving(live_cloud, "fastapi_service", database) as (process, client):
        worker = {"id": "w-0", "template_name": "tiny", "aws_region": "us-east-1"}

        def record() -> dict[str, Any]:
            shown: dict[str, Any] = client.get("/workers/w-0").json()
            return shown

        eventually(lambda: client.get("/readyz").status_code == 200)
        assert client.put("/templates/tiny", json={"instance_type": "m5.large"}).status_code == 204
        assert client.post("/workers", json=worker).json()["status"] == "pending"
        assert client.post("/workers", json=worker).status_code == 409
        eventually(lambda: record()["status"] == "running")
        (instance,) = live_cloud.instances()
        assert record()["ec2_instance_id"] == instance.id

        # The record follows a stop from outside.
        live_cloud.stop_instance(instance)
        eventually(lambda: record()["status"] == "stopped")
        eventually(lambda: record()["desired_status"] == "stopped")

        # A decision is a question: nothing is called or written.
        decision = client.get("/workers/w-0/decision", params={"ec2": "running"}).json()
        assert (decision["from_status"], decision["to_status"]) == ("stopped", "running")
        assert TypeAdapter(lcm.Decision).validate_python(decision).to_status is lcm.WorkerStatus.RUNNING
        assert record()["status"] == "stopped"

        # A command reconciles: a dry run plans the start, and the next one carries it out unless the controller did.
        assert client.put("/workers/w-0/desired-status", params={"desired_status": "running"}).status_code == 200
        result = client.post("/workers/w-0/reconcile").json()
        assert TypeAdapter(lcm.ReconcileResult).validate_python(result).worker_id == "w-0"
        eventually(lambda: record()["status"] == "running")
        planned = client.post("/workers/w-0/reconcile", params={"dry_run": True}).json()
        assert planned["dry_run"] and planned["reason"]["code"] == "in_service", planned
        assert client.post("/workers/w-9/reconcile").status_code == 404

        drain = {"reason": "new image", "requested_by": "alice"}
        assert client.post("/workers/w-0/drain", params=drain).json()["to_status"] == "draining"
        assert client.post("/workers/w-0/drain", params=drain).status_code == 409

        metrics = client.get("/metrics")
        assert metrics.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert 'reconciliation_reconcile_total{result="success"}' in metrics.text and metrics.text.endswith("# EOF\n")
        assert client.get("/healthz").json() == {"running": True, "role": "leader"}
        assert client.get("/stats").json()["counters"]["provisioned_count"] == 1
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
        assert {"Decision", "ReconcileResult", "Worker"} <= schemas.keys()
        end_service(process)
    # The records outlast the service, and none is in the fake cloud's own control plane.
    assert WorkerRepository(str(database)).worker("w-0") is not None and not live_cloud.workers()
    assert live_cloud.count("RunInstances") == 1
    take_over(live_cloud)


def test_standby_is_ready_and_takes_over(live_cloud: FakeCloud, tmp_path: Path) -> None:
    database = tmp_path / "fleet.db"
    with (
        serving(live_cloud, "fastapi_service", database) as (first, leader),
        serving(live_cloud, "fastapi_service", database) as (second, standby),
    ):
        eventually(lambda: leader.get("/healthz").json()["role"] == "leader")
        eventually(lambda: standby.get("/readyz").status_code == 200)
        assert standby.get("/healthz").json() == {"running": True, "role": "standby"}
        end_service(first)
        eventually(lambda: standby.get("/healthz").json()["role"] == "leader")
        eventually(lambda: standby.get("/readyz").json() == {"ready": True, "reason": None})
        end_service(second)


def test_neuroglia_service_reconciles_from_a_command_handler(live_cloud: FakeCloud, tmp_path: Path) -> None:
    records = WorkerRepository(str(tmp_path / "fleet.db"))
    records.put_template({"name": "tiny", "instance_type": "m5.large"})
    records.add({"id": "w-0", "status": "pending", "template_name": "tiny", "aws_region": "us-east-1"})
    with serving(live_cloud, "neuroglia_service", tmp_path / "fleet.db") as (process, client):
        eventually(lambda: (records.worker("w-0") or {})["status"] == "running")
        result = TypeAdapter(lcm.ReconcileResult).validate_python(client.post("/workers/w-0/reconcile").json())
        assert result.from_status is lcm.WorkerStatus.RUNNING and result.error is None
        assert client.post("/workers/w-9/reconcile").status_code == 404
        end_service(process)
    assert live_cloud.count("RunInstances") == 1
    take_over(live_cloud)


def test_ctrl_c_stops_a_controller_gracefully(live_cloud: FakeCloud) -> None:
    script = """
import asyncio, lcm

async def main():
    async with lcm.Controller() as controller:
        print(await controller.ready(), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
    with running(live_cloud, "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("0 of 0 reconciled")
        code, _, errors = end(process, signal.SIGINT)
    assert code != 0 and errors.rstrip().endswith("KeyboardInterrupt")
    take_over(live_cloud)


def test_ctrl_c_interrupts_a_call_to_a_python_port(live_cloud: FakeCloud) -> None:
    script = f"""
import asyncio, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
import lcm
from test_lcm_orphans import Records

class Slow(Records):
    async def workers(self, region, with_terminated, /):
        print("called", flush=True)
        await asyncio.sleep(600)

lcm.collect_orphans(clients=lcm.Clients(control_plane=Slow()), regions=["us-east-1"])
"""
    patience = {"WORKER_DISCOVERY_AMI_FILTER": "cisco-*"}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in patience.items():
            environment.setenv(name, value)
        with running(live_cloud, "-c", script) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "called\n"
            code, _, errors = end(process, signal.SIGINT)
    assert code != 0 and "KeyboardInterrupt" in errors


def test_forked_process_gets_fork_errors(live_cloud: FakeCloud) -> None:
    script = """
import asyncio, os, lcm
from lcm.testing import FakeCloud

clients = lcm.Clients()
assert lcm.collect_orphans(clients=clients, dry_run=True).error is None
controller = lcm.Controller(clients)
child = os.fork()
if child == 0:
    worker = lcm.Worker("w-1", "running", desired_status="running", ec2_instance_id="i-1")
    assert lcm.decide(worker, lcm.Observation(ec2="stopped")).to_status == "stopped"
    for use in (
        lambda: lcm.collect_orphans(clients=clients),
        lambda: asyncio.run(lcm.collect_orphans_async(clients=clients)),
        lambda: asyncio.run(lcm.reconcile_async(worker, clients=clients)),
        lambda: asyncio.run(controller.run()),
        lambda: lcm.Controller(clients),
        lcm.Clients,
    ):
        try:
            use()
        except lcm.ForkError as error:
            print(str(error)[:26], flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    with running(live_cloud, "-c", script) as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.splitlines() == ["this process was forked af"] * 6
