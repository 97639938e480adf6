"""Decisions about a fleet match those about each worker."""

from __future__ import annotations

import random
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import lcm
import pytest

NOW = datetime(2026, 2, 6, 8, 0, tzinfo=UTC)

# Values of each field, valid and invalid.
MOMENTS = [
    "2026-02-06T07:59:00Z",
    "2026-02-04T08:00:00.25+02:00",
    "2026-02-05 08:00:00",
    NOW - timedelta(days=1),
    "",
    None,
]
TEXTS = ["a", "", None]
FIELDS: dict[str, list[Any]] = {
    "status": [status.value for status in lcm.WorkerStatus] + ["Running", "SHUTTING-DOWN", lcm.WorkerStatus.STOPPED],
    "desired_status": ["running", "Stopped", "terminated", lcm.DesiredStatus.RUNNING, "", None],
    "ec2_instance_id": ["i-1", "i-2", "", None],
    "aws_instance_id": ["i-1", "i-3", "", None],
    "version": [3, 3.0, 2**40, None],
    "name": TEXTS,
    "aws_region": ["us-east-1", "", None],
    "ip_address": ["203.0.113.7", "10.0.0.7", None],
    "public_ip": ["203.0.113.7", "203.0.113.9", None],
    "private_ip": ["10.0.0.7", None],
    "template_name": ["metal", "", None],
    "instance_type": TEXTS,
    "ami_name": ["cisco-cml2.9*", None],
    "aws_tags": [{}, {"team": "a"}, None],
    "cml_username": TEXTS,
    "cml_password": ["s3cret", None],
    "license": [
        {"status": "registered", "pending_operation": None, "operation_in_progress": False, "seat": 4},
        {"pending_operation": "register", "pending_token": "t0ken"},
        {"pending_operation": "deregister", "operation_in_progress": True},
        {},
        None,
    ],
    "license_status": TEXTS,
    "license_token": TEXTS,
    "is_idle_detection_enabled": [True, False, None],
    "created_at": MOMENTS,
    "updated_at": MOMENTS,
    "terminated_at": MOMENTS,
    "start_initiated_at": MOMENTS,
    "last_activity_check_at": MOMENTS,
    "drain_started_at": MOMENTS,
    "drain_timeout_seconds": [0, 86_400, None],
    "drain_tries": [0, 3, None],
    "scaled_down_at": MOMENTS,
    "launched_at": MOMENTS,
    "launch_generation": [0, 2, None],
    "launch_plan": [{}, None],
    "license_attempt": ["mark", "", None],
    "license_wait": ["2026-02-06T07:00:00Z@b46c0967", "", None],
    "ec2_account_id": ["123456789012", None],
    "ec2_region": ["us-east-1", None],
    "metadata": [
        {},
        {"rack": 7, "launched_at": "2026-02-06T07:00:00Z", "drain_started_at": "2026-02-06T03:00:00Z"},
        {"launch_generation": 1, "license_attempt": "mark", "scaled_down_at": None},
        {"license_attempt": "", "launched_at": "2026-02-06T07:00:00Z"},
        None,
    ],
    "rack": [9, [1, {"a": None}], None],
}
SEEN = [
    *[lcm.Observation(ec2=state) for state in ("pending", "running", "stopped", "terminated", "other")],
    lcm.Observation(ec2=lcm.Instance("running", id="i-1", public_ip="203.0.113.7"), registration="COMPLETED"),
    lcm.Observation(ec2={"state": "running"}, sessions=[lcm.Session("s-1", "running")]),
    lcm.Observation(ec2=lcm.ABSENT, tagged=[], account_proved=True),
    lcm.Observation(ec2=lcm.CallFailure("throttled", "slow down")),
    lcm.Observation(),
]


def random_record(rng: random.Random) -> dict[str, Any]:
    names = [name for name in FIELDS if name != "status" and rng.random() < 0.5]
    record = {"id": f"w-{rng.randrange(100)}", "status": rng.choice(FIELDS["status"])}
    record |= {name: rng.choice(FIELDS[name]) for name in names}
    shuffled = list(record.items())
    rng.shuffle(shuffled)
    return dict(shuffled)


def test_random_records_have_the_same_result_in_a_fleet() -> None:
    rng = random.Random(7)
    fleet = [random_record(rng) for _ in range(3000)]
    seen = [rng.choice(SEEN) for _ in fleet]
    many = lcm.decide_many(fleet, seen, now=NOW)
    for record, sight, decision in zip(fleet, seen, many, strict=True):
        assert decision == lcm.decide(lcm.Worker.from_dict(record), sight, now=NOW), record
        assert decision == lcm.decide(record, sight, now=NOW), record


def test_state_alone_matches_an_observation() -> None:
    rng = random.Random(8)
    fleet = [random_record(rng) for _ in range(3000)]
    states = [rng.choice(list(lcm.Ec2State)) for _ in fleet]
    for record, state, decision in zip(fleet, states, lcm.decide_many(fleet, states, now=NOW), strict=True):
        assert decision == lcm.decide(lcm.Worker.from_dict(record), lcm.Observation(ec2=state), now=NOW), record


def test_state_alone_has_the_addresses_of_the_record() -> None:
    record = {"id": "w-1", "status": "running", "ec2_instance_id": "i-1", "public_ip": "203.0.113.7"}
    one_address = {"id": "w-2", "status": "running", "ec2_instance_id": "i-2", "ip_address": "203.0.113.8"}
    fleet = [record, one_address, {"id": "w-3", "status": "provisioning", "ec2_instance_id": "i-3"}]
    assert [decision.reason.code for decision in lcm.decide_many(fleet, "running", now=NOW)] == [
        "in_service",
        "in_service",
        "awaiting_address",
    ]
    states = [lcm.Ec2State.RUNNING, lcm.Ec2State.STOPPED, lcm.Ec2State.PENDING]
    each = [
        lcm.decide(worker, lcm.Observation(ec2=state), now=NOW) for worker, state in zip(fleet, states, strict=True)
    ]
    assert list(lcm.decide_many(fleet, states, now=NOW)) == each
    assert list(lcm.decide_many(iter(fleet), (state for state in states), now=NOW)) == each  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType, lcm.Worker.from_dict])
def test_mappings_and_workers_are_accepted(kind: Any) -> None:
    record = {"id": "w-1", "status": "stopped", "desired_status": "running", "ec2_instance_id": "i-1"}
    (decision,) = lcm.decide_many([kind(record)], "stopped", now=NOW)
    assert decision.to_status == "starting"


# Values of the wrong type, and a launch plan that cannot be parsed.
BAD: dict[str, Any] = {"launch_plan": {"region": 1}, "aws_tags": [1], "license": [1], "metadata": [1]}


# Fields that no decision depends on.
UNUSED = {"cml_password", "cml_username", "instance_type", "license_status", "license_token", "rack", "terminated_at"}


@pytest.mark.parametrize("field", sorted(FIELDS.keys() - UNUSED))
def test_invalid_field_is_reported_in_a_fleet(field: str) -> None:
    record = {"id": "w-1", "status": "pending", field: BAD.get(field, {"nested": 1})}
    reported = []
    for decide in (lambda: lcm.decide(record, SEEN[0], now=NOW), lambda: lcm.decide_many([record], SEEN[0], now=NOW)):
        if field in ("id", "status", "ec2_instance_id", "aws_instance_id"):
            with pytest.raises(lcm.InvalidRecord) as refused:
                decide()
            reported.append(str(refused.value))
        else:
            with pytest.warns(lcm.RecordWarning) as warned:
                decide()
            reported.append(str(warned[0].message))
    assert reported[0] == reported[1]
    assert field in reported[0]


def test_wrong_number_of_observations_is_refused() -> None:
    fleet = [{"id": f"w-{number}", "status": "running"} for number in range(3)]
    for wrong in (["running"] * 2, ["running"] * 4, []):
        with pytest.raises(
            ValueError, match=f"there are {len(wrong)} observations for 3 workers; accepted: one for each"
        ):
            lcm.decide_many(fleet, wrong, now=NOW)
    with pytest.raises(TypeError, match=r"an observation is a int; accepted: lcm.Observation, or EC2's word"):
        lcm.decide_many(fleet, [7, 7, 7], now=NOW)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r'"asleep" is not a state of an EC2 instance'):
        lcm.decide_many(fleet, "asleep", now=NOW)
    assert list(lcm.decide_many([], "running")) == []
