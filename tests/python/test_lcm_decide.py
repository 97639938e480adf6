"""Decisions from Python: inputs, results and errors."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections import ChainMap, OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import lcm
import lcm.enums
import numpy
import pytest
from lcm.values import FrozenMap

NOW = datetime(2026, 2, 6, 8, tzinfo=UTC)
RECORD: dict[str, Any] = {
    "id": "w-1",
    "status": "stopped",
    "desired_status": "running",
    "aws_instance_id": "i-1",
    "aws_region": "us-east-1",
    "cml_password": "hunter2",
    "license": {"status": "registered", "token": "s3cret", "seats": 5},
    "created_at": "2026-02-05T08:00:00Z",
    "metadata": {"team": "blue"},
    "rack": {"row": 9},
}


def test_worker_and_dict_have_the_same_decision() -> None:
    seen = lcm.Observation(ec2="stopped")
    from_dict = lcm.decide(RECORD, seen, now=NOW)
    from_worker = lcm.decide(lcm.Worker.from_dict(RECORD), seen, now=NOW)
    assert from_dict == from_worker
    assert from_dict.outcome is lcm.Outcome.SUCCESS
    assert (from_dict.from_status, from_dict.to_status) == (lcm.WorkerStatus.STOPPED, lcm.WorkerStatus.STARTING)
    assert from_dict.transition == lcm.Transition("stopped", "starting", "commanded", "desired running")
    assert [(effect.name, effect.result) for effect in from_dict.effects] == [
        (lcm.EffectName.START_INSTANCE, lcm.EffectResult.PLANNED)
    ]
    assert from_dict.effects[0].details == {"instance": "i-1"}


def test_worker_keeps_unknown_fields_and_hides_secrets() -> None:
    worker = lcm.Worker.from_dict(RECORD)
    assert worker.to_dict()["rack"] == {"row": 9}
    assert worker.license["seats"] == 5
    assert worker.created_at == datetime(2026, 2, 5, 8, tzinfo=UTC)
    shown = repr(worker) + str(worker) + json.dumps(worker.to_dict()) + repr(worker.license)
    assert "hunter2" not in shown and "s3cret" not in shown


def test_worker_is_an_immutable_value() -> None:
    worker = lcm.Worker.from_dict(RECORD)
    again = pickle.loads(pickle.dumps(worker))
    assert again == worker and hash(again) == hash(worker)
    assert copy.copy(worker) == copy.deepcopy(worker) == worker
    assert len({worker, again}) == 1
    assert worker != RECORD and worker != worker.replace(status="running")
    match worker:
        case lcm.Worker(id, lcm.WorkerStatus.STOPPED, lcm.DesiredStatus.RUNNING):
            assert id == "w-1"
        case _:
            pytest.fail("a worker matches by id, status and desired status")
    with pytest.raises(AttributeError):
        worker.status = lcm.WorkerStatus.RUNNING  # type: ignore[misc]


def test_unreadable_field_of_a_record_counts_as_absent() -> None:
    record = {**RECORD, "last_activity_check_at": 5, "license": {"pending_operation": "transfer"}}
    with pytest.warns(lcm.RecordWarning) as warned:
        worker = lcm.Worker.from_dict(record)
    assert worker.last_activity_check_at is None and worker.status is lcm.WorkerStatus.STOPPED
    assert [str(warning.message) for warning in warned] == list(worker.warnings)
    assert any('worker "w-1": field `last_activity_check_at` is 5; accepted: ' in text for text in worker.warnings)
    assert worker.to_dict()["last_activity_check_at"] == 5
    with pytest.warns(lcm.RecordWarning):
        decision = lcm.decide(record, lcm.Observation(ec2="stopped"), now=NOW)
    assert decision == lcm.decide(worker, lcm.Observation(ec2="stopped"), now=NOW)


def test_unreadable_argument_of_a_worker_is_refused() -> None:
    with pytest.raises(lcm.InvalidRecord, match='field `desired_status` is "asleep"'):
        lcm.Worker("w-1", "running", desired_status="asleep")  # type: ignore[arg-type]
    with pytest.raises(lcm.InvalidRecord, match="field `created_at` is 5"):
        lcm.Worker("w-1", "running").replace(created_at=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "meant"), [("desiredstatus", "desired_status"), ("ec2_instance", "ec2_instance_id")])
def test_misspelled_field_is_warned_about(field: str, meant: str) -> None:
    with pytest.warns(lcm.RecordWarning, match=f"field `{field}` is unknown .* probably meant: `{meant}`"):
        worker = lcm.Worker.from_dict({"id": "w-1", "status": "running", field: "stopped"})
    assert worker.to_dict()[field] == "stopped"


def test_instance_id_is_an_alias() -> None:
    assert lcm.Worker.from_dict({"id": "w-1", "status": "running", "instance_id": "i-1"}).ec2_instance_id == "i-1"


def test_whole_numbers_of_other_libraries_are_accepted() -> None:
    class Int64:
        """Like a numpy integer, which is no int."""

        def __init__(self, value: int) -> None:
            self.value = value

        def __index__(self) -> int:
            return self.value

    assert lcm.Worker("w-1", "running", version=Int64(7)).version == 7
    assert lcm.ScaleDownPolicy(min_workers=Int64(2)).min_workers == 2  # type: ignore[arg-type]


def test_replaced_field_is_validated() -> None:
    worker = lcm.Worker.from_dict(RECORD).replace(drain_started_at=NOW, status="draining", version=7)
    assert (worker.status, worker.drain_started_at, worker.version) == ("draining", NOW, 7)
    with pytest.raises(TypeError, match='a worker has no field "desired"; accepted: id, status, desired_status'):
        worker.replace(desired="running")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no field"):
        lcm.Worker("w-1", "running", desired="running")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        ({"id": "w-1", "status": "asleep"}, lcm.InvalidRecord, 'field `status` is "asleep"; accepted: pending, '),
        ({"status": "running"}, lcm.InvalidRecord, "field `id` is missing or empty; accepted: non-empty text"),
        ({"id": 7, "status": "running"}, lcm.InvalidRecord, "field `id` is 7; accepted: non-empty text"),
        (
            {"id": "w", "status": "running", "rack": {1, 2}},
            TypeError,
            'worker "w": field `rack` is a set; accepted: text, ',
        ),
        ({"id": "w", "status": "running", 3: 4}, TypeError, "worker has the key 3; accepted: text"),
        (
            {"id": "w", "status": "running", "x": float("nan")},
            ValueError,
            'worker "w": field `x` is NaN; accepted: a finite',
        ),
        ({"id": "w", "status": "running", "x": 2**80}, ValueError, 'worker "w": field `x` is too large a number'),
        ({"id": "w", "status": "running", "ec2_instance_id": 7}, lcm.InvalidRecord, "field `ec2_instance_id` is 7"),
        ({"id": "w", "status": "running", "created_at": datetime(2026, 2, 6)}, ValueError, "has no time zone"),
        (
            "w-1",
            TypeError,
            "worker is 'w-1'; accepted: an lcm.Worker, or its record as a dict",
        ),
        (
            None,
            TypeError,
            "worker is None; accepted: an lcm.Worker, or its record as a dict",
        ),
        (object(), TypeError, "worker is a object; accepted: "),
        (
            {"id": "w", "status": "running", "x": numpy.bool_(True)},
            TypeError,
            "field `x` is a numpy.bool; accepted: text",
        ),
    ],
)
def test_invalid_record_is_explained(record: Any, error: type[Exception], message: str) -> None:
    readers: list[Callable[[Any], object]] = [
        lcm.Worker.from_dict,
        lambda record: lcm.decide(record, lcm.Observation()),
        lambda record: lcm.initiate_drain(record, reason="maintenance", requested_by="alice"),
    ]
    for read in readers:
        with pytest.raises(error) as raised:
            read(record)
        assert message in str(raised.value)


def test_invalid_record_in_a_list_is_named_by_its_index() -> None:
    fleet = [RECORD, {**RECORD, "rack": {1, 2}}]
    readers: list[Callable[[Any], object]] = [
        lambda fleet: lcm.decide_many(fleet, "stopped"),
        lcm.eligible_workers,
        lambda fleet: lcm.find_orphans(fleet, [], region="us-east-1"),
    ]
    for read in readers:
        with pytest.raises(TypeError, match='worker "w-1": field `rack` is a set; accepted: text, a number'):
            read(fleet)
        with pytest.raises(TypeError, match=r"workers\[1\]: field `rack` is a set; accepted: text, a number"):
            read([RECORD, {"rack": {1, 2}}])
        with pytest.raises(lcm.InvalidRecord, match='worker "w-9": field `status` is 7; accepted: pending'):
            read([RECORD, {"id": "w-9", "status": 7}])


@pytest.mark.parametrize(
    "workers", [RECORD, lcm.Worker("w-1", "running"), "w-1", 3], ids=lambda given: type(given).__name__
)
def test_workers_must_be_a_list(workers: Any) -> None:
    readers: list[Callable[[], object]] = [
        lambda: lcm.decide_many(workers, "running"),
        lambda: lcm.find_orphans(workers, [], region="us-east-1"),
    ]
    for read in readers:
        with pytest.raises(TypeError, match=f"workers is a {type(workers).__name__}; accepted: a list of lcm.Worker"):
            read()


class Rack(StrEnum):
    BLUE = "blue"


class Text(str):
    __slots__ = ()


class OtherDelta(timedelta):
    """A duration whose parts mean something else, as of libraries that count months."""

    @property
    def days(self) -> int:
        return 0


class OtherDatetime(datetime):
    def __sub__(self, other: Any) -> Any:
        return OtherDelta(0)


@pytest.mark.parametrize(
    "record",
    [
        OrderedDict(RECORD),
        MappingProxyType(RECORD),
        ChainMap({}, RECORD),
        FrozenMap(RECORD),
        lcm.Worker.from_dict(RECORD),
        {Text(name): Text(value) if isinstance(value, str) else value for name, value in RECORD.items()},
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_of_other_classes_are_read_alike(record: Any) -> None:
    seen = lcm.Observation(ec2="stopped")
    expected = lcm.decide(RECORD, seen, now=NOW)
    assert lcm.decide(record, seen, now=NOW) == expected
    assert lcm.decide_many([record], seen, now=NOW)[0] == expected


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Rack.BLUE, "blue"),
        (numpy.float64(0.5), 0.5),
        (numpy.str_("blue"), "blue"),
        (True, True),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
        ((1, None), [1, None]),
        (lcm.Session("s-1", "running"), lcm.Session("s-1", "running").to_dict()),
        (NOW.astimezone(timezone(timedelta(hours=-8))), "2026-02-06T08:00:00Z"),
        (OtherDatetime(2026, 2, 6, 8, tzinfo=UTC), "2026-02-06T08:00:00Z"),
    ],
)
def test_value_of_an_unknown_field_is_kept(given: Any, kept: Any) -> None:
    assert lcm.Worker.from_dict({**RECORD, "rack": given}).to_dict()["rack"] == kept


def test_datetime_outside_the_calendar_overflows() -> None:
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    late = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))
    for moment in (early, late):
        with pytest.raises(OverflowError, match=f"now is {re.escape(str(moment))}; accepted: a datetime in the years"):
            lcm.decide(RECORD, lcm.Observation(ec2="stopped"), now=moment)
        with pytest.raises(OverflowError, match='worker "w-1": field `created_at` is '):
            lcm.Worker.from_dict({**RECORD, "created_at": moment})
    first = datetime(1, 1, 1, tzinfo=UTC)
    assert lcm.Worker.from_dict({**RECORD, "created_at": first}).created_at == first


def test_recursive_record_is_refused() -> None:
    record: dict[str, Any] = {"id": "w-1", "status": "running"}
    record["metadata"] = record
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        lcm.Worker.from_dict(record)


def test_naive_datetime_is_refused() -> None:
    with pytest.raises(ValueError, match="now is 2026-02-06 08:00:00, which has no time zone"):
        lcm.decide(RECORD, lcm.Observation(ec2="stopped"), now=datetime(2026, 2, 6, 8))
    with pytest.raises(TypeError, match="now is a str; accepted: a datetime with a time zone"):
        lcm.decide(RECORD, lcm.Observation(ec2="stopped"), now="2026-02-06")  # type: ignore[arg-type]
    elsewhere = NOW.astimezone(timezone(timedelta(hours=-8)))
    seen = lcm.Observation(ec2="stopped")
    assert lcm.decide(RECORD, seen, now=elsewhere) == lcm.decide(RECORD, seen, now=NOW)


def test_absent_differs_from_a_failed_call() -> None:
    running = {**RECORD, "status": "running"}
    gone = lcm.decide(running, lcm.Observation(ec2=lcm.ABSENT, account_proved=True), now=NOW)
    assert (gone.to_status, gone.reason.code) == (lcm.WorkerStatus.TERMINATED, lcm.ReasonCode.GONE)
    doubted = lcm.decide(running, lcm.Observation(ec2=lcm.ABSENT, account_proved=False), now=NOW)
    assert (doubted.outcome, doubted.reason.code) == (lcm.Outcome.RETRY, lcm.ReasonCode.REGION_NOT_TRUSTED)
    homeless = {key: value for key, value in running.items() if key != "aws_region"}
    lost = lcm.decide(homeless, lcm.Observation(ec2=lcm.ABSENT, account_proved=True), now=NOW)
    assert lost.reason.code is lcm.ReasonCode.REGION_UNKNOWN
    throttled = lcm.CallFailure("throttled", "slow down", "RequestLimitExceeded")
    unknown = lcm.decide(running, lcm.Observation(ec2=throttled), now=NOW)
    assert (unknown.to_status, unknown.outcome) == (lcm.WorkerStatus.RUNNING, lcm.Outcome.RETRY)
    assert "RequestLimitExceeded: slow down" in str(unknown.reason)
    not_asked = lcm.decide(running, lcm.Observation(), now=NOW)
    assert not_asked.reason.code is lcm.ReasonCode.NOT_OBSERVED


def test_record_without_instance_adopts_a_tagged_one() -> None:
    pending = {"id": "w-1", "status": "pending", "template_name": "metal"}
    adopted = lcm.decide(pending, lcm.Observation(ec2=lcm.Instance("running", id="i-7")), now=NOW)
    assert adopted.reason.code is lcm.ReasonCode.ADOPTED and adopted.changes["ec2_instance_id"] == "i-7"


def test_launch_plan_is_complete() -> None:
    region = lcm.RegionConfig("subnet-1", ("sg-1",), default_tags={"owner": "lab"})
    policy = lcm.Policy(default_region="us-east-1", regions={"us-east-1": region})
    seen = lcm.Observation(
        ec2=lcm.ABSENT,
        template=lcm.Template("metal", "m5zn.metal"),
        images=[lcm.Image("ami-1", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z")],
    )
    pending = {"id": "w-1", "status": "pending", "template_name": "metal"}
    decision = lcm.decide(pending, seen, policy=policy, now=NOW)
    assert [effect.name.value for effect in decision.effects] == ["record_launch_plan", "launch_instance"]
    plan = decision.effects[1].details["plan"]
    assert plan["subnet_id"] == "subnet-1" and plan["tags"]["lcm:worker_id"] == "w-1"
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert hash(decision) == hash(lcm.decide(pending, seen, policy=policy, now=NOW))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"ec2": "sleeping"}, "accepted: pending, running, stopping, stopped, shutting-down, terminated"),
        ({"ec2": {"state": "running", "color": "red"}}, "unknown field `color`"),
        ({"ec2": 3}, "ec2: invalid type: integer `3`, expected an lcm.Instance or its state"),
        ({"sessions": "s-1"}, "sessions is a str; accepted: a list"),
        ({"sessions": [{"id": "s-1"}]}, "field `state` is missing"),
        ({"idle_checked_at": datetime(2026, 2, 6)}, "idle_checked_at is 2026-02-06 00:00:00, which has no time zone"),
    ],
)
def test_invalid_observation_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        lcm.Observation(**parts)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"consistency_window": 120}, "consistency_window is 120; accepted: a timedelta"),
        ({"metrics_interval": timedelta(seconds=-1)}, "policy.metrics_interval is -1 s; accepted: a time from 0 up"),
        ({"external_stop_policy": "shrug"}, "policy.external_stop_policy is 'shrug'; accepted: re"),
        (
            {"max_session_retries": -1},
            "policy.max_session_retries is -1; accepted: a whole number from 0 to 429",
        ),
        ({"max_session_retries": True}, "policy.max_session_retries is True; accepted: a whole number"),
        ({"resurrect_terminated": "no"}, "policy.resurrect_terminated is 'no'; accepted: True or False"),
        ({"scale_down": {"min_workers": "2"}}, "policy.scale_down.min_workers is '2'; accepted: a whole number"),
        ({"scale_down": {"minimum": 2}}, "policy.scale_down has no field 'minimum'; accepted: enabled, min_workers, "),
        ({"scale_down": 2}, "policy.scale_down is 2; accepted: an lcm.ScaleDownPolicy, or a dict of its fields"),
        ({"backoff": {"multiplier": float("inf")}}, "policy.backoff.multiplier is inf; accepted: a finite number"),
        (
            {"orphans": {"freeze_from_records": 0.5}},
            "policy.orphans has no field 'freeze_from_records'; accepted: max_",
        ),
        (
            {"orphans": {"max_terminations_per_pass": 0.5}},
            "policy.orphans.max_terminations_per_pass is 0.5; accepted: ",
        ),
        ({"default_region": 7}, "policy.default_region is 7; accepted: text"),
        (
            {"regions": {"us-east-1": {"subnet_id": "subnet-1", "security_group_ids": "sg-1"}}},
            "policy.regions['us-east-1'].security_group_ids is 'sg-1'; accepted: a list of texts, such as ['sg-1']",
        ),
        (
            {"regions": {"us-east-1": {"subnet_id": "subnet-1", "security_group_ids": []}}},
            "policy.regions['us-east-1'].security_group_ids is empty; accepted: a list of at least one text",
        ),
        (
            {"regions": {"us-east-1": {"security_group_ids": ["sg-1"]}}},
            "policy.regions['us-east-1'].subnet_id is missing",
        ),
    ],
)
def test_invalid_policy_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        lcm.Policy(**fields)
    assert message in str(raised.value)


def test_nested_policies_are_accepted_as_dicts() -> None:
    region = {"subnet_id": "subnet-1", "security_group_ids": ["sg-1"], "default_tags": {"team": "net"}}
    given: dict[str, Any] = {"scale_down": {"enabled": True, "min_workers": 2}, "regions": {"us-east-1": region}}
    expected = lcm.RegionConfig("subnet-1", ("sg-1",), default_tags={"team": "net"})
    policy = lcm.Policy(**given)
    assert policy.scale_down == lcm.ScaleDownPolicy(enabled=True, min_workers=2)
    assert policy.regions["us-east-1"] == expected


def test_text_is_no_list_of_security_groups() -> None:
    with pytest.raises(TypeError, match=r"RegionConfig.security_group_ids is 'sg-1'; accepted: a list of texts"):
        lcm.RegionConfig("subnet-1", "sg-1")  # type: ignore[arg-type]


def test_inputs_can_be_pickled_and_compared() -> None:
    seen = lcm.Observation(ec2=lcm.Instance("running", tags={"a": "b"}), sessions=[{"id": "s-1", "status": "running"}])
    policy = lcm.Policy(scale_down=lcm.ScaleDownPolicy(enabled=True, min_workers=2))
    for value in (seen, policy, lcm.ABSENT, lcm.CallFailure("refused", "no")):
        assert pickle.loads(pickle.dumps(value)) == value
    assert hash(seen) == hash(pickle.loads(pickle.dumps(seen)))
    assert json.loads(json.dumps(policy.to_dict()))["scale_down"]["min_workers"] == 2
    assert json.loads(json.dumps(seen.to_dict()))["ec2"]["tags"] == {"a": "b"}


def test_decision_converts_to_json() -> None:
    decision = lcm.decide(RECORD, lcm.Observation(ec2="stopped"), now=NOW)
    shown = json.loads(json.dumps(decision.to_dict()))
    assert shown["outcome"] == "success" and shown["reason"]["code"] == "start_requested"
    assert shown["transition"] == {
        "from_status": "stopped", "to_status": "starting", "kind": "commanded", "when": "desired running"
    }  # fmt: skip
    assert shown["effects"][0]["details"] == {"instance": "i-1"}


def test_html_is_escaped() -> None:
    evil = {"id": "<script>alert(1)</script>", "status": "running", "ec2_instance_id": "<i>"}
    failure = lcm.CallFailure("refused", "<b>no</b>", "<Code>")
    html = lcm.decide(evil, lcm.Observation(ec2=failure))._repr_html_()
    assert "<script>" not in html and "<b>no" not in html and "<Code>" not in html
    assert "&lt;script&gt;" in html and "ec2_unknown" in html and "retry" in html
    stopping = {**evil, "status": "stopping"}
    assert "stop_instance &lt;i&gt;" in lcm.decide(stopping, lcm.Observation(ec2="running"))._repr_html_()


def test_fleet_decisions_match_single_decisions() -> None:
    statuses = [status.value for status in lcm.WorkerStatus]
    fleet = [{**RECORD, "id": f"w-{status}", "status": status} for status in statuses]
    seen = lcm.Observation(ec2="stopped")
    many = lcm.decide_many(fleet, seen, now=NOW)
    assert list(many) == [lcm.decide(worker, seen, now=NOW) for worker in fleet]
    assert many[-1] == many[len(fleet) - 1] and many[1:3] == [many[1], many[2]]
    assert all(decision.transition for decision in many.changing())
    assert sum(many.reasons().values()) == len(many) == len(statuses)
    each = lcm.decide_many(fleet, [seen] * len(fleet), now=NOW)
    assert list(each) == list(many)
    with pytest.raises(ValueError, match="there are 1 observations for 11 workers; accepted: one for each"):
        lcm.decide_many(fleet, [seen])
    with pytest.raises(IndexError, match="index 11 is out of range for 11 decisions"):
        many[11]


def test_only_workers_in_service_are_eligible() -> None:
    fleet = [{**RECORD, "status": "running"}, {**RECORD, "status": "draining"}]
    leaving = {**RECORD, "status": "running", "desired_status": "stopped"}
    assert lcm.eligible_workers([*fleet, leaving]) == [fleet[0]]


def test_drain_is_started_checked_and_canceled() -> None:
    running = lcm.Worker("w-1", "running")
    begun = lcm.initiate_drain(
        running, [{"id": "s-1", "status": "running"}], reason="upgrade", requested_by="alice", now=NOW
    )
    assert begun.changes == {"desired_status": "stopped", "drain_started_at": "2026-02-06T08:00:00Z"}
    assert begun.notices[0]["event"]["running_sessions"] == 1
    draining = running.replace(status="draining", desired_status="stopped", drain_started_at=NOW)
    template = lcm.Template("metal", "m5zn.metal", drain_timeout_hours=1)
    sessions = [lcm.Session("s-1", "running")]
    soon = lcm.check_drain(draining, sessions, template=template, now=NOW + timedelta(minutes=59))
    assert soon.reason.code is lcm.ReasonCode.DRAIN_WAITING
    late = lcm.check_drain(draining, sessions, template=template, now=NOW + timedelta(minutes=60))
    assert late.reason.code is lcm.ReasonCode.DRAIN_TIMEOUT and late.to_status is lcm.WorkerStatus.STOPPING
    off = lcm.decide_cancel_drain(draining, cancelled_by="bob", reason="class goes on")
    assert off.changes == {"desired_status": "running", "drain_started_at": None}
    with pytest.raises(lcm.InvalidTransition, match="worker w-1 is running; only a draining worker"):
        lcm.check_drain(running, [])
    with pytest.raises(lcm.InvalidTransition, match="worker w-1 is running; only a draining worker"):
        lcm.decide_cancel_drain(running, cancelled_by="bob", reason="-")
    with pytest.raises(lcm.InvalidTransition, match="worker w-1 is draining; only a running worker"):
        lcm.initiate_drain(draining, reason="-", requested_by="bob")


def test_thirteen_records_and_three_instances_are_ten_orphans() -> None:
    old = {"status": "running", "aws_region": "us-east-1", "created_at": "2026-02-05T08:00:00Z"}
    records = [{"id": f"w-{n}", "ec2_instance_id": f"i-{n}", **old} for n in range(13)]
    scan = [lcm.Instance("running", id=f"i-{n}") for n in range(3)]
    first = lcm.find_orphans(records, scan, region="us-east-1", now=NOW)
    assert first.orphans == () and len(first.unverified) == 10
    verified = dict.fromkeys(first.unverified, lcm.ABSENT)
    assert len(lcm.find_orphans(records, scan, region="us-east-1", verified=verified, now=NOW).orphans) == 10
    throttled = dict.fromkeys(first.unverified, lcm.CallFailure("throttled"))
    assert lcm.find_orphans(records, scan, region="us-east-1", verified=throttled, now=NOW).orphans == ()
    partial = lcm.find_orphans(records, scan, region="us-east-1", verified=verified, complete=False, now=NOW)
    assert partial.verdicts == ()
    nothing = {record["ec2_instance_id"]: lcm.ABSENT for record in records}
    frozen = lcm.find_orphans(records, [], region="us-east-1", verified=nothing, now=NOW)
    assert frozen.is_frozen and frozen.orphans == ()
    sure = lcm.find_orphans(records, [], region="us-east-1", verified=nothing, account_proved=True, now=NOW)
    assert len(sure.orphans) == 13


def test_backoff_follows_the_policy() -> None:
    policy = lcm.Policy(backoff=lcm.Backoff(base=timedelta(seconds=2), multiplier=3.0, max=timedelta(seconds=20)))
    assert [lcm.backoff_delay(n, policy=policy) for n in range(4)] == [2.0, 6.0, 18.0, 20.0]
