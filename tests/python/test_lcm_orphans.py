"""Discovery and garbage collection from Python, over real sockets."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import lcm
import pytest
from controller_helpers import assert_ctrl_c_ends
from lcm.ports import ControlPlane, Patch
from lcm.testing import FakeCloud

GONE = tuple(f"w-{n:02}" for n in range(4, 14))
OLD = "2020-01-01T00:00:00Z"


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """The scenario of ADR-014: thirteen records, three instances."""
    with FakeCloud(scenario="orphans") as cloud:
        yield cloud


def ended(cloud: FakeCloud) -> list[str]:
    return [worker.id for worker in cloud.workers() if worker.status is lcm.WorkerStatus.TERMINATED]


def test_ten_of_thirteen_records_are_marked_once(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    report = lcm.collect_orphans(clients=lcm_clients)
    assert report.terminated == report.orphans == GONE and report.error is None and not report.dry_run
    assert ended(fake_cloud) == list(GONE)
    assert {fake_cloud.worker(id).to_dict()["terminated_by"] for id in GONE} == {"discovery-gc"}
    assert [(region.region, region.seen, region.imported) for region in report.regions] == [("us-east-1", 3, 0)]
    # The scan, and one call that describes all ten.
    assert fake_cloud.count("DescribeInstances") == 2
    again = lcm.collect_orphans(clients=lcm_clients)
    assert again.terminated == () and again.regions[0].verdicts == ()


def test_dry_run_changes_nothing(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.run()
    before = fake_cloud.workers(), fake_cloud.events()
    plan = lcm.collect_orphans(clients=lcm_clients, dry_run=True)
    assert plan.dry_run and plan.orphans == GONE and plan.terminated == () and plan.regions[0].imported == 1
    assert str(plan) == "us-east-1: 4 seen, 1 to import, orphans: 10."
    assert (fake_cloud.workers(), fake_cloud.events()) == before
    operations = {request["operation"] for request in fake_cloud.requests()}
    aws = {"DescribeImages", "DescribeInstances", "GetCallerIdentity"}
    # The notes of the workers are in etcd.
    reads = aws | {"list_workers", "get_discovery_settings", "Range"}
    assert operations == reads


def test_discovery_runs_from_asyncio(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    async def story() -> lcm.DiscoveryReport:
        return await lcm.collect_orphans_async(clients=lcm_clients)

    assert asyncio.run(story()).terminated == GONE


def test_unknown_instance_is_imported(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.run()
    fake_cloud.add_worker(id="w-new", status="pending", aws_region="us-east-1")
    adopted = fake_cloud.run(tags={"lcm:worker_id": "w-new"})
    fake_cloud.advance(60)
    region = lcm.collect_orphans(clients=lcm_clients).regions[0]
    assert (region.imported, region.handed_over) == (1, ("w-new",))
    result = lcm.reconcile(fake_cloud.worker("w-new"), clients=lcm_clients)
    assert fake_cloud.worker("w-new").ec2_instance_id == adopted.id, str(result)


def test_terminated_record_of_a_live_instance_is_restored(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.update_worker("w-01", status="terminated")
    plan = lcm.collect_orphans(clients=lcm_clients, dry_run=True)
    assert plan.regions[0].resurrected == ("w-01",) and fake_cloud.worker("w-01").status == "terminated"
    assert lcm.collect_orphans(clients=lcm_clients).regions[0].resurrected == ("w-01",)
    assert fake_cloud.worker("w-01").status is lcm.WorkerStatus.RUNNING


def test_policy_limits_the_marked_records(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    careful = lcm.Policy(orphans=lcm.OrphanPolicy(max_terminations_per_pass=4))
    report = lcm.collect_orphans(clients=lcm_clients, policy=careful)
    assert report.terminated == GONE[:4]
    assert [verdict.conclusion.value for verdict in report.regions[0].verdicts].count("deferred") == 6
    assert report.regions[0].notes == (
        "This run has reached its limit of terminations; orphans left for the next run: 6.",
    )
    assert "left for the next run: 6" in report.regions[0]._repr_html_()
    assert len(lcm.collect_orphans(clients=lcm_clients, policy=careful).terminated) == 4
    assert len(lcm.collect_orphans(clients=lcm_clients, policy=careful).terminated) == 2


def test_empty_region_is_frozen_unless_its_subnet_is_visible(fake_cloud: FakeCloud) -> None:
    fake_cloud.reset(empty=True)
    for n in range(3):
        known = {"status": "running", "aws_region": "us-east-1", "created_at": OLD}
        fake_cloud.add_worker(id=f"w-{n}", ec2_instance_id=f"i-0dead00000000000{n}", **known)
    report = lcm.collect_orphans(clients=fake_cloud.clients({"AWS_REGION_CONFIGS": "{}"}))
    region = report.regions[0]
    assert region.is_frozen and report.orphans == report.terminated == () and ended(fake_cloud) == []
    assert "The region is frozen: EC2 shows none of its recorded instances, as with wrong credentials" in str(report)
    assert "frozen" in region.verdicts[0].why and "frozen" in report._repr_html_()
    # With the configured subnet visible, the credentials are right and the region is empty.
    assert len(lcm.collect_orphans(clients=fake_cloud.clients()).terminated) == 3


def test_failed_describe_terminates_no_record(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.fail_next("DescribeInstances", times=9)
    unscanned = lcm.collect_orphans(clients=lcm_clients).regions[0]
    assert unscanned.error is not None and unscanned.error.kind is lcm.FailureKind.THROTTLED
    assert unscanned.verdicts == () and "A call failed: RequestLimitExceeded" in str(unscanned)
    fake_cloud.clear_faults()
    fake_cloud.inject({"kind": "error", "code": "RequestLimitExceeded"}, operation="DescribeInstances", after=1)
    unverified = lcm.collect_orphans(clients=lcm_clients)
    assert {verdict.conclusion for verdict in unverified.regions[0].verdicts} == {lcm.Conclusion.UNKNOWN}
    assert ended(fake_cloud) == []


def test_young_and_protected_instances_are_kept(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    kept = fake_cloud.run(tags={"lcm:protect": "yes"})
    fake_cloud.advance(60)
    fake_cloud.add_worker(id="w-kept", status="running", ec2_instance_id=kept.id, aws_region="us-east-1")
    fake_cloud.terminate(kept)
    fake_cloud.advance(120)
    young = {"status": "provisioning", "aws_region": "us-east-1", "created_at": fake_cloud.now.isoformat()}
    fake_cloud.add_worker(id="w-young", ec2_instance_id="i-0dead0000000000ff", **young)
    report = lcm.collect_orphans(clients=lcm_clients)
    conclusions = {verdict.worker_id: verdict.conclusion.value for verdict in report.regions[0].verdicts}
    assert (conclusions["w-kept"], conclusions["w-young"]) == ("protected", "young")
    assert report.terminated == GONE


def test_other_regions_are_left_unchanged(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.add_worker(
        id="w-west", status="running", ec2_instance_id="i-0dead0000000000aa", aws_region="us-west-2", created_at=OLD
    )
    fake_cloud.run(region="us-west-2")
    report = lcm.collect_orphans(clients=lcm_clients, regions=["us-west-2"])
    assert report.terminated == ("w-west",) and [region.region for region in report.regions] == ["us-west-2"]
    assert ended(fake_cloud) == ["w-west"]


def test_failed_record_list_has_no_conclusions(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.inject({"kind": "error", "code": "500"}, service="control-plane", operation="list_workers")
    report = lcm.collect_orphans(clients=lcm_clients)
    assert report.regions == () and report.error is not None
    assert str(report).startswith("Nothing was done: ") and "Nothing was done" in report._repr_html_()


def test_failed_write_is_reported(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.inject({"kind": "error", "code": "403"}, service="control-plane", operation="terminate_worker", times=1)
    report = lcm.collect_orphans(clients=lcm_clients)
    # Records are written concurrently, so any of them may have failed.
    [refused] = set(GONE) - set(ended(fake_cloud))
    assert report.orphans == GONE and report.terminated == tuple(id for id in GONE if id != refused)
    assert report.regions[0].error is not None and report.regions[0].error.kind is lcm.FailureKind.REFUSED


def test_reports_are_values(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.update_worker("w-13", name="<b>")
    report = lcm.collect_orphans(clients=lcm_clients, dry_run=True)
    assert pickle.loads(pickle.dumps(report)) == report and hash(report)
    shown = json.loads(json.dumps(report.to_dict()))
    assert shown["regions"][0]["verdicts"][0] == {
        "worker_id": "w-04",
        "ec2_instance_id": "i-0dead000000000004",
        "conclusion": "orphan",
    }
    html = report._repr_html_()
    assert "dry run" in html and html.count("<tr>") == 10 and "EC2 reports that the instance does not exist" in html
    match report:
        case lcm.DiscoveryReport(regions=(lcm.RegionReport(region="us-east-1", seen=3),), error=None):
            pass
        case _:
            pytest.fail(str(report))
    with pytest.raises(AttributeError):
        report.dry_run = False  # type: ignore[misc]


def test_report_html_is_escaped() -> None:
    verdict = lcm.Verdict("<script>", "<i>", lcm.Conclusion.FROZEN)
    for html in (
        lcm.OrphanReport("<x>", (verdict,), ("<y>",))._repr_html_(),
        lcm.SweepReport(1, {}, ("<script>",), timedelta(seconds=1))._repr_html_(),
    ):
        assert "<script>" not in html and "&lt;script&gt;" in html and "<x>" not in html and "<y>" not in html


class Records(ControlPlane):
    """A control plane whose writes can be held back."""

    def __init__(self, *workers: lcm.Worker) -> None:
        self.rows = {worker.id: worker.replace(version=1) for worker in workers}
        self.held = False
        self.settings: dict[str, Any] | None = None
        self.writing = threading.Event()
        self.begun: list[str] = []

    async def workers(self, region: str | None, with_terminated: bool, /) -> list[lcm.Worker]:
        return list(self.rows.values())

    async def worker(self, id: str, /) -> lcm.Worker | None:
        return self.rows.get(id)

    async def write(self, patch: Patch, /) -> int:
        self.begun.append(patch.worker_id)
        self.writing.set()
        while self.held:
            await asyncio.sleep(0.01)
        self.rows[patch.worker_id] = patch.apply_to(self.rows[patch.worker_id]).replace(version=2)
        return 2

    def template(self, name: str, /) -> lcm.Template | None:
        return None

    def sessions(self, worker_id: str, /) -> list[lcm.Session]:
        return []

    def hand_back_session(self, session_id: str, /) -> None: ...

    def retry_session(self, session_id: str, attempt: int, /) -> None: ...

    def terminate_session(self, session_id: str, reason: str, /) -> None: ...

    def discovery_settings(self) -> dict[str, Any] | None:
        return self.settings

    @property
    def gone(self) -> list[str]:
        return [worker.id for worker in self.rows.values() if worker.status == "terminated"]


FILTER = {"WORKER_DISCOVERY_AMI_FILTER": "cisco-cml2.9*"}


def test_python_control_plane_is_collected() -> None:
    with FakeCloud(scenario="orphans", control_plane="extended") as cloud:
        records = Records(*cloud.workers())
        report = lcm.collect_orphans(clients=cloud.clients(FILTER, control_plane=records))
        assert report.terminated == GONE == tuple(records.gone)
        # Events go to the fake control plane, because only the records are replaced.
        assert {request["operation"] for request in cloud.requests(service="control-plane")} == {"publish_event"}


def test_unfiltered_discovery_verifies_records_by_id(fake_cloud: FakeCloud) -> None:
    fake_cloud.run()
    records = Records(*fake_cloud.workers())
    report = lcm.collect_orphans(clients=fake_cloud.clients(control_plane=records))
    assert (report.terminated, report.regions[0].imported) == (GONE, 0)


def test_disabled_discovery_is_refused(fake_cloud: FakeCloud) -> None:
    records = Records(*fake_cloud.workers())
    clients = fake_cloud.clients(control_plane=records)
    records.settings = {"enabled": False, "regions": ["us-east-1"], "ami_name_pattern": "*"}
    assert "discovery is switched off in the control plane's settings" in str(lcm.collect_orphans(clients=clients))
    assert records.gone == [] and fake_cloud.count("DescribeInstances") == 0


@pytest.mark.parametrize("ending", ["cancel", "timeout"])
def test_interrupted_run_finishes_only_pending_writes(fake_cloud: FakeCloud, ending: str) -> None:
    records = Records(*fake_cloud.workers())
    records.held = True
    clients = fake_cloud.clients(FILTER, control_plane=records)

    async def story() -> None:
        # The scan takes far less than that.
        limit = 5 if ending == "timeout" else None
        task = asyncio.create_task(lcm.collect_orphans_async(clients=clients, timeout=limit))
        assert await asyncio.to_thread(records.writing.wait, 60)
        if ending == "cancel":
            task.cancel()
        with pytest.raises(asyncio.CancelledError if ending == "cancel" else TimeoutError):
            await task
        records.held = False
        async with asyncio.timeout(60):
            while not records.gone or len(records.gone) < len(records.begun):
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)

    asyncio.run(story())
    # Records are written in batches.
    assert "w-04" in records.gone and sorted(records.begun) == records.gone
    assert set(records.gone) < set(GONE)


def test_ctrl_c_interrupts_the_call(fake_cloud: FakeCloud) -> None:
    fake_cloud.inject({"kind": "latency", "seconds": 60, "on": "real"}, service="ec2")
    script = "import lcm; print('ready', flush=True); lcm.collect_orphans()"
    assert_ctrl_c_ends(script, fake_cloud.env)


def test_invalid_arguments_are_named(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    with pytest.raises(TypeError, match=r"regions is 'us-east-1'; accepted: a list of names"):
        lcm.collect_orphans(clients=lcm_clients, regions="us-east-1")
    with pytest.raises(TypeError, match=r"regions is \[7\]; accepted: a list of names"):
        lcm.collect_orphans(clients=lcm_clients, regions=[7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="regions is empty; accepted: at least one name"):
        lcm.collect_orphans(clients=lcm_clients, regions=[])
    with pytest.raises(ValueError, match=r"timeout is .*; accepted: seconds from 0 up"):
        lcm.collect_orphans(clients=lcm_clients, timeout=timedelta(seconds=-1))
    with pytest.raises(TypeError, match=r"clients is a str; accepted: lcm.Clients or None"):
        asyncio.run(lcm.collect_orphans_async(clients="mine"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"policy is a dict; accepted: lcm.Policy or None"):
        lcm.collect_orphans(clients=lcm_clients, policy={})  # type: ignore[arg-type]


def test_blocking_the_loop_of_the_ports_is_refused(fake_cloud: FakeCloud) -> None:
    async def story() -> None:
        clients = fake_cloud.clients(FILTER, control_plane=Records(*fake_cloud.workers()))
        await lcm.collect_orphans_async(clients=clients, dry_run=True)
        with pytest.raises(RuntimeError, match=r"use `await lcm.collect_orphans_async"):
            lcm.collect_orphans(clients=clients)

    asyncio.run(story())
