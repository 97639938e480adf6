"""Reconciles of one worker from Python, over real sockets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
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
    worker = add_running(fake_cloud, status="stopping", desired_status="stopped")
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


def test_worker_is_read_before_clients_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CML_PORT", "many")
    refusal = "worker is 'w-1'; accepted: an lcm.Worker, or its record as a dict, a dataclass or a pydantic model"
    with pytest.raises(TypeError, match=refusal):
        lcm.reconcile("w-1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=refusal):
        asyncio.run(lcm.reconcile_async("w-1"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=refusal):
        lcm.drain("w-1", reason="new image", requested_by="alice")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=refusal):
        asyncio.run(lcm.cancel_drain_async("w-1", reason="class", cancelled_by="bob"))  # type: ignore[arg-type]
    with pytest.raises(lcm.ConfigError):
        lcm.reconcile(lcm.Worker("w-1", "terminated"))


def test_missing_credentials_are_one_sentence(fake_cloud: FakeCloud) -> None:
    script = """
import os, lcm
worker = lcm.Worker("w-1", "running", ec2_instance_id="i-1", aws_region="us-east-1")
result = lcm.reconcile(worker)
print(result.outcome, result.error.kind, result.error, sep="|")
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    given = {name: value for name, value in fake_cloud.env.items() if name.endswith(("_URL", "_CONFIGS"))}
    # The metadata service is where nothing listens.
    metadata = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9", "HOME": "/nonexistent"}
    env = {**kept, **given, **metadata}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=100)
    outcome, kind, error = run.stdout.strip().split("|")
    assert (run.returncode, outcome, kind) == (0, "retry", "refused_for_now"), run.stderr
    assert error.startswith("no AWS credentials: neither AWS_ACCESS_KEY_ID, nor the profile of AWS_PROFILE, nor ")
    assert "err=" not in run.stderr and "{" not in run.stderr


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
    workers = [add_running(fake_cloud, f"w-{n}", status="stopping", desired_status="stopped") for n in range(8)]
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


class JsonFormatter(logging.Formatter):
    """Writes a record with all attributes that it has beyond those of every record."""

    ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({name: value for name, value in vars(record).items() if name not in self.ORDINARY})


def test_fields_are_attributes_of_the_records(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("lcm.reconcile")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        worker = add_running(fake_cloud, status="stopped")
        lcm.reconcile(worker, clients=lcm_clients)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    [change] = [json.loads(line) for line in text.getvalue().splitlines()]
    assert change == {
        "worker": "w-1",
        "instance": worker.ec2_instance_id,
        "from": "stopped",
        "to": "running",
        "reason": "unexpected_restart",
        "effects": "",
        "fields": "ec2_account_id, ip_address, private_ip, public_ip",
    }


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


def test_workers_are_drained_and_drains_are_canceled() -> None:
    with FakeCloud(control_plane="extended") as cloud:
        assert_workers_are_drained_and_drains_are_canceled(cloud, cloud.clients())


def test_original_control_plane_cannot_cancel_a_drain(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, desired_status="running")
    fake_cloud.add_session(id="s-1", worker_id="w-1", status="running")
    assert lcm.drain(worker, reason="new image", requested_by="alice", clients=lcm_clients).to_status == "draining"
    for _ in range(2):
        with pytest.raises(lcm.PortError, match="request the desired status 'running'") as raised:
            lcm.cancel_drain(worker, reason="class goes on", cancelled_by="bob", clients=lcm_clients)
        assert raised.value.kind is lcm.FailureKind.NOT_SUPPORTED
    assert (fake_cloud.worker("w-1").status, fake_cloud.worker("w-1").desired_status) == ("draining", "stopped")
    fake_cloud.update_worker("w-1", desired_status="running")
    back = lcm.reconcile(fake_cloud.worker("w-1"), clients=lcm_clients)
    assert (back.to_status, fake_cloud.sessions()[0].status) == ("running", "running"), str(back)


def assert_workers_are_drained_and_drains_are_canceled(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, desired_status="running")
    drained = lcm.drain(worker, reason="new image", requested_by="alice", clients=lcm_clients)
    assert (drained.from_status, drained.to_status) == ("running", "draining")
    record = fake_cloud.worker("w-1")
    assert (record.status, record.desired_status) == ("draining", "stopped") and record.drain_started_at is not None
    with pytest.raises(lcm.InvalidTransition, match="worker w-1 is draining; only a running worker can be drained"):
        lcm.drain(worker, reason="-", requested_by="alice", clients=lcm_clients)

    async def cancel() -> lcm.ReconcileResult:
        return await lcm.cancel_drain_async(worker, reason="class goes on", cancelled_by="bob", clients=lcm_clients)

    assert asyncio.run(cancel()).to_status == "running"
    record = fake_cloud.worker("w-1")
    assert (record.status, record.desired_status, record.drain_started_at) == ("running", "running", None)
    published = {event["type"]: event["data"] for event in fake_cloud.events()}
    assert published["cml_worker.drain.started.v1"]["requested_by"] == "alice"
    assert published["cml_worker.drain.cancelled.v1"]["cancelled_by"] == "bob"
    with pytest.raises(lcm.InvalidTransition, match="only a draining worker has a drain to call off"):
        lcm.cancel_drain(worker, reason="-", cancelled_by="bob", clients=lcm_clients)
    with pytest.raises(lcm.PortError, match="worker w-9 does not exist"):
        lcm.drain(lcm.Worker("w-9", "running"), reason="-", requested_by="alice", clients=lcm_clients)


def test_reconcile_now_reads_the_record(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    add_running(fake_cloud, status="stopped")
    planned = lcm.reconcile_now("w-1", clients=lcm_clients, dry_run=True)
    assert (planned.to_status, fake_cloud.worker("w-1").status) == ("running", "stopped")

    async def now() -> lcm.ReconcileResult:
        return await lcm.reconcile_now_async("w-1", clients=lcm_clients)

    assert asyncio.run(now()).to_status == "running"
    assert lcm.reconcile_now("w-1", clients=lcm_clients).from_status == "running"


def test_explanation_changes_nothing(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    worker = add_running(fake_cloud, status="stopped")
    explanation = lcm.explain("w-1", clients=lcm_clients)
    assert (explanation.plan.dry_run, explanation.plan.to_status, explanation.record["id"]) == (True, "running", "w-1")
    assert explanation.observed["instance"].startswith(f"{worker.ec2_instance_id} is running"), str(explanation)
    assert str(explanation).splitlines()[0] == str(explanation.plan)
    assert fake_cloud.worker("w-1").status == "stopped"


def test_explanation_takes_a_record(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    wanted = add_running(fake_cloud, desired_status="running").replace(desired_status="stopped")

    async def explained() -> lcm.Explanation:
        return await lcm.explain_async(wanted, clients=lcm_clients)

    explanation = asyncio.run(explained())
    assert (explanation.plan.to_status, explanation.record["desired_status"]) == ("stopping", "stopped")
    assert "the desired status were running" in {what_if["if"] for what_if in explanation.what_if}


@pytest.mark.parametrize("operation", [lcm.reconcile_now, lcm.explain])
def test_operations_name_a_missing_worker(
    operation: Callable[..., object], fake_cloud: FakeCloud, lcm_clients: lcm.Clients
) -> None:
    with pytest.raises(lcm.PortError, match="worker w-9 does not exist"):
        operation("w-9", clients=lcm_clients)


def test_explanations_survive_json_and_pickle(fake_cloud: FakeCloud, lcm_clients: lcm.Clients) -> None:
    add_running(fake_cloud)
    explanation = lcm.explain("w-1", clients=lcm_clients)
    shown = json.loads(json.dumps(explanation.to_dict()))
    assert (shown["plan"]["worker_id"], shown["at"][:2]) == ("w-1", "20")
    assert pickle.loads(pickle.dumps(explanation)) == explanation
