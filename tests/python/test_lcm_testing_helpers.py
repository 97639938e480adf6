"""Waiting, assertions, names, scenarios and the pytest marker of ``lcm.testing``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import lcm
import pytest
from lcm.testing import FakeCloud

ONE_WORKER: dict[str, Any] = {
    "fleet": [{"name": "blue", "state": "running"}],
    "workers": [{"id": "w-1", "name": "one", "status": "running", "instance": "blue"}],
}


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    """A cloud with the worker w-1, named one, on the instance blue."""
    with FakeCloud(scenario=ONE_WORKER) as cloud:
        yield cloud


def describe(cloud: FakeCloud, **arguments: Any) -> None:
    keys = {"aws_access_key_id": "fake", "aws_secret_access_key": "fake"}
    url = cloud.env["AWS_ENDPOINT_URL"]
    boto3.client("ec2", region_name="us-east-1", endpoint_url=url, **keys).describe_instances(**arguments)


def run_pytest(directory: Path, test: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = directory / "test_mine.py"
    path.write_text(textwrap.dedent(test))
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments, str(path)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100)


def test_fail_next_fails_one_reconcile_with_its_retries(cloud: FakeCloud) -> None:
    clients = cloud.clients()
    cloud.fail_next("DescribeInstances")
    outcomes = [lcm.reconcile(cloud.worker("w-1"), clients=clients).outcome for _ in range(2)]
    assert outcomes[0] is lcm.Outcome.RETRY and outcomes[1] is not lcm.Outcome.RETRY
    assert cloud.count("DescribeInstances", code="RequestLimitExceeded") == 3


def test_fail_next_per_attempt_is_survived_by_a_retry(cloud: FakeCloud) -> None:
    cloud.fail_next("DescribeInstances", per="attempt")
    assert lcm.reconcile(cloud.worker("w-1"), clients=cloud.clients()).outcome is not lcm.Outcome.RETRY
    cloud.assert_called("DescribeInstances", code="RequestLimitExceeded", times=1)


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda cloud: cloud.fail_next("DescribeInstance"), "did you mean 'DescribeInstances'?"),
        (lambda cloud: cloud.count("RunInstnaces"), "did you mean 'RunInstances'?"),
        (lambda cloud: cloud.requests(servce="ec2"), "did you mean 'service'?"),
        (lambda cloud: cloud.assert_called("get_wroker"), "did you mean 'get_worker'?"),
        (lambda cloud: cloud.inject({"kind": "eror", "code": "X"}), "did you mean 'error'?"),
        (lambda cloud: cloud.update_worker("w-1", desired_stauts="stopped"), "did you mean 'desired_status'?"),
        (lambda cloud: cloud.update_worker("w-1", status="stoped"), "did you mean 'stopped'?"),
        (lambda cloud: cloud.add_worker(id="w-2", template_name="metl"), "did you mean 'metal'?"),
        (lambda cloud: cloud.worker("w-l"), "did you mean 'w-1'?"),
        (lambda cloud: cloud.stop_instance("bleu"), "did you mean 'blue'?"),
        (lambda cloud: cloud.inject({"kind": "reset"}, instance="bleu"), "did you mean 'blue'?"),
        (lambda cloud: cloud.inject({"kind": "reset"}, region="us-esat-1"), "did you mean 'us-east-1'?"),
        (lambda cloud: cloud.requests(subject="bleu"), "did you mean 'blue'?"),
        (lambda cloud: cloud.requests(region="us-esat-1"), "did you mean 'us-east-1'?"),
        (lambda cloud: cloud.count(subject="on"), "no instance, worker, session or template 'on'"),
        (lambda cloud: cloud.assert_not_called("StopInstances", subject="bleu"), "did you mean 'blue'?"),
        (lambda cloud: cloud.assert_worker("one", statsu="running"), "did you mean 'status'?"),
    ],
)
def test_typing_error_is_refused_with_what_was_meant(
    cloud: FakeCloud, mistake: Callable[[FakeCloud], Any], hint: str
) -> None:
    with pytest.raises((lcm.FakeCloudError, AssertionError)) as raised:
        mistake(cloud)
    assert hint in str(raised.value)


def test_verbs_take_names_of_instances_and_workers(cloud: FakeCloud) -> None:
    cloud.stop_instance("blue")
    cloud.advance(60)
    cloud.start_instance("one")
    cloud.tag("w-1", "team", "a")
    cloud.set_metric(cloud.worker("one"), "CPUUtilization", 12)
    blue = cloud.instance("blue")
    assert blue is not None and (blue.state, blue.tags["team"]) == ("pending", "a")
    assert cloud.update_worker("one", desired_status="stopped").id == "w-1"
    assert cloud.drain("one").status == "draining"


def test_worker_stands_for_its_instance_in_faults_and_filters(cloud: FakeCloud) -> None:
    blue = cloud.instance("blue")
    assert blue is not None
    describe_one = {"InstanceIds": [blue.id]}
    cloud.inject({"kind": "error", "code": "InternalError"}, operation="DescribeInstances", instance="one", times=3)
    with pytest.raises(Exception, match="InternalError"):
        describe(cloud, **describe_one)
    for subject in ("one", "w-1", "blue", blue.id):
        cloud.assert_called("DescribeInstances", subject=subject, times=3)
    # Ids are accepted as they are, because they may be of resources that are gone.
    for subject in ("i-0123456789abcdef0", "w-99", "/workers/x"):
        cloud.assert_not_called("StopInstances", subject=subject)


def test_until_returns_the_value(cloud: FakeCloud) -> None:
    assert cloud.until(lambda: cloud.worker("w-1").status) is lcm.WorkerStatus.RUNNING


def test_until_says_what_it_last_saw(cloud: FakeCloud) -> None:
    with pytest.raises(TimeoutError) as raised:
        cloud.until(lambda: cloud.worker("w-1").status == "stopped", timeout=0.05)
    report = str(raised.value)
    assert "not true within 0.05 s; last value: False" in report
    assert "w-1 running" in report and "'blue' running" in report and "no latest requests" in report


def test_until_waits_for_a_worker_that_does_not_exist_yet(cloud: FakeCloud) -> None:
    begun = time.monotonic()

    def status() -> str:
        if time.monotonic() - begun > 0.1 and len(cloud.workers()) == 1:
            cloud.add_worker(id="late", status="stopped")
        return cloud.worker("late").status

    assert cloud.until(status) == "stopped"
    with pytest.raises(TimeoutError, match="last value: FakeCloudError: no worker with id or name"):
        cloud.until(lambda: cloud.worker("never"), timeout=0.02)


def test_until_async_lets_other_tasks_run(cloud: FakeCloud) -> None:
    async def story() -> str:
        async def stop_later() -> None:
            await asyncio.sleep(0.05)
            cloud.update_worker("w-1", status="stopped")

        async def is_stopped() -> bool:
            return cloud.worker("w-1").status == "stopped"

        later = asyncio.create_task(stop_later())
        await cloud.until_async(is_stopped)
        await later
        with pytest.raises(TimeoutError, match="last value: False"):
            await cloud.until_async(lambda: False, timeout=0.02)
        return await cloud.until_async(lambda: cloud.worker("w-1").status)

    assert asyncio.run(story()) == "stopped"


def test_assert_called_counts_requests(cloud: FakeCloud) -> None:
    cloud.assert_not_called("DescribeInstances")
    describe(cloud)
    cloud.assert_called("DescribeInstances")
    cloud.assert_called("DescribeInstances", times=1, service="ec2", region="us-east-1")
    with pytest.raises(AssertionError, match=r"DescribeInstances: expected 2, made 1\nlatest 1 of 1 requests:\n  \d"):
        cloud.assert_called("DescribeInstances", times=2)


def test_assert_worker_reports_every_difference(cloud: FakeCloud) -> None:
    assert cloud.assert_worker("one", status="running").id == "w-1"
    with pytest.raises(AssertionError) as raised:
        cloud.assert_worker("one", status="stopped", name="two")
    assert "status: expected stopped, is running\n  name: expected two, is one" in str(raised.value)


def test_timeline_of_a_scenario_follows_the_clock() -> None:
    steps = [{"at": "5m", "stop": "blue"}, {"at": "10m", "worker": {"id": "w-1", "desired_status": "stopped"}}]
    with FakeCloud(scenario={**ONE_WORKER, "timeline": steps}) as cloud:
        cloud.advance(299)
        assert [seen.state for seen in cloud.instances()] == ["running"]
        cloud.advance(2)
        assert [seen.state for seen in cloud.instances()] == ["stopping"]
        cloud.advance(300)
        cloud.assert_worker("w-1", desired_status="stopped")


def test_mistake_in_a_scenario_is_named() -> None:
    steps = [{"at": "5m", "stop": "bleu"}]
    with pytest.raises(lcm.FakeCloudError, match=r"scenario: timeline\[0\]: no instance .* did you mean 'blue'"):
        FakeCloud(scenario={**ONE_WORKER, "timeline": steps}).start()


QUICK = {"INITIAL_DELAY": "0", "STARTUP_RECONCILE_DELAY": "0", "WORKER_DISCOVERY_ENABLED": "0", "LEASE_TTL": "15"}


@pytest.mark.parametrize(("leases", "kept"), [("wall", True), ("world", False)])
def test_moved_clock_ends_leases_on_the_clock_of_the_world_only(leases: Any, kept: bool) -> None:
    async def story() -> bool:
        async with FakeCloud(leases=leases) as cloud, lcm.Controller(cloud.clients(QUICK)) as controller:
            await asyncio.wait_for(controller.ready(), 60)
            cloud.advance(3600)
            granted = cloud.count("LeaseGrant")
            try:
                await cloud.until_async(lambda: cloud.count("LeaseGrant") > granted, timeout=3 if kept else 60)
            except TimeoutError:
                return True
            return False

    assert asyncio.run(story()) is kept


def test_unknown_lease_clock_is_refused() -> None:
    unknown: Any = "lunar"
    with pytest.raises(lcm.FakeCloudError, match="invalid lease clock 'lunar': expected 'world', 'wall' or 'auto'"):
        FakeCloud(leases=unknown).start()


def test_marker_configures_the_fixture(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        """
        import pytest

        pytestmark = pytest.mark.fake_cloud(clock="real", control_plane="extended")

        @pytest.mark.fake_cloud(scenario="drain", clock="manual")
        def test_mine(fake_cloud):
            began = fake_cloud.now
            assert fake_cloud.endpoints["control_plane_generation"] == "extended"
            assert len(fake_cloud.workers()) == 2 and fake_cloud.now == began
        """,
        "--strict-markers",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_unknown_option_of_the_marker_is_refused(tmp_path: Path) -> None:
    test = """
        import pytest

        @pytest.mark.fake_cloud(scenaro="drain")
        def test_mine(fake_cloud): ...
        """
    done = run_pytest(tmp_path, test)
    assert done.returncode == 1
    assert "unknown option 'scenaro' of @pytest.mark.fake_cloud" in done.stdout
    assert "did you mean 'scenario'?" in done.stdout


def test_report_of_a_failed_test_has_the_requests(tmp_path: Path) -> None:
    test = """
        import lcm

        def test_fails(fake_cloud, lcm_clients):
            worker = fake_cloud.add_worker(id="w-1", status="running", ec2_instance_id=fake_cloud.run().id)
            lcm.reconcile(worker, clients=lcm_clients)
            assert False

        def test_passes(fake_cloud):
            fake_cloud.run()
        """
    done = run_pytest(tmp_path, test)
    assert done.returncode == 1
    assert done.stdout.count("requests to fake_cloud") == 1
    section = done.stdout.partition("requests to fake_cloud")[2]
    assert "ec2            DescribeInstances" in section, done.stdout
