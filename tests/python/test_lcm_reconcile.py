"""Reconciles of one worker from Python, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lcm
import pytest
from controller_helpers import assert_ctrl_c_ends
from lcm.testing import FakeCloud


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """The fake cloud of the package instead of the command's."""
    with FakeCloud() as cloud:
        yield cloud


def add_running(cloud: FakeCloud, id: str = "w-1", **fields: Any) -> lcm.Worker:
    instance = cloud.run(tags={"lcm:worker_id": id})
    cloud.advance(60)
    known = {"status": "running", "ec2_instance_id": instance.id, "aws_region": "us-east-1"}
    return cloud.add_worker(id=id, **{**known, **fields})


def run_python(script: str, cloud: FakeCloud | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(cloud.env if cloud else {})}
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_pending_worker_is_launched(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.add_template(name="metal", instance_type="m5zn.metal")
    fake_cloud.add_worker(id="w-1", status="pending", template_name="metal", aws_region="us-east-1")
    launched = lcm.reconcile(fake_cloud.worker("w-1"), clients=lcm_clients)
    assert (launched.outcome, launched.to_status) == (lcm.Outcome.SUCCESS, lcm.WorkerStatus.PROVISIONING)
    assert [effect.result.value for effect in launched.effects] == ["done", "launched"]
    instance = fake_cloud.instances()[0]
    assert launched.effects[1].ec2_instance_id == instance.id == fake_cloud.worker("w-1").ec2_instance_id
    assert instance.tags["lcm:worker_id"] == "w-1"
    fake_cloud.advance(120)
    up = lcm.reconcile(fake_cloud.worker("w-1"), clients=lcm_clients)
    assert up.to_status is lcm.WorkerStatus.RUNNING
    assert fake_cloud.count("RunInstances") == 1


def test_dry_run_changes_nothing(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, status="stopping")
    plan = lcm.reconcile(worker, clients=lcm_clients, dry_run=True)
    assert plan.dry_run and [str(effect.result) for effect in plan.effects] == ["planned"]
    assert fake_cloud.count("StopInstances") == 0 and fake_cloud.worker("w-1") == worker


def test_failed_call_is_a_result_without_an_exception(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, status="stopping")
    fake_cloud.fail_next("DescribeInstances", times=9)
    result = lcm.reconcile(worker, clients=lcm_clients)
    assert result.outcome is lcm.Outcome.RETRY and result.to_status is lcm.WorkerStatus.STOPPING
    assert result.error is not None
    assert (result.error.kind, result.error.code) == (lcm.FailureKind.THROTTLED, "RequestLimitExceeded")
    assert pickle.loads(pickle.dumps(result)) == result and hash(result)
    assert json.loads(json.dumps(result.to_dict()))["error"]["code"] == "RequestLimitExceeded"
    assert "retry" in result._repr_html_()


def test_clients_default_to_the_environment(fake_cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = fake_cloud.run()
    fake_cloud.advance(60)
    worker = fake_cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id, aws_region="us-east-1")
    for name, value in fake_cloud.env.items():
        monkeypatch.setenv(name, value)
    assert lcm.reconcile(worker.to_dict()).to_status is lcm.WorkerStatus.RUNNING
    monkeypatch.setenv("CML_PORT", "many")
    with pytest.raises(lcm.ConfigError, match='CML_PORT="many" is not accepted; accepted: a whole number from 1'):
        lcm.reconcile(worker)


def test_invalid_arguments_are_named(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = lcm.Worker("w-1", "terminated")
    with pytest.raises(TypeError, match=r"clients is a dict; accepted: lcm.Clients or None"):
        lcm.reconcile(worker, clients={})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"policy is a str; accepted: lcm.Policy or None"):
        lcm.reconcile(worker, clients=lcm_clients, policy="default")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"timeout is .*; accepted: seconds from 0 up"):
        lcm.reconcile(worker, clients=lcm_clients, timeout=-1)
    with pytest.raises(TypeError, match="the setting 'CML_PORT' is a int; accepted: text"):
        lcm.Clients({"CML_PORT": 443})  # type: ignore[dict-item]
    with pytest.raises(lcm.InvalidRecord, match="asleep"):
        lcm.reconcile({"id": "w-1", "status": "asleep"}, clients=lcm_clients)


def test_policy_keeps_the_regions_of_the_settings(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    fake_cloud.add_template(name="metal", instance_type="m5zn.metal")
    worker = fake_cloud.add_worker(id="w-1", status="pending", template_name="metal")
    plan = lcm.reconcile(worker, clients=lcm_clients, policy=lcm.Policy(max_session_retries=1), dry_run=True)
    assert plan.to_status is lcm.WorkerStatus.PROVISIONING, str(plan)


def test_slow_reconcile_times_out(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, status="stopping")
    fake_cloud.inject({"kind": "latency", "seconds": 60, "on": "real"}, service="ec2")
    with pytest.raises(TimeoutError, match=r"the call took longer than 0.2 s"):
        lcm.reconcile(worker, clients=lcm_clients, timeout=0.2)
    with pytest.raises(TimeoutError):
        asyncio.run(lcm.reconcile_async(worker, clients=lcm_clients, timeout=0.2))


def test_threads_reconcile_concurrently(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    workers = [add_running(fake_cloud, f"w-{n}", status="stopping") for n in range(8)]
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda worker: lcm.reconcile(worker, clients=lcm_clients), workers))
    assert [result.worker_id for result in outcomes] == [worker.id for worker in workers]
    assert all(result.effects[0].result is lcm.EffectResult.DONE for result in outcomes)


def test_other_threads_run_during_a_reconcile(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, status="stopping")
    fake_cloud.inject({"kind": "latency", "seconds": 1, "on": "real"}, service="ec2", times=1)
    waiting = threading.Thread(target=lambda: lcm.reconcile(worker, clients=lcm_clients))
    waiting.start()
    turns = 0
    while waiting.is_alive():
        turns += 1
        time.sleep(0.01)
    assert turns > 5


def test_asyncio_reconciles_concurrently(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    workers = [add_running(fake_cloud, f"w-{n}", status="stopping") for n in range(5)]

    async def story() -> list[lcm.ReconcileResult]:
        return await asyncio.gather(*(lcm.reconcile_async(worker, clients=lcm_clients) for worker in workers))

    outcomes = asyncio.run(story())
    assert {result.worker_id for result in outcomes} == {f"w-{n}" for n in range(5)}
    with pytest.raises(lcm.InvalidRecord):
        asyncio.run(lcm.reconcile_async({"id": "w", "status": "asleep"}, clients=lcm_clients))


def test_canceled_reconcile_has_no_effect(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, status="stopping")
    fake_cloud.inject(
        {"kind": "latency", "seconds": 1, "on": "real"}, service="ec2", operation="DescribeInstances", times=1
    )

    async def story() -> None:
        task = asyncio.create_task(lcm.reconcile_async(worker, clients=lcm_clients))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Longer than the delayed response.
        await asyncio.sleep(1.5)

    asyncio.run(story())
    assert fake_cloud.count("StopInstances") == 0
    assert fake_cloud.worker("w-1").status is lcm.WorkerStatus.STOPPING


def test_records_reach_python_logging(
    fake_cloud: FakeCloud, lcm_clients: lcm.Clients, caplog: pytest.LogCaptureFixture
) -> None:
    instance = fake_cloud.run()
    fake_cloud.advance(60)
    worker = fake_cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id)
    caplog.set_level(logging.INFO, logger="lcm")
    lcm.reconcile(worker, clients=lcm_clients)
    logged = [record for record in caplog.records if record.name == "lcm.reconcile"]
    assert any("The instance was started from outside" in record.getMessage() for record in logged)


def test_changed_log_level_applies_to_the_next_reconcile(
    fake_cloud: FakeCloud, lcm_clients: lcm.Clients, caplog: pytest.LogCaptureFixture
) -> None:
    worker = fake_cloud.add_worker(id="w-1", status="failed")
    logger = logging.getLogger("lcm.reconcile")
    logged = []
    for level in (logging.WARNING, logging.DEBUG, logging.WARNING, logging.DEBUG):
        logger.setLevel(level)
        caplog.clear()
        lcm.reconcile(worker, clients=lcm_clients)
        logged.append(logger.name in {record.name for record in caplog.records})
    logger.setLevel(logging.NOTSET)
    assert logged == [False, True, False, True]


def test_forked_process_gets_a_fork_error(fake_cloud: FakeCloud) -> None:
    run = run_python(
        """
        import os, lcm
        from lcm.testing import FakeCloud

        with FakeCloud() as cloud:
            clients = cloud.clients()
            child = os.fork()
            if child == 0:
                for use in (lambda: lcm.reconcile(lcm.Worker("w", "stopped"), clients=clients), cloud.workers,
                            FakeCloud().start):
                    try:
                        use()
                    except lcm.ForkError as error:
                        print(str(error)[:26], flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["this process was forked af"] * 3


def test_ctrl_c_interrupts_the_call(fake_cloud: FakeCloud) -> None:
    worker = add_running(fake_cloud, status="stopping")
    fake_cloud.inject({"kind": "latency", "seconds": 60, "on": "real"}, service="ec2")
    script = f"import lcm; print('ready', flush=True); lcm.reconcile({worker.to_dict()!r})"
    assert_ctrl_c_ends(script, fake_cloud.env)


def test_process_exits_cleanly_with_open_clients(fake_cloud: FakeCloud) -> None:
    run = run_python(
        """
        import lcm
        from lcm.testing import FakeCloud
        cloud = FakeCloud(clock="real").start()
        print(lcm.reconcile(lcm.Worker("w-1", "terminated"), clients=cloud.clients()).outcome)
        """
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "skip\n", "")
