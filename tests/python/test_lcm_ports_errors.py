"""Exceptions and invalid results of Python ports."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import lcm
import pytest
from lcm.ports import Patch
from lcm.testing import FakeCloud
from python_aws import REGION, SUBNET, PythonCompute
from python_control_plane import PythonControlPlane

PENDING = {"id": "w-1", "status": "pending", "template_name": "tiny", "aws_region": REGION}
STOPPING = {"id": "w-1", "status": "stopping", "ec2_instance_id": "i-1", "aws_region": REGION}


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


def records(*given: dict[str, Any]) -> PythonControlPlane:
    made = PythonControlPlane(*given)
    made.templates["tiny"] = {"name": "tiny", "instance_type": "m5.large"}
    return made


def cloud_with(state: lcm.Ec2State) -> PythonCompute:
    cloud = PythonCompute()
    cloud.regions[REGION].instances["i-1"] = lcm.Instance(state, "i-1")
    return cloud


class FixedResult(PythonControlPlane):
    """Returns or raises a given value from one method."""

    def __init__(self, method: str, response: object, *given: dict[str, Any]) -> None:
        super().__init__(*given)

        async def later(*_: object) -> object:
            if isinstance(response, BaseException):
                raise response
            return response

        setattr(self, method, later)


@pytest.mark.parametrize("waiting", ["blocking", "asyncio"])
def test_result_has_the_original_exception(fake_cloud: FakeCloud, waiting: str) -> None:
    error = ConnectionError("the cable is cut")
    clients = fake_cloud.clients(control_plane=FixedResult("template", error, PENDING))
    if waiting == "asyncio":
        result = asyncio.run(lcm.reconcile_async(PENDING, clients=clients))
    else:
        result = lcm.reconcile(PENDING, clients=clients)
    assert result.error == lcm.CallFailure("unclear", "the cable is cut", "ConnectionError")
    assert result.error is not None and result.error.cause is error
    assert error.__traceback__ is not None, "it has a traceback"
    with pytest.raises(lcm.PortError, match="ConnectionError: the cable is cut") as raised:
        result.raise_for_error()
    assert raised.value.__cause__ is error and raised.value.kind is lcm.FailureKind.UNCLEAR


def test_failed_effect_has_its_cause(fake_cloud: FakeCloud) -> None:
    error = lcm.PortError("the switch is stuck", "refused", "STUCK")

    class Stuck(PythonCompute):
        def stop(self, region: str, id: str, /) -> None:
            raise error from OSError("rust")

    cloud = Stuck()
    cloud.regions[REGION].instances["i-1"] = lcm.Instance("running", "i-1")
    result = lcm.reconcile(STOPPING, clients=fake_cloud.clients(control_plane=records(STOPPING), compute=cloud))
    (effect,) = result.effects
    assert effect.error == lcm.CallFailure("refused", "the switch is stuck", "STUCK")
    assert effect.error is not None and effect.error.cause is error and isinstance(error.__cause__, OSError)


def test_cause_is_not_part_of_the_value() -> None:
    plain = lcm.CallFailure("unclear", "lost", "X")
    caused = lcm.CallFailure("unclear", "lost", "X", cause=OSError("lock"))
    assert plain == caused and hash(plain) == hash(caused) and repr(plain) == repr(caused)
    assert plain.to_dict() == caused.to_dict() and json.dumps(caused.to_dict())
    for copied in (pickle.loads(pickle.dumps(caused)), copy.deepcopy(caused), copy.copy(caused)):
        assert copied == caused and copied.cause is None
    match caused:
        case lcm.CallFailure(kind, message, code):
            assert (kind, message, code) == ("unclear", "lost", "X")


def test_result_without_an_error_raises_nothing(fake_cloud: FakeCloud) -> None:
    result = lcm.reconcile(lcm.Worker("w-1", "terminated"), clients=fake_cloud.clients())
    assert result.raise_for_error() is result


def test_cause_of_a_returned_failure_is_kept(fake_cloud: FakeCloud) -> None:
    error = TimeoutError("no response in time")

    class Partly(PythonCompute):
        def instances(self, region: str, ids: list[str], /) -> dict[str, Any]:
            return {id: lcm.CallFailure("unreachable", "no response", cause=error) for id in ids}

    result = lcm.reconcile(STOPPING, clients=fake_cloud.clients(control_plane=records(STOPPING), compute=Partly()))
    assert result.error is not None and result.error.cause is error


@pytest.mark.parametrize("kind", list(lcm.FailureKind))
def test_port_error_sets_the_kind_of_failure(fake_cloud: FakeCloud, kind: lcm.FailureKind) -> None:
    class Ours(lcm.PortError):
        """A subclass sets the kind as well."""

    error = Ours("no", kind, "OWN")
    result = lcm.reconcile(PENDING, clients=fake_cloud.clients(control_plane=FixedResult("template", error, PENDING)))
    assert result.error is not None and result.error.cause is error
    assert result.error == lcm.CallFailure(kind, "no", "OWN")


def test_unknown_kind_of_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="'hungry' is not a kind of failure; accepted: throttled, no_capacity"):
        lcm.PortError("closed for lunch", "hungry")  # type: ignore[arg-type]
    error = pickle.loads(pickle.dumps(lcm.PortError("closed", "unreachable", "LUNCH")))
    assert (str(error), error.message, error.kind, error.code) == ("LUNCH: closed", "closed", "unreachable", "LUNCH")


NONSENSE = [
    ("template", 7, "worker template: field `(whole record)` is 7; accepted: a JSON object"),
    ("template", {"name": 7}, "field `name` is 7"),
    ("write", "done", "write returned 'done'; accepted: the version of the record, a whole number from 0 up, or None"),
    ("write", -1, "write returned -1; accepted: the version of the record"),
]


@pytest.mark.parametrize(("method", "response", "message"), NONSENSE)
def test_invalid_result_names_the_accepted_values(
    fake_cloud: FakeCloud, method: str, response: object, message: str
) -> None:
    odd = FixedResult(method, response, PENDING)
    odd.templates["tiny"] = {"name": "tiny", "instance_type": "m5.large"}
    result = lcm.reconcile(PENDING, clients=fake_cloud.clients(control_plane=odd, compute=PythonCompute()))
    errors = [failure for failure in (result.error, *(effect.error for effect in result.effects)) if failure]
    assert result.outcome is lcm.Outcome.RETRY and errors, str(result)
    assert errors[0].kind is lcm.FailureKind.UNPARSABLE and message in errors[0].message, errors[0].message
    assert isinstance(errors[0].cause, TypeError | ValueError)


CLOUD_NONSENSE = [
    (STOPPING, "instances", ["i-1"], "instances returned ['i-1']; accepted: a dict by id"),
    (STOPPING, "instances", {"i-1": "asleep"}, 'i-1: "asleep" is not a state of an EC2 instance; accepted: pending'),
    (PENDING, "tagged", "i-1", "tagged is a str; accepted: a list"),
    (PENDING, "tagged", 7, "tagged is a int; accepted: a list"),
    (PENDING, "tagged", ["running"], "tagged[0] has no id; accepted: an lcm.Instance with one"),
    (PENDING, "images", [{"id": "ami-1"}], "images[0]: missing field `name`"),
    (PENDING, "launch", None, "launch returned None; accepted: the id of the instance"),
]


@pytest.mark.parametrize(("worker", "method", "response", "message"), CLOUD_NONSENSE)
def test_invalid_compute_result_is_explained(
    fake_cloud: FakeCloud, worker: dict[str, Any], method: str, response: object, message: str
) -> None:
    cloud = cloud_with(lcm.Ec2State.RUNNING)
    setattr(cloud, method, lambda *_: response)
    own = records(worker)
    result = lcm.reconcile(own.records["w-1"], clients=fake_cloud.clients(control_plane=own, compute=cloud))
    errors = [failure for failure in (result.error, *(effect.error for effect in result.effects)) if failure]
    assert errors and message in errors[0].message, str(errors)
    assert errors[0].kind is lcm.FailureKind.UNPARSABLE


def test_invalid_port_is_refused_by_the_constructor(fake_cloud: FakeCloud) -> None:
    with pytest.raises(TypeError, match="PythonControlPlane is a class; accepted: an instance of it"):
        fake_cloud.clients(control_plane=PythonControlPlane)  # type: ignore[arg-type]
    half = PythonCompute()
    half.launch = None  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError, match=r"PythonCompute does not implement lcm.ports.Compute: missing launch"):
        fake_cloud.clients(compute=half)
    with pytest.raises(TypeError, match=r"PythonCompute does not implement lcm.ports.Metrics: missing utilization"):
        fake_cloud.clients(metrics=PythonCompute())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"PythonCompute does not implement lcm.ports.Cml: missing system, telemetry, registration"
    ):
        fake_cloud.clients(cml=PythonCompute())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"PythonCompute does not implement lcm.ports.Coordination: missing grant, renew"
    ):
        lcm.Controller(fake_cloud.clients(), coordination=PythonCompute())  # type: ignore[arg-type]


def test_every_write_has_the_fencing_token(fake_cloud: FakeCloud) -> None:
    fences: list[int | None] = []

    class Watched(PythonControlPlane):
        async def write(self, patch: Patch, /) -> int:
            fences.append(patch.fence)
            assert lcm.ports.fence() == patch.fence
            return await super().write(patch)

        async def audit(self, id: str, label: str, detail: str, /) -> None:
            fences.append(lcm.ports.fence())

    own = Watched({**PENDING, "aws_region": REGION})
    own.templates["tiny"] = {"name": "tiny", "instance_type": "m5.large"}

    async def story() -> None:
        quick = {"INITIAL_DELAY": "0", "STARTUP_RECONCILE_DELAY": "0", "WORKER_DISCOVERY_ENABLED": "false"}
        clients = fake_cloud.clients(
            {**quick, "RECONCILE_INTERVAL": "0.2", "AWS_REGION_CONFIGS": regions()},
            control_plane=own,
            compute=(cloud := PythonCompute()),
        )
        async with lcm.Controller(clients), asyncio.timeout(60):
            while own.records["w-1"]["status"] != "running":
                await asyncio.sleep(0.05)
                cloud.settle()

    asyncio.run(story())
    assert len(fences) >= 3 and len(set(fences)) == 1 and isinstance(fences[0], int)


def regions() -> str:
    region = {"subnet_id": SUBNET, "security_group_ids": ["sg-1"]}
    return json.dumps({"default_region": REGION, "regions": {REGION: region}})


def test_incomplete_ports_are_refused_by_name() -> None:
    class Partial(lcm.ports.Metrics):
        pass

    with pytest.raises(TypeError, match=r"abstract method.* utilization"):
        Partial()  # type: ignore[abstract]
    unfinished: Any = object.__new__(type("Unfinished", (), {"utilization": lcm.ports.Metrics.utilization}))
    with pytest.raises(TypeError, match=r"Unfinished does not implement lcm.ports.Metrics: missing utilization"):
        lcm.Clients({}, metrics=unfinished)
