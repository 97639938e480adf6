"""The controller in a Python process, with Rust ports and Python ports."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Awaitable
from typing import Any

import lcm
import pytest
from controller_helpers import QUICK, QUICK_AND_LASTING, eventually
from lcm.ports import ControlPlane, Patch
from lcm.testing import FakeCloud, crash


class Records(ControlPlane):
    """A control plane that stores records in a dict. Writes need the latest version."""

    def __init__(self, *records: dict[str, Any]) -> None:
        self.records = {record["id"]: {**record, "version": 1} for record in records}
        self.handed_back: list[str] = []

    async def workers(self, region: str | None, with_terminated: bool, /) -> list[dict[str, Any]]:
        return list(self.records.values())

    async def worker(self, id: str, /) -> dict[str, Any] | None:
        return self.records.get(id)

    async def write(self, patch: Patch, /) -> int:
        record = self.records[patch.worker_id]
        version: int = record["version"]
        if patch.expected_version != version:
            raise lcm.PortError("the record changed in between", "conflict")
        self.records[patch.worker_id] = {**patch.apply_to(record).to_dict(), "version": version + 1}
        return version + 1

    def template(self, name: str, /) -> lcm.Template | None:
        return lcm.Template(name, "m5.large") if name == "tiny" else None

    def sessions(self, worker_id: str, /) -> list[lcm.Session]:
        return []

    def hand_back_session(self, session_id: str, /) -> None:
        self.handed_back.append(session_id)

    def retry_session(self, session_id: str, attempt: int, /) -> None: ...

    def terminate_session(self, session_id: str, reason: str, /) -> None: ...


PENDING = {"id": "w-1", "status": "pending", "template_name": "tiny", "aws_region": "us-east-1"}


def test_fleet_is_launched_and_stopped(live_cloud: FakeCloud) -> None:
    live_cloud.add_template(name="tiny", instance_type="m5.large")
    for n in range(3):
        live_cloud.add_worker(**{**PENDING, "id": f"w-{n}"})

    async def story() -> None:
        async with lcm.Controller(live_cloud.clients(QUICK)) as controller:
            report = await asyncio.wait_for(controller.ready(), 60)
            assert report.listed == 3 and report.is_complete and sum(report.outcomes.values()) == 3
            assert json.loads(json.dumps(report.to_dict()))["unfinished"] == []
            assert pickle.loads(pickle.dumps(report)) == report and hash(report)
            assert "3 of 3" in str(report) and "3 of 3" in report._repr_html_()
            assert controller.stats["role"] == "leader" and controller.stats["readiness"] == "ready"
            await eventually(lambda: all(worker.status == "running" for worker in live_cloud.workers()))
            live_cloud.update_worker("w-0", desired_status="stopped")
            assert controller.trigger("w-0")
            await eventually(lambda: live_cloud.worker("w-0").status == "stopped")
            assert controller.stats["counters"]["provisioned_count"] == 3
            assert "reconciliation_reconcile_total" in controller.metrics()
        assert controller.stats["role"] == "standby" and not controller.is_running
        with pytest.raises(RuntimeError, match="a controller runs once; create another one"):
            await controller.run()
        with pytest.raises(RuntimeError, match="a controller runs once; create another one"):
            await controller.__aenter__()

    asyncio.run(story())
    assert live_cloud.count("RunInstances") == 3


def test_changed_log_level_applies_to_a_running_controller(
    live_cloud: FakeCloud, caplog: pytest.LogCaptureFixture
) -> None:
    live_cloud.add_worker(id="w-1", status="failed")

    def is_logged() -> bool:
        return any(
            record.name == "lcm.reconcile" and "an operator resets it" in record.message for record in caplog.records
        )

    async def story() -> None:
        async with lcm.Controller(live_cloud.clients({**QUICK, "RECONCILE_INTERVAL": "3600"})) as controller:
            await asyncio.wait_for(controller.ready(), 60)
            assert not is_logged()
            caplog.set_level("DEBUG", logger="lcm.reconcile")
            # The cached level has expired by now.
            await asyncio.sleep(0.3)
            assert controller.trigger("w-1")
            await eventually(is_logged)

    asyncio.run(story())


def test_canceled_controller_releases_its_lease(live_cloud: FakeCloud) -> None:
    async def story() -> None:
        first = lcm.Controller(live_cloud.clients({**QUICK, "LEASE_TTL": "600"}))
        running = asyncio.create_task(first.run())
        await asyncio.wait_for(first.ready(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with lcm.Controller(live_cloud.clients(QUICK)) as second:
            # Far less than the ten minutes that the lease of the first one would have lasted.
            await asyncio.wait_for(second.ready(), 60)

    asyncio.run(story())


def test_ready_ends_with_the_run(live_cloud: FakeCloud) -> None:
    async def story() -> None:
        controller = lcm.Controller(live_cloud.clients({**QUICK, "STARTUP_RECONCILE_DELAY": "600"}))
        running = asyncio.create_task(controller.run())
        ready = asyncio.create_task(controller.ready())
        await asyncio.sleep(0.3)
        # As after a panic: the run ends, and no stop was requested.
        crash(controller)
        with pytest.raises(RuntimeError, match="the run of the controller has ended"):
            await asyncio.wait_for(ready, 30)
        await running

    asyncio.run(story())


def test_controller_shares_its_gates_with_single_reconciles(live_cloud: FakeCloud) -> None:
    # The configured subnets stay those of the default account.
    other = live_cloud.add_account("999999999999", "AKIAOTHER")
    clients = live_cloud.clients({"AWS_ACCESS_KEY_ID": other["AWS_ACCESS_KEY_ID"]})
    controller = lcm.Controller(clients)
    assert controller.stats["untrusted_regions"] == []
    live_cloud.add_worker(
        id="w-1",
        status="running",
        aws_region="us-east-1",
        ec2_instance_id="i-0123456789abcdef0",
        created_at="2020-01-01T00:00:00Z",
    )
    result = lcm.reconcile(live_cloud.worker("w-1"), clients=clients)
    assert result.reason.code == "region_not_trusted", result
    assert [region["region"] for region in controller.stats["untrusted_regions"]] == ["us-east-1"]


def test_two_controllers_share_a_fleet_in_shards(live_cloud: FakeCloud) -> None:
    live_cloud.add_template(name="tiny", instance_type="m5.large")

    def held(controller: lcm.Controller) -> set[int]:
        return {shard["shard"] for shard in controller.stats.get("shards", ())}

    async def story() -> None:
        shared = {**QUICK_AND_LASTING, "LEADER_SHARDS": "8"}
        first, second = (lcm.Controller(live_cloud.clients(shared)) for _ in range(2))
        async with first, second:
            await eventually(lambda: len(held(first)) == 4 and len(held(second)) == 4)
            assert held(first) | held(second) == set(range(8))
            for number in range(12):
                live_cloud.add_worker(**{**PENDING, "id": f"w-{number}"})
            await eventually(lambda: all(live_cloud.worker(f"w-{n}").status == "running" for n in range(12)))
            assert {first.stats["role"], second.stats["role"]} == {"leader"}
            assert "lcm_shards_held 4" in first.metrics() and "lcm_shards_held 4" in second.metrics()

    asyncio.run(story())
    assert live_cloud.count("RunInstances") == 12


@pytest.mark.parametrize("shards", ["0", "1025", "some"])
def test_invalid_number_of_shards_is_refused(live_cloud: FakeCloud, shards: str) -> None:
    with pytest.raises(lcm.ConfigError, match=f"LEADER_SHARDS.*{shards}.*1 to 1024"):
        live_cloud.clients({"LEADER_SHARDS": shards})


def test_python_control_plane_runs_a_fleet(live_cloud: FakeCloud) -> None:
    records = Records(*({**PENDING, "id": f"w-{n}"} for n in range(3)))

    async def service() -> None:
        clients = live_cloud.clients(QUICK, control_plane=records)
        async with lcm.Controller(clients):
            await eventually(lambda: all(record["status"] == "running" for record in records.records.values()))

    asyncio.run(service())
    assert live_cloud.count("RunInstances") == 3 and live_cloud.count(service="control-plane") == 0
    owners = {instance.tags["lcm:worker_id"] for instance in live_cloud.instances()}
    assert owners == {"w-0", "w-1", "w-2"}


@pytest.mark.parametrize("waiting", ["blocking", "asyncio"])
def test_python_port_serves_one_reconcile(live_cloud: FakeCloud, waiting: str) -> None:
    records = Records(PENDING)
    clients = live_cloud.clients(control_plane=records)
    worker = records.records["w-1"]
    if waiting == "asyncio":
        result = asyncio.run(lcm.reconcile_async(worker, clients=clients))
    else:
        result = lcm.reconcile(worker, clients=clients)
    assert result.to_status == "provisioning", str(result)
    assert records.records["w-1"]["ec2_instance_id"] == live_cloud.instances()[0].id


def test_coroutines_run_on_the_waiting_loop(live_cloud: FakeCloud) -> None:
    seen: list[threading.Thread] = []

    class Watched(Records):
        async def write(self, patch: Patch, /) -> int:
            seen.append(threading.current_thread())
            return await super().write(patch)

    records = Watched(PENDING)
    asyncio.run(lcm.reconcile_async(records.records["w-1"], clients=live_cloud.clients(control_plane=records)))
    assert set(seen) == {threading.main_thread()}


def test_port_exception_is_part_of_the_result(live_cloud: FakeCloud) -> None:
    class Broken(Records):
        error: Exception = lcm.PortError("closed for lunch", "unreachable", "LUNCH")

        def template(self, name: str, /) -> lcm.Template | None:
            raise self.error

    records = Broken(PENDING)
    clients = live_cloud.clients(control_plane=records)
    result = lcm.reconcile(PENDING, clients=clients)
    assert result.outcome is lcm.Outcome.RETRY
    assert result.error == lcm.CallFailure("unreachable", "closed for lunch", "LUNCH")
    records.error = KeyError("shelf")
    unclear = lcm.reconcile(PENDING, clients=clients)
    assert unclear.error == lcm.CallFailure("unclear", "'shelf'", "KeyError")
    assert live_cloud.instances() == []


def test_invalid_port_result_is_a_failure(live_cloud: FakeCloud) -> None:
    class Nonsense(Records):
        def template(self, name: str, /) -> Any:
            return {"name": name, "instance_type": 7}

    result = lcm.reconcile(PENDING, clients=live_cloud.clients(control_plane=Nonsense(PENDING)))
    assert result.outcome is lcm.Outcome.RETRY and result.error is not None
    assert "field `instance_type` is 7" in result.error.message


def test_canceled_reconcile_cancels_its_coroutine(live_cloud: FakeCloud) -> None:
    begun: list[str] = []
    ended: list[str] = []

    class Slow(Records):
        async def template(self, name: str, /) -> Any:  # type: ignore[override]
            begun.append(name)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    async def story() -> None:
        records = Slow(PENDING)
        pending = records.records["w-1"]
        task = asyncio.create_task(lcm.reconcile_async(pending, clients=live_cloud.clients(control_plane=records)))
        await eventually(lambda: bool(begun), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: ended == ["cancelled"], 30)

    asyncio.run(story())


def test_blocking_the_loop_of_the_ports_is_refused(live_cloud: FakeCloud) -> None:
    async def story() -> None:
        clients = live_cloud.clients(control_plane=Records(PENDING))
        await lcm.reconcile_async(lcm.Worker("w-9", "terminated"), clients=clients)
        with pytest.raises(RuntimeError, match=r"use `await lcm.reconcile_async"):
            lcm.reconcile(PENDING, clients=clients)

    asyncio.run(story())


def test_invalid_port_is_refused_at_once(live_cloud: FakeCloud) -> None:
    with pytest.raises(
        TypeError, match=r"dict does not implement lcm.ports.ControlPlane: missing workers, worker, write"
    ):
        live_cloud.clients(control_plane={})  # type: ignore[arg-type]


def test_events_reach_a_python_sink(extended_cloud: FakeCloud) -> None:
    heard: list[dict[str, Any]] = []

    class Listener:
        def publish(self, event: dict[str, Any], /) -> Awaitable[None] | None:
            heard.append(event)
            return None

    instance = extended_cloud.run()
    extended_cloud.settle()
    worker = extended_cloud.add_worker(
        id="w-1",
        status="draining",
        desired_status="stopped",
        ec2_instance_id=instance.id,
        aws_region="us-east-1",
        drain_started_at="2026-01-01T00:00:00Z",
    )
    result = lcm.reconcile(worker, clients=extended_cloud.clients(events=Listener()))
    assert result.to_status == "stopping", str(result)
    assert [event["type"] for event in heard] == ["cml_worker.drain.completed.v1"]


class DictCompute:
    """A compute port that stores states in a dict."""

    def __init__(self, **states: lcm.Instance | lcm.Absent | lcm.CallFailure) -> None:
        self.states = states
        self.calls: list[str] = []

    async def instances(self, region: str, ids: list[str], /) -> dict[str, lcm.Instance | lcm.Absent | lcm.CallFailure]:
        return {id: self.states[id] for id in ids if id in self.states}

    def tagged(self, region: str, worker_id: str, /) -> list[lcm.Instance]:
        return []

    def images(self, region: str, pattern: str, /) -> list[lcm.Image]:
        return [lcm.Image("ami-1", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z")]

    def scan(self, region: str, ami_name_pattern: str | None, tags: Any, /) -> list[lcm.Instance]:
        return []

    def subnet_owner(self, region: str, subnet_id: str, /) -> str:
        return "123456789012"

    def account_id(self, region: str, /) -> str:
        return "123456789012"

    async def launch(self, plan: lcm.FrozenMap, /) -> str:
        self.calls.append(f"launch {plan['tags']['lcm:worker_id']}")
        return "i-new"

    def start(self, region: str, id: str, /) -> None:
        self.calls.append(f"start {id}")

    def stop(self, region: str, id: str, /) -> None:
        self.calls.append(f"stop {id}")

    def terminate(self, region: str, id: str, /) -> None:
        self.calls.append(f"terminate {id}")


def test_python_compute_is_called(live_cloud: FakeCloud) -> None:
    compute = DictCompute(**{"i-1": lcm.Instance("running")})
    stopping = {"id": "w-2", "status": "stopping", "ec2_instance_id": "i-1", "aws_region": "us-east-1"}
    records = Records(PENDING, stopping)
    clients = live_cloud.clients(control_plane=records, compute=compute)
    launched = lcm.reconcile(records.records["w-1"], clients=clients)
    assert launched.to_status == "provisioning" and records.records["w-1"]["ec2_instance_id"] == "i-new"
    lcm.reconcile(records.records["w-2"], clients=clients)
    assert compute.calls == ["launch w-1", "stop i-1"]
    assert live_cloud.count() == 0, "no other service was called"


def test_missing_id_does_not_mean_absent(live_cloud: FakeCloud) -> None:
    compute = DictCompute()
    old = {"status": "stopped", "ec2_instance_id": "i-1", "aws_region": "us-east-1"}
    worker = {"id": "w-1", "created_at": "2026-01-01T00:00:00Z", **old}
    clients = live_cloud.clients(control_plane=Records(worker), compute=compute)
    unknown = lcm.reconcile({**worker, "version": 1}, clients=clients)
    assert (unknown.outcome, unknown.to_status) == ("retry", "stopped") and unknown.error is not None
    assert unknown.error.message == "no result for i-1"
    compute.states["i-1"] = lcm.ABSENT
    gone = lcm.reconcile({**worker, "version": 1}, clients=clients)
    assert gone.to_status == "terminated", str(gone)


def test_ready_raises_without_a_running_controller(live_cloud: FakeCloud) -> None:
    async def check() -> None:
        clients = live_cloud.clients(QUICK)
        idle = lcm.Controller(clients)
        with pytest.raises(RuntimeError, match="was not started"):
            await idle.ready()
        controller = lcm.Controller(clients)
        running = asyncio.create_task(controller.run())
        await controller.ready()
        controller.stop()
        await running
        with pytest.raises(RuntimeError, match="has stopped"):
            await controller.ready()

    asyncio.run(check())
