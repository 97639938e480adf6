"""Python ports for metrics, CML and coordination: cancellation and threads."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import lcm
import pytest
from controller_helpers import QUICK, eventually
from lcm.ports import Patch
from lcm.testing import FakeCloud
from python_aws import REGION, PythonCompute, PythonMetrics
from python_cml import PythonCml
from python_control_plane import PythonControlPlane
from python_coordination import PythonCoordination

SETTINGS = {**QUICK, "BACKOFF_BASE": "0.05", "DEBOUNCE_SECONDS": "0.05"}


def running(cloud: PythonCompute, id: str = "w-1", **fields: Any) -> dict[str, Any]:
    """Return the record of a worker with a running instance."""
    instance = f"i-{id}"
    cloud.regions[REGION].instances[instance] = lcm.Instance("running", instance, public_ip="198.18.0.1")
    known = {"id": id, "status": "running", "desired_status": "running", "ec2_instance_id": instance}
    return {**known, "aws_region": REGION, "ip_address": "198.18.0.1", "public_ip": "198.18.0.1", **fields}


def test_python_metrics_are_reported(live_cloud: FakeCloud) -> None:
    cloud, gauges, cml = PythonCompute(), PythonMetrics(), PythonCml()
    records = PythonControlPlane(running(cloud, cml_username="admin", cml_password="s3cret"))
    gauges.reports["i-w-1"].append((datetime.fromisoformat("2026-01-01T00:00:00Z"), lcm.CloudMetrics(12.5)))
    clients = live_cloud.clients(control_plane=records, compute=cloud, metrics=gauges, cml=cml)
    result = lcm.reconcile(records.records["w-1"], clients=clients)
    assert result.error is None, str(result)
    measured, reported = records.metrics["w-1"]
    assert measured == {
        "cpu_utilization": 12.5,
        "memory_utilization": None,
        "disk_utilization": None,
        "network_in_bytes": None,
        "network_out_bytes": None,
    }
    assert (reported["labs_count"], reported["nodes_count"], reported["ready"]) == (1, 2, True)
    assert live_cloud.count() == 0, "no other service was called"


def test_license_is_registered_with_a_python_cml(live_cloud: FakeCloud, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="lcm")
    cloud, cml = PythonCompute(), PythonCml()
    license = {"pending_operation": "register", "pending_token": "t0ken"}
    records = PythonControlPlane(running(cloud, cml_username="admin", cml_password="wrong", license=license))
    clients = live_cloud.clients(control_plane=records, compute=cloud, metrics=PythonMetrics(), cml=cml)

    def one_pass() -> lcm.ReconcileResult:
        return lcm.reconcile(records.records["w-1"], clients=clients)

    refused = one_pass()
    assert refused.outcome is lcm.Outcome.RETRY and cml.tokens == []
    reported = f"{refused} {refused!r} {refused.to_dict()} {caplog.text}"
    assert refused.error is not None and isinstance(refused.error.cause, lcm.PortError)
    assert refused.error.message == "[redacted] is not the password of admin"
    assert "wrong is not" not in reported and "t0ken" not in reported
    records.records["w-1"]["cml_password"] = "s3cret"
    one_pass()
    assert [token.expose() for token in cml.tokens] == ["t0ken"] and repr(cml.tokens) == "[[redacted]]"
    assert records.records["w-1"]["license"]["operation_in_progress"]
    cml.attempt = (datetime.fromisoformat("2020-01-01T00:00:00Z"), "COMPLETED")
    one_pass()
    license = records.records["w-1"]["license"]
    assert (license["status"], license["token"], license["pending_operation"]) == ("registered", "t0ken", None)


def test_events_reach_the_control_plane_only_if_enabled(extended_cloud: FakeCloud) -> None:
    instance = extended_cloud.run()
    known = {"desired_status": "stopped", "ec2_instance_id": instance.id, "aws_region": REGION}
    known["drain_started_at"] = "2026-01-01T00:00:00Z"
    for id, switch in (("w-1", "false"), ("w-2", "true")):
        worker = extended_cloud.add_worker(id=id, status="draining", **known)
        result = lcm.reconcile(worker, clients=extended_cloud.clients({"CONTROL_PLANE_EVENTS": switch}))
        assert result.to_status == "stopping", str(result)
    reported = [
        event["subject"] for event in extended_cloud.events() if event["type"] == "cml_worker.drain.completed.v1"
    ]
    assert reported == ["w-2"]


def test_lease_of_a_python_port_is_handed_over(live_cloud: FakeCloud) -> None:
    keys, cloud = PythonCoordination(), PythonCompute()
    records = PythonControlPlane(running(cloud))

    def controller(name: str) -> lcm.Controller:
        settings = {**SETTINGS, "LCM_INSTANCE_ID": name, "LEASE_TTL": "600"}
        clients = live_cloud.clients(
            settings, control_plane=records, compute=cloud, metrics=PythonMetrics(), cml=PythonCml()
        )
        return lcm.Controller(clients, coordination=keys)

    async def story() -> None:
        first, second = controller("first"), controller("second")
        leading = asyncio.create_task(first.run())
        await asyncio.wait_for(first.ready(), 60)
        (key,) = keys.keys
        assert keys.keys[key].value == "first"
        async with second:
            await asyncio.sleep(0.5)
            assert second.stats["role"] == "standby"
            first.stop()
            await leading
            # Far less than the ten minutes that the lease would have lasted.
            await asyncio.wait_for(second.ready(), 60)
            assert keys.keys[key].value == "second"
        assert keys.keys == {}, "the lease was released"
        await eventually(lambda: keys.watches == [])

    asyncio.run(story())


def test_watch_of_a_python_port_triggers_a_reconcile(live_cloud: FakeCloud) -> None:
    keys = PythonCoordination()
    passes: list[str] = []

    class Jobs:
        def key(self, job: str, /) -> str:
            return job

        def list(self, everything: bool, /) -> list[str]:
            return ["one", *(key.removeprefix("/jobs/") for key in keys.keys if key.startswith("/jobs/"))]

        async def fetch(self, key: str, /) -> str:
            return key

        async def reconcile(self, job: str, /) -> None:
            passes.append(job)

    async def story() -> None:
        settings = {**SETTINGS, "RECONCILE_INTERVAL": "3600"}
        jobs = lcm.ResourceController(Jobs(), name="jobs", watch=["/jobs/"], settings=settings, coordination=keys)
        async with jobs:
            await eventually(lambda: "one" in passes and len(keys.watches) >= 2)
            keys.put("/jobs/two", "1")
            await eventually(lambda: "two" in passes, 30)

    asyncio.run(story())


def test_failed_election_has_no_leader(live_cloud: FakeCloud) -> None:
    keys = PythonCoordination()
    keys.trouble = ConnectionError("no quorum")

    async def story() -> None:
        settings = {**SETTINGS, "RETRY_INTERVAL": "0.1"}
        clients = live_cloud.clients(settings, control_plane=PythonControlPlane(), compute=PythonCompute())
        async with lcm.Controller(clients, coordination=keys) as controller:
            await asyncio.sleep(0.5)
            assert controller.stats["role"] == "standby"
            keys.trouble = None
            await asyncio.wait_for(controller.ready(), 60)

    asyncio.run(story())


def test_leader_with_an_expired_lease_stops(live_cloud: FakeCloud) -> None:
    keys = PythonCoordination()

    async def story() -> None:
        settings = {**SETTINGS, "RETRY_INTERVAL": "0.2"}
        clients = live_cloud.clients(settings, control_plane=PythonControlPlane(), compute=PythonCompute())
        async with lcm.Controller(clients, coordination=keys) as controller:
            await asyncio.wait_for(controller.ready(), 60)
            before = keys.granted
            keys._end(before)
            await eventually(lambda: keys.granted > before and len(keys.keys) == 1)
            await eventually(lambda: controller.stats["role"] == "leader")

    asyncio.run(story())


def test_canceled_reconcile_finishes_the_current_effect(live_cloud: FakeCloud) -> None:
    begun, done = threading.Event(), threading.Event()

    class Slow(PythonCompute):
        def launch(self, plan: lcm.FrozenMap, /) -> str:
            begun.set()
            time.sleep(1)
            done.set()
            return super().launch(plan)

    cloud = Slow()
    pending = {"id": "w-1", "status": "pending", "template_name": "tiny", "aws_region": REGION}
    records = PythonControlPlane(pending)
    records.templates["tiny"] = {"name": "tiny", "instance_type": "m5.large"}

    async def story() -> None:
        clients = live_cloud.clients(control_plane=records, compute=cloud)
        task = asyncio.create_task(lcm.reconcile_async(records.records["w-1"], clients=clients))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not done.is_set(), "the caller does not wait for it"
        await eventually(lambda: records.records["w-1"].get("ec2_instance_id") is not None)

    asyncio.run(story())
    assert records.records["w-1"]["status"] == "provisioning", "the current effect is finished and recorded"
    assert cloud.count == 1


def test_canceled_reconcile_starts_no_further_effect(live_cloud: FakeCloud) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(PythonControlPlane):
        async def write(self, patch: Patch, /) -> int:
            begun.set()
            await go_on.wait()
            return await super().write(patch)

    cloud = PythonCompute()
    records = Slow({"id": "w-1", "status": "pending", "template_name": "tiny", "aws_region": REGION})
    records.templates["tiny"] = {"name": "tiny", "instance_type": "m5.large"}

    async def story() -> None:
        clients = live_cloud.clients(control_plane=records, compute=cloud)
        task = asyncio.create_task(lcm.reconcile_async(records.records["w-1"], clients=clients))
        await asyncio.wait_for(begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await eventually(lambda: "launch_plan" in records.records["w-1"].get("metadata", {}))
        # The launch would be next.
        await asyncio.sleep(0.5)

    asyncio.run(story())
    assert "launch" not in cloud.calls and records.records["w-1"]["status"] == "pending"


def test_reconcile_canceled_while_observing_has_no_effect(live_cloud: FakeCloud) -> None:
    ended: list[str] = []
    looking = asyncio.Event()

    class Slow(PythonControlPlane):
        async def sessions(self, worker_id: str, /) -> Any:
            try:
                looking.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    cloud = PythonCompute()
    records = Slow(running(cloud, status="draining", desired_status="stopped"))

    async def story() -> None:
        clients = live_cloud.clients(control_plane=records, compute=cloud)
        task = asyncio.create_task(lcm.reconcile_async(records.records["w-1"], clients=clients))
        await asyncio.wait_for(looking.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: ended == ["cancelled"], 30)

    asyncio.run(story())
    assert "stop" not in cloud.calls and records.records["w-1"]["status"] == "draining"


@pytest.mark.parametrize("written", ["plain", "async"])
def test_threads_share_python_ports(live_cloud: FakeCloud, written: str) -> None:
    at_once = threading.Barrier(4)

    class Plain(PythonCompute):
        def stop(self, region: str, id: str, /) -> None:
            # The barrier opens when four calls run at the same time.
            at_once.wait(30)
            super().stop(region, id)

    class Async(PythonCompute):
        async def stop(self, region: str, id: str, /) -> None:  # type: ignore[override]
            await asyncio.to_thread(at_once.wait, 30)
            super().stop(region, id)

    cloud = Plain() if written == "plain" else Async()
    records = PythonControlPlane(
        *(running(cloud, f"w-{n}", status="stopping", desired_status="stopped") for n in range(8))
    )
    clients = live_cloud.clients(control_plane=records, compute=cloud)
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda id: lcm.reconcile(records.records[id], clients=clients), records.records))
    assert [str(effect.result) for result in outcomes for effect in result.effects] == ["done"] * 8
    assert cloud.calls.count("instances") < 8, "concurrent describes share a call"


def test_conflicting_write_is_decided_again(live_cloud: FakeCloud) -> None:
    class Contested(PythonControlPlane):
        interrupted = False

        async def write(self, patch: Patch, /) -> int:
            if not self.interrupted:
                self.interrupted = True
                self.records["w-1"] |= {"version": 2, "name": "theirs"}
            return await super().write(patch)

    cloud = PythonCompute()
    records = Contested(running(cloud, status="stopped", desired_status=None))
    result = lcm.reconcile(records.records["w-1"], clients=live_cloud.clients(control_plane=records, compute=cloud))
    assert result.to_status == "running" and records.records["w-1"]["status"] == "running"
    assert records.records["w-1"]["name"] == "theirs", "the other write is preserved"


class NotelessControlPlane(PythonControlPlane):
    """Records that cannot hold the notes of LCM."""

    async def write(self, patch: Patch, /) -> int:
        assert not {name for name in patch.changes if name.startswith("drain_")}, patch
        return await super().write(patch)


def test_notes_of_a_python_control_plane_outlive_its_clients(live_cloud: FakeCloud) -> None:
    cloud = PythonCompute()
    records = NotelessControlPlane(running(cloud) | {"status": "draining", "desired_status": "stopped"})
    settings = {"NOTES_STORE": "etcd", "DRAIN_SETTLE": "1"}

    def one_pass() -> lcm.ReconcileResult:
        clients = live_cloud.clients(settings, control_plane=records, compute=cloud)
        return lcm.reconcile(records.records["w-1"], clients=clients)

    assert one_pass().to_status == "draining"
    time.sleep(1.1)
    assert one_pass().to_status == "stopping", "the settle time began with the first client"
