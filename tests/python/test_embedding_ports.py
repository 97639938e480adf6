"""Ports written in Python, as a service with threads and loops of its own would use them, and what they get wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import lcm
import pytest
from lcm.ports import ControlPlane, Patch
from lcm.testing import FakeCloud
from live import QUICK


class Shelf(ControlPlane):
    """Records as dicts, whatever is in them."""

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


def test_threads_with_loops_of_their_own_share_clients(live_cloud: FakeCloud) -> None:
    """Each thread's loop ends when its pass does, while the others still need answers."""
    shelf = Shelf(*map(pending, range(24)))
    clients = live_cloud.clients(control_plane=shelf)

    def launch(id: str) -> lcm.ReconcileResult:
        return asyncio.run(lcm.reconcile_async(shelf.records[id], clients=clients, timeout=60))

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(launch, list(shelf.records)))
    assert {str(result.to_status) for result in outcomes} == {"provisioning"}, [str(result) for result in outcomes]
    assert live_cloud.count("RunInstances") == 24


def test_blocking_passes_and_asyncio_share_clients(live_cloud: FakeCloud) -> None:
    shelf = Shelf(*map(pending, range(8)))
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


def test_python_counts_on_while_a_pass_waits(live_cloud: FakeCloud) -> None:
    """The interpreter is let go of: another thread gets about as far as it would alone."""
    live_cloud.inject({"kind": "latency", "seconds": 2, "on": "real"}, service="ec2", times=1)
    worker = {"id": "w-1", "status": "running", "ec2_instance_id": "i-0dead000000000001", "aws_region": "us-east-1"}
    shelf = Shelf(worker)
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
    assert waiting.is_alive(), "it still waits"
    waiting.join()
    assert beside > alone / 4


def test_a_record_with_a_status_that_nobody_knows_is_left_alone(live_cloud: FakeCloud) -> None:
    strange = {"id": "w-odd", "status": "hibernating", "aws_region": "us-east-1"}
    shelf = Shelf(strange, *map(pending, range(2)))

    async def story() -> str:
        async with lcm.Controller(live_cloud.clients(QUICK, control_plane=shelf)) as controller:
            async with asyncio.timeout(60):
                while not all(shelf.records[id]["status"] == "running" for id in ("w-0", "w-1")):
                    await asyncio.sleep(0.05)
            return controller.metrics()

    metrics = asyncio.run(story())
    assert shelf.records["w-odd"] == {**strange, "version": 1}
    told = [line for line in metrics.splitlines() if "unreadable" in line and not line.startswith("#")]
    assert told and not told[0].endswith(" 0"), metrics


DRAINING = {"id": "w-1", "status": "draining", "desired_status": "stopped", "aws_region": "us-east-1"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([{"id": "s-1", "status": "scheduled", "timeslot_start": datetime(2026, 2, 6)}], "has no time zone"),
        ([{"id": "s-1", "status": 7}], "field `status` is 7"),
        (None, "sessions is a NoneType; accepted: a list"),
        (42, "sessions is a int; accepted: a list"),
    ],
)
def test_sessions_that_cannot_be_read_stop_nobody(live_cloud: FakeCloud, answer: Any, said: str) -> None:
    class Odd(Shelf):
        def sessions(self, worker_id: str, /) -> Any:
            return answer

    instance = live_cloud.run()
    shelf = Odd({**DRAINING, "ec2_instance_id": instance.id})
    result = lcm.reconcile(shelf.records["w-1"], clients=live_cloud.clients(control_plane=shelf))
    assert (result.outcome, result.to_status) == ("retry", "draining"), str(result)
    assert result.error is not None and said in result.error.message
    assert live_cloud.count("StopInstances") == 0


LCM: Any = lcm
"""The same, for what no type checker would let pass."""


@pytest.mark.parametrize(
    ("use", "error", "said"),
    [
        (lambda c: LCM.reconcile({**DRAINING, "created_at": datetime(2026, 2, 6)}, clients=c), ValueError, "time zone"),
        (lambda c: LCM.reconcile({**DRAINING, "status": "asleep"}, clients=c), lcm.InvalidRecord, "accepted: pending"),
        (lambda c: lcm.Session("s-1", "scheduled", timeslot_start=datetime(2026, 2, 6)), ValueError, "time zone"),
        (lambda c: lcm.Instance("running", launched_at=datetime(2026, 2, 6)), ValueError, "launched_at is 2026-02-06"),
        (lambda c: lcm.FleetView(3, datetime(2026, 2, 6)), ValueError, "last_scale_down_at is 2026-02-06"),
        (lambda c: LCM.reconcile([], clients=c), lcm.InvalidRecord, "a JSON object"),
        (lambda c: LCM.reconcile(DRAINING, clients=c, timeout="soon"), TypeError, "soon|str"),
        (lambda c: LCM.reconcile(DRAINING, clients=c, timeout=float("nan")), ValueError, "accepted: seconds from 0 up"),
        (lambda c: LCM.Controller("mine"), TypeError, r"clients is a str; accepted: lcm.Clients or None"),
        (lambda c: LCM.Controller(c, policy=7), TypeError, r"policy is a int; accepted: lcm.Policy or None"),
        (lambda c: LCM.Controller(c).trigger(7), TypeError, "str"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    live_cloud: FakeCloud, use: Callable[[lcm.Clients], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        use(live_cloud.clients())
