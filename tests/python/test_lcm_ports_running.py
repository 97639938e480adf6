"""Ports written in Python at work: metrics, CML and coordination; cancelled, and called from many threads."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import lcm
import pytest
from lcm.ports import Patch
from lcm.testing import FakeCloud
from live import QUICK, eventually
from own_cloud import REGION, OwnCloud, OwnGauges
from own_cml import OwnCml
from own_keys import OwnKeys
from own_records import OwnRecords

SETTINGS = {**QUICK, "BACKOFF_BASE": "0.05", "DEBOUNCE_SECONDS": "0.05"}


def running(cloud: OwnCloud, id: str = "w-1", **fields: Any) -> dict[str, Any]:
    """A worker whose instance runs."""
    instance = f"i-{id}"
    cloud.regions[REGION].instances[instance] = lcm.Instance("running", instance, public_ip="198.18.0.1")
    known = {"id": id, "status": "running", "desired_status": "running", "ec2_instance_id": instance}
    return {**known, "aws_region": REGION, "ip_address": "198.18.0.1", "public_ip": "198.18.0.1", **fields}


def test_metrics_in_python_are_asked_and_reported(live_cloud: FakeCloud) -> None:
    cloud, gauges, cml = OwnCloud(), OwnGauges(), OwnCml()
    records = OwnRecords(running(cloud, cml_username="admin", cml_password="s3cret"))
    gauges.reports["i-w-1"].append((datetime.fromisoformat("2026-01-01T00:00:00Z"), lcm.CloudMetrics(12.5)))
    clients = live_cloud.clients(control_plane=records, compute=cloud, metrics=gauges, cml=cml)
    result = lcm.reconcile(records.records["w-1"], clients=clients)
    assert result.error is None, str(result)
    measured, told = records.metrics["w-1"]
    assert measured == {"cpu_utilization": 12.5, "memory_utilization": None, "disk_utilization": None}
    assert (told["labs_count"], told["nodes_count"], told["ready"]) == (1, 2, True)
    assert live_cloud.count() == 0, "nobody else was asked"


def test_a_licence_is_registered_with_a_cml_in_python(live_cloud: FakeCloud, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="lcm")
    cloud, cml = OwnCloud(), OwnCml()
    license = {"pending_operation": "register", "pending_token": "t0ken"}
    records = OwnRecords(running(cloud, cml_username="admin", cml_password="wrong", license=license))
    clients = live_cloud.clients(control_plane=records, compute=cloud, metrics=OwnGauges(), cml=cml)

    def one_pass() -> lcm.ReconcileResult:
        return lcm.reconcile(records.records["w-1"], clients=clients)

    refused = one_pass()
    assert refused.outcome is lcm.Outcome.RETRY and cml.tokens == []
    told = f"{refused} {refused!r} {refused.to_dict()} {caplog.text}"
    assert refused.error is not None and isinstance(refused.error.cause, lcm.PortError)
    assert refused.error.message == "[redacted] is not the password of admin"
    assert "wrong is not" not in told and "t0ken" not in told
    records.records["w-1"]["cml_password"] = "s3cret"
    one_pass()
    assert [token.expose() for token in cml.tokens] == ["t0ken"] and repr(cml.tokens) == "[[redacted]]"
    assert records.records["w-1"]["license"]["operation_in_progress"]
    cml.attempt = (datetime.fromisoformat("2020-01-01T00:00:00Z"), "COMPLETED")
    one_pass()
    license = records.records["w-1"]["license"]
    assert (license["status"], license["token"], license["pending_operation"]) == ("registered", "t0ken", None)


def test_events_reach_the_control_plane_only_where_it_is_told_to_expect_them(live_cloud: FakeCloud) -> None:
    instance = live_cloud.run()
    known = {"desired_status": "stopped", "ec2_instance_id": instance.id, "aws_region": REGION}
    for id, switch in (("w-1", "false"), ("w-2", "true")):
        worker = live_cloud.add_worker(id=id, status="draining", **known)
        result = lcm.reconcile(worker, clients=live_cloud.clients({"CONTROL_PLANE_EVENTS": switch}))
        assert result.to_status == "stopping", str(result)
    told = [event["subject"] for event in live_cloud.events() if event["type"] == "cml_worker.drain.completed.v1"]
    assert told == ["w-2"]


def test_one_leads_by_a_lease_in_python_and_another_takes_over_when_it_stops(live_cloud: FakeCloud) -> None:
    keys, cloud = OwnKeys(), OwnCloud()
    records = OwnRecords(running(cloud))

    def controller(name: str) -> lcm.Controller:
        settings = {**SETTINGS, "LCM_INSTANCE_ID": name, "LEASE_TTL": "600"}
        clients = live_cloud.clients(settings, control_plane=records, compute=cloud, metrics=OwnGauges(), cml=OwnCml())
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
        assert keys.keys == {}, "the lease was given up"
        await eventually(lambda: keys.watches == [])

    asyncio.run(story())


def test_a_change_of_a_key_in_python_is_heard_of_without_polling(live_cloud: FakeCloud) -> None:
    keys = OwnKeys()
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


def test_nobody_leads_while_nobody_can_be_asked(live_cloud: FakeCloud) -> None:
    keys = OwnKeys()
    keys.trouble = ConnectionError("no quorum")

    async def story() -> None:
        settings = {**SETTINGS, "RETRY_INTERVAL": "0.1"}
        clients = live_cloud.clients(settings, control_plane=OwnRecords(), compute=OwnCloud())
        async with lcm.Controller(clients, coordination=keys) as controller:
            await asyncio.sleep(0.5)
            assert controller.stats["role"] == "standby"
            keys.trouble = None
            await asyncio.wait_for(controller.ready(), 60)

    asyncio.run(story())


def test_a_leader_whose_lease_ends_stops_leading(live_cloud: FakeCloud) -> None:
    keys = OwnKeys()

    async def story() -> None:
        settings = {**SETTINGS, "RETRY_INTERVAL": "0.2"}
        clients = live_cloud.clients(settings, control_plane=OwnRecords(), compute=OwnCloud())
        async with lcm.Controller(clients, coordination=keys) as controller:
            await asyncio.wait_for(controller.ready(), 60)
            before = keys.granted
            keys._end(before)
            await eventually(lambda: keys.granted > before and len(keys.keys) == 1)
            await eventually(lambda: controller.stats["role"] == "leader")

    asyncio.run(story())


def test_a_cancelled_pass_finishes_the_action_it_is_in_and_begins_no_other(live_cloud: FakeCloud) -> None:
    begun, done = threading.Event(), threading.Event()

    class Slow(OwnCloud):
        def launch(self, plan: lcm.FrozenMap, /) -> str:
            begun.set()
            time.sleep(1)
            done.set()
            return super().launch(plan)

    cloud = Slow()
    pending = {"id": "w-1", "status": "pending", "template_name": "tiny", "aws_region": REGION}
    records = OwnRecords(pending)
    records.templates["tiny"] = {"name": "tiny", "instance_type": "m5.large"}

    async def story() -> None:
        clients = live_cloud.clients(control_plane=records, compute=cloud)
        task = asyncio.create_task(lcm.reconcile_async(records.records["w-1"], clients=clients))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not done.is_set(), "nobody waits for it"
        await eventually(lambda: records.records["w-1"].get("ec2_instance_id") is not None)

    asyncio.run(story())
    assert records.records["w-1"]["status"] == "provisioning", "what was begun is finished and recorded"
    assert cloud.count == 1


def test_a_pass_that_is_cancelled_between_two_actions_ends_there(live_cloud: FakeCloud) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(OwnRecords):
        async def write(self, patch: Patch, /) -> int:
            begun.set()
            await go_on.wait()
            return await super().write(patch)

    cloud = OwnCloud()
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
        # The launch would have come next.
        await asyncio.sleep(0.5)

    asyncio.run(story())
    assert "launch" not in cloud.asked and records.records["w-1"]["status"] == "pending"


def test_a_pass_that_is_cancelled_while_it_looks_does_nothing(live_cloud: FakeCloud) -> None:
    ended: list[str] = []
    looking = asyncio.Event()

    class Slow(OwnRecords):
        async def sessions(self, worker_id: str, /) -> Any:
            try:
                looking.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    cloud = OwnCloud()
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
    assert "stop" not in cloud.asked and records.records["w-1"]["status"] == "draining"


@pytest.mark.parametrize("written", ["plain", "async"])
def test_many_threads_share_ports_in_python(live_cloud: FakeCloud, written: str) -> None:
    at_once = threading.Barrier(4)

    class Plain(OwnCloud):
        def stop(self, region: str, id: str, /) -> None:
            # Four calls at the same time, or nobody gets on.
            at_once.wait(30)
            super().stop(region, id)

    class Async(OwnCloud):
        async def stop(self, region: str, id: str, /) -> None:  # type: ignore[override]
            await asyncio.to_thread(at_once.wait, 30)
            super().stop(region, id)

    cloud = Plain() if written == "plain" else Async()
    records = OwnRecords(*(running(cloud, f"w-{n}", status="stopping", desired_status="stopped") for n in range(8)))
    clients = live_cloud.clients(control_plane=records, compute=cloud)
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda id: lcm.reconcile(records.records[id], clients=clients), records.records))
    assert [str(effect.result) for result in outcomes for effect in result.effects] == ["done"] * 8
    assert cloud.asked.count("instances") < 8, "what is asked for at once is asked together"


def test_a_write_that_somebody_was_faster_than_is_decided_anew(live_cloud: FakeCloud) -> None:
    class Contested(OwnRecords):
        interrupted = False

        async def write(self, patch: Patch, /) -> int:
            if not self.interrupted:
                self.interrupted = True
                self.records["w-1"] |= {"version": 2, "name": "theirs"}
            return await super().write(patch)

    cloud = OwnCloud()
    records = Contested(running(cloud, status="stopped", desired_status=None))
    result = lcm.reconcile(records.records["w-1"], clients=live_cloud.clients(control_plane=records, compute=cloud))
    assert result.to_status == "running" and records.records["w-1"]["status"] == "running"
    assert records.records["w-1"]["name"] == "theirs", "nothing of theirs was lost"
