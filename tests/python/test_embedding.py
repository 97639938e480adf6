"""Examples of services, run as processes and stopped by signals."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import lcm
import pytest
from controller_helpers import QUICK_AND_LASTING
from lcm.testing import FakeCloud

EXAMPLES = Path(__file__).parents[2] / "lcm-py" / "examples"


def eventually(holds: Callable[[], bool], limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.05)


@contextmanager
def running(cloud: FakeCloud, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process with the environment of the cloud."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", *command],
        env={**os.environ, **cloud.env, **QUICK_AND_LASTING},
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


def test_fastapi_example_runs_a_controller(live_cloud: FakeCloud) -> None:
    live_cloud.add_template(name="tiny", instance_type="m5.large")
    for n in range(2):
        live_cloud.add_worker(id=f"w-{n}", status="pending", template_name="tiny", aws_region="us-east-1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port), "fastapi_service:app")
    with running(live_cloud, *command) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def responds(path: str) -> bool:
            assert process.poll() is None, process.communicate()
            try:
                return client.get(path).status_code == 200
            except httpx.ConnectError:
                return False

        eventually(lambda: responds("/readyz"))
        eventually(lambda: all(worker.status == "running" for worker in live_cloud.workers()))
        assert client.get("/healthz").json() == {"running": True, "role": "leader"}
        assert 'reconciliation_reconcile_total{result="success"}' in client.get("/metrics").text
        assert client.get("/stats").json()["counters"]["provisioned_count"] == 2
        live_cloud.update_worker("w-0", desired_status="stopped")
        assert client.post("/workers/w-0/look").status_code == 202
        eventually(lambda: live_cloud.worker("w-0").status == "stopped")
        code, _, errors = end(process)
    # After its shutdown, uvicorn ends with the signal it received.
    assert code == -signal.SIGTERM and "Application shutdown complete" in errors, errors
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


GUIDE = Path(__file__).parents[2] / "docs" / "embedding.md"


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
def test_guide_example_runs(example: str) -> None:
    run = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
