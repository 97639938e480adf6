"""Python ports in services with threads and event loops, and their errors."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import lcm
import pytest
from controller_helpers import QUICK
from lcm.ports import ControlPlane, Patch
from lcm.testing import FakeCloud


class DictControlPlane(ControlPlane):
    """A control plane that stores records as dicts without validation."""

    def __init__(self, *records: dict[str, Any]) -> None:
        self.records = {record["id"]: {**record, "version": 1} for record in records}
        self.lock = threading.Lock()

    async def workers(self, region: str | None, with_terminated: bool, /) -> list[dict[str, Any]]:
        return list(self.records.values())

    async def worker(self, id: str, /) -> dict[str, Any] | None:
        await asyncio.sleep(0.001)
        return self.records.get(id)

    async def write(self, patch: Patch, /) -> int:
        await asyncio.sleep(0.001)
        with self.lock:
            record = self.records[patch.worker_id]
            version: int = record["version"]
            if patch.expected_version != version:
                raise lcm.PortError("the record changed in between", "conflict")
            self.records[patch.worker_id] = {**patch.apply_to(record).to_dict(), "version": version + 1}
            return version + 1

    async def template(self, name: str, /) -> lcm.Template | None:
        await asyncio.sleep(0.001)
        return lcm.Template(name, "m5.large")

    def sessions(self, worker_id: str, /) -> Any:
        return []

    def hand_back_session(self, session_id: str, /) -> None: ...

    def retry_session(self, session_id: str, attempt: int, /) -> None: ...

    def terminate_session(self, session_id: str, reason: str, /) -> None: ...


def pending(n: int) -> dict[str, Any]:
    return {"id": f"w-{n}", "status": "pending", "template_name": "tiny", "aws_region": "us-east-1"}


def test_threads_with_separate_loops_share_clients(live_cloud: FakeCloud) -> None:
    """Each thread's loop ends with its reconcile, while the others still need a loop."""
    shelf = DictControlPlane(*map(pending, range(24)))
    clients = live_cloud.clients(control_plane=shelf)

    def launch(id: str) -> lcm.ReconcileResult:
        return asyncio.run(lcm.reconcile_async(shelf.records[id], clients=clients, timeout=60))

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(launch, list(shelf.records)))
    assert {str(result.to_status) for result in outcomes} == {"provisioning"}, [str(result) for result in outcomes]
    assert live_cloud.count("RunInstances") == 24


def test_blocking_and_async_reconciles_share_clients(live_cloud: FakeCloud) -> None:
    shelf = DictControlPlane(*map(pending, range(8)))
    clients = live_cloud.clients(control_plane=shelf)

    async def story() -> list[lcm.ReconcileResult]:
        passes: list[Awaitable[lcm.ReconcileResult]] = []
        for n, record in enumerate(list(shelf.records.values())):
            if n % 2:
                passes.append(asyncio.to_thread(lcm.reconcile, record, clients=clients))
            else:
                passes.append(lcm.reconcile_async(record, clients=clients))
        return await asyncio.gather(*passes)

    assert {str(result.to_status) for result in asyncio.run(story())} == {"provisioning"}


def test_reconcile_releases_the_interpreter(live_cloud: FakeCloud) -> None:
    """The interpreter is released: another thread is about as fast as without the reconcile."""
    live_cloud.inject({"kind": "latency", "seconds": 2, "on": "real"}, service="ec2", times=1)
    worker = {"id": "w-1", "status": "running", "ec2_instance_id": "i-0dead000000000001", "aws_region": "us-east-1"}
    shelf = DictControlPlane(worker)
    waiting = threading.Thread(
        target=lambda: lcm.reconcile(shelf.records["w-1"], clients=live_cloud.clients(control_plane=shelf))
    )

    def rate(limit: float) -> float:
        counted, began = 0, time.thread_time()
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            counted += 1
        return counted / (time.thread_time() - began)

    alone = rate(0.5)
    waiting.start()
    time.sleep(0.5)
    beside = rate(0.5)
    assert waiting.is_alive(), "the reconcile still waits"
    waiting.join()
    assert beside > alone / 4


def test_record_with_an_unknown_status_is_skipped(live_cloud: FakeCloud) -> None:
    strange = {"id": "w-odd", "status": "hibernating", "aws_region": "us-east-1"}
    inexpressible = {"id": "w-nan", "status": "running", "aws_region": "us-east-1", "load": math.nan}
    shelf = DictControlPlane(strange, inexpressible, *map(pending, range(2)))

    async def story() -> str:
        async with lcm.Controller(live_cloud.clients(QUICK, control_plane=shelf)) as controller:
            async with asyncio.timeout(60):
                while not all(shelf.records[id]["status"] == "running" for id in ("w-0", "w-1")):
                    await asyncio.sleep(0.05)
            return controller.metrics()

    metrics = asyncio.run(story())
    assert shelf.records["w-odd"] == {**strange, "version": 1}
    lines = [line for line in metrics.splitlines() if "unreadable" in line and not line.startswith("#")]
    assert lines and lines[0].endswith(" 2"), metrics


DRAINING = {"id": "w-1", "status": "draining", "desired_status": "stopped", "aws_region": "us-east-1"}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([{"id": "s-1", "status": "scheduled", "timeslot_start": datetime(2026, 2, 6)}], "has no time zone"),
        ([{"id": "s-1", "status": 7}], "field `status` is 7"),
        (None, "sessions is a NoneType; accepted: a list"),
        (42, "sessions is a int; accepted: a list"),
    ],
)
def test_unreadable_sessions_stop_no_worker(live_cloud: FakeCloud, response: Any, message: str) -> None:
    class Odd(DictControlPlane):
        def sessions(self, worker_id: str, /) -> Any:
            return response

    instance = live_cloud.run()
    shelf = Odd({**DRAINING, "ec2_instance_id": instance.id})
    result = lcm.reconcile(shelf.records["w-1"], clients=live_cloud.clients(control_plane=shelf))
    assert (result.outcome, result.to_status) == ("retry", "draining"), str(result)
    assert result.error is not None and message in result.error.message
    assert live_cloud.count("StopInstances") == 0


LCM: Any = lcm
"""``lcm`` without types, for invalid arguments."""


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda c: LCM.reconcile({**DRAINING, "created_at": datetime(2026, 2, 6)}, clients=c), ValueError, "time zone"),
        (lambda c: LCM.reconcile({**DRAINING, "status": "asleep"}, clients=c), lcm.InvalidRecord, "accepted: pending"),
        (lambda c: lcm.Session("s-1", "scheduled", timeslot_start=datetime(2026, 2, 6)), ValueError, "time zone"),
        (lambda c: lcm.Instance("running", launched_at=datetime(2026, 2, 6)), ValueError, "launched_at is 2026-02-06"),
        (lambda c: lcm.FleetView(3, datetime(2026, 2, 6)), ValueError, "last_scale_down_at is 2026-02-06"),
        (lambda c: LCM.reconcile([], clients=c), TypeError, "worker is a list; accepted: an lcm.Worker"),
        (lambda c: LCM.reconcile(DRAINING, clients=c, timeout="soon"), TypeError, "soon|str"),
        (lambda c: LCM.reconcile(DRAINING, clients=c, timeout=float("nan")), ValueError, "accepted: seconds from 0 up"),
        (lambda c: LCM.Controller("mine"), TypeError, r"clients is a str; accepted: lcm.Clients or None"),
        (lambda c: LCM.Controller(c, policy=7), TypeError, r"policy is a int; accepted: lcm.Policy or None"),
        (lambda c: LCM.Controller(c).trigger(7), TypeError, "str"),
    ],
)
def test_invalid_arguments_are_refused(
    live_cloud: FakeCloud, use: Callable[[lcm.Clients], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        use(live_cloud.clients())
