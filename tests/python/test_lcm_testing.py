"""The fake cloud of ``lcm.testing``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import boto3
import lcm
import pytest
from lcm.testing import FakeCloud, crash


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """The fake cloud of the package instead of the command's."""
    with FakeCloud() as cloud:
        yield cloud


def test_instances_follow_the_fake_clock(fake_cloud: FakeCloud) -> None:
    began = fake_cloud.now
    instance = fake_cloud.run(tags={"team": "blue"})
    assert instance.state is lcm.Ec2State.PENDING and instance.tags == {"team": "blue"}
    fake_cloud.advance(timedelta(minutes=1))
    assert (fake_cloud.now - began) == timedelta(minutes=1)
    fake_cloud.tag(instance, "lcm:protect", "yes")
    running = fake_cloud.instance(instance)
    assert running is not None and running.state is lcm.Ec2State.RUNNING and running.tags["lcm:protect"] == "yes"
    fake_cloud.stop_instance(instance)
    fake_cloud.advance(600)
    fake_cloud.start_instance(instance.id)
    fake_cloud.terminate(instance.id)
    fake_cloud.advance(7200)
    assert fake_cloud.instances() == [] and fake_cloud.instance(instance) is None


def test_boto3_and_etcd_clients_connect(fake_cloud: FakeCloud) -> None:
    fake_cloud.run()
    ec2 = boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=fake_cloud.env["AWS_ENDPOINT_URL"],
        aws_access_key_id="fake",
        aws_secret_access_key="fake",
    )
    assert len(ec2.describe_instances()["Reservations"]) == 1
    assert fake_cloud.count("DescribeInstances") == 1
    assert fake_cloud.requests(service="ec2")[0]["operation"] == "DescribeInstances"
    fake_cloud.forget_requests()
    assert fake_cloud.requests() == []


def test_records_and_sessions_are_in_the_control_plane(fake_cloud: FakeCloud) -> None:
    fake_cloud.add_template(name="tiny", instance_type="m5.large")
    worker = fake_cloud.add_worker(id="w-1", status="running", template_name="tiny")
    assert isinstance(worker, lcm.Worker) and worker.template_name == "tiny"
    changed = fake_cloud.update_worker("w-1", desired_status="stopped")
    assert changed.desired_status is lcm.DesiredStatus.STOPPED and changed.version is None
    assert fake_cloud.workers() == [fake_cloud.worker("w-1")]
    session = fake_cloud.add_session(id="s-1", worker_id="w-1", status="running")
    assert fake_cloud.sessions() == [session] and session.worker_id == "w-1"
    fake_cloud.reset(empty=True)
    assert fake_cloud.workers() == []


def test_operator_can_start_and_cancel_a_drain() -> None:
    with FakeCloud(control_plane="extended") as cloud:
        assert_drain_is_started_and_canceled(cloud)


def assert_drain_is_started_and_canceled(fake_cloud: FakeCloud) -> None:
    worker = fake_cloud.add_worker(id="w-1", status="running", desired_status="running")
    session = fake_cloud.add_session(id="s-1", worker_id="w-1", status="running")
    drained = fake_cloud.drain(worker, reason="new image", requested_by="alice")
    assert (drained.status, drained.desired_status) == ("draining", "stopped")
    assert drained.drain_started_at is not None and abs(drained.drain_started_at - fake_cloud.now) < timedelta(
        seconds=1
    )
    back = fake_cloud.cancel_drain("w-1", reason="class goes on", cancelled_by="bob")
    assert (back.status, back.desired_status, back.drain_started_at) == ("running", "running", None)
    published = {event["type"]: event["data"] for event in fake_cloud.events()}
    assert published["cml_worker.drain.started.v1"]["requested_by"] == "alice"
    assert published["cml_worker.drain.cancelled.v1"] == {"cancelled_by": "bob", "reason": "class goes on"}
    assert fake_cloud.move_session(session, "stopped").status == "stopped"
    assert fake_cloud.sessions()[0].status == "stopped" and fake_cloud.count() == 0


def test_original_control_plane_cannot_cancel_a_drain(fake_cloud: FakeCloud) -> None:
    fake_cloud.add_worker(id="w-1", status="running", desired_status="running")
    assert fake_cloud.drain("w-1").status == "draining"
    with pytest.raises(lcm.FakeCloudError, match="cannot cancel a drain; set the desired status to running"):
        fake_cloud.cancel_drain("w-1")
    assert fake_cloud.worker("w-1").status == "draining"


def test_crashed_controller_keeps_its_lease_until_expiry() -> None:
    quick = {
        "INITIAL_DELAY": "0",
        "STARTUP_RECONCILE_DELAY": "0",
        "LEASE_MARGIN": "0.5",
        "WORKER_DISCOVERY_ENABLED": "0",
    }

    async def story() -> float:
        async with FakeCloud(clock="real") as cloud:
            first = lcm.Controller(cloud.clients({**quick, "LEASE_TTL": "2"}))
            running = asyncio.create_task(first.run())
            await asyncio.wait_for(first.ready(), 60)
            renewed = time.monotonic()
            crash(first)
            await asyncio.wait_for(running, 10)
            async with lcm.Controller(cloud.clients({**quick, "LEASE_TTL": "30"})) as second:
                await asyncio.wait_for(second.ready(), 60)
            assert cloud.count("LeaseRevoke") == 1, "only the second released its lease"
            return time.monotonic() - renewed

    assert asyncio.run(story()) > 1, "there is no leader before the lease has expired"


def test_crash_of_a_stopped_controller_has_no_effect(fake_cloud: FakeCloud) -> None:
    crash(lcm.Controller(fake_cloud.clients()))


def test_invalid_requests_are_explained(fake_cloud: FakeCloud) -> None:
    for refused, message in (
        (lambda: fake_cloud.worker("w-none"), "w-none"),
        (lambda: fake_cloud.terminate("i-none"), "i-none"),
        (lambda: fake_cloud.inject({"kind": "error", "code": "X"}, times=0), "times must be at least 1"),
        (lambda: fake_cloud.inject({"kind": "tantrum"}), "unknown variant `tantrum`"),  # type: ignore[misc, arg-type]
        (lambda: fake_cloud.requests(color="red"), "unknown field `color`"),
        (lambda: fake_cloud.advance(-1), "seconds must be a number from 0 up"),
        (lambda: FakeCloud(clock="sundial").start(), "invalid clock pace 'sundial'"),
        (lambda: FakeCloud(scenario="no-such").start(), "no-such"),
        (lambda: FakeCloud().run(), "the fake cloud is not running; use it with"),
        (fake_cloud.start, "the fake cloud is already running"),
        (lambda: fake_cloud.drain("w-stopped"), "w-stopped"),
        (lambda: fake_cloud.cancel_drain("w-none"), "w-none"),
        (lambda: fake_cloud.move_session("s-none", "stopped"), "s-none"),
    ):
        with pytest.raises(lcm.FakeCloudError) as raised:
            refused()
        assert message in str(raised.value)


def test_two_fake_clouds_share_no_state() -> None:
    async def story() -> None:
        async with FakeCloud() as one, FakeCloud(seed=1) as other:
            one.add_worker(id="w-1", status="pending")
            assert len(one.workers()) == 1 and other.workers() == []
            assert one.endpoints["aws_url"] != other.endpoints["aws_url"]

    asyncio.run(story())


def test_stopped_fake_cloud_can_be_started_again() -> None:
    cloud = FakeCloud()
    with cloud:
        url = cloud.endpoints["aws_url"]
    cloud.stop()
    assert repr(cloud) == "<FakeCloud, not running>"
    with cloud:
        assert cloud.endpoints["aws_url"] != url


def test_fixtures_are_installed_with_the_package(tmp_path: Path) -> None:
    test = tmp_path / "test_mine.py"
    test.write_text(
        textwrap.dedent(
            """
            import lcm

            def test_mine(fake_cloud, lcm_clients):
                instance = fake_cloud.run()
                fake_cloud.advance(60)
                worker = fake_cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id)
                assert lcm.reconcile(worker, clients=lcm_clients).to_status == "running"
                assert fake_cloud.worker("w-1").status == "running"
            """
        )
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(("chosen", "generation"), [("original",) * 2, ("extended",) * 2, (None, "original")])
def test_control_plane_has_the_chosen_generation(
    chosen: Literal["original", "extended"] | None, generation: str
) -> None:
    with (
        FakeCloud(control_plane=chosen) as cloud,
        urllib.request.urlopen(f"{cloud.endpoints['admin_url']}state", timeout=30) as response,
    ):
        assert json.load(response)["control_plane"] == {"generation": generation}
        assert cloud.endpoints["control_plane_generation"] == generation


def test_unknown_generation_is_rejected() -> None:
    expected = "invalid control plane generation 'current': expected 'original' or 'extended'"
    unknown: Any = "current"
    with pytest.raises(lcm.FakeCloudError, match=expected):
        FakeCloud(control_plane=unknown).start()
