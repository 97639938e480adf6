"""Results are frozen native classes: comparable, hashable, picklable and documented."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import lcm
import pytest

NOW = datetime(2026, 2, 6, 8, 0, tzinfo=UTC)
REASON = lcm.Reason(lcm.ReasonCode.DRIFT, "a sentence")
FAILURE = lcm.CallFailure("throttled", "slow down", "RequestLimitExceeded")
EFFECT = lcm.Effect(lcm.EffectName.STOP_INSTANCE, "stop_instance i-1", error=FAILURE)
VERDICT = lcm.Verdict("w-1", "i-1", lcm.Conclusion.ORPHAN)
RUNNING = lcm.WorkerStatus.RUNNING
REGION = lcm.RegionReport("us-east-1", (VERDICT,), (), 1, 2, (), ("w-2",), (), ())
RESULT = lcm.ReconcileResult(
    "w-1", lcm.Outcome.RETRY, RUNNING, RUNNING, (EFFECT,), REASON, lcm.Requeue.NOW, error=FAILURE
)

FINISHED: Any = lcm.FrozenMap({lcm.Outcome.SUCCESS: 2})

RESULTS: list[Any] = [
    REASON,
    EFFECT,
    lcm.transitions()[0],
    RESULT,
    lcm.decide(lcm.Worker("w-1", "running", ec2_instance_id="i-1"), lcm.Observation(ec2="stopped"), now=NOW),
    VERDICT,
    lcm.OrphanReport("us-east-1", (VERDICT,), ("i-2",)),
    REGION,
    lcm.DiscoveryReport((REGION,)),
    lcm.SweepReport(3, FINISHED, ("w-3",), timedelta(seconds=60)),
]
EACH = pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)


@EACH
def test_copies_and_pickles_are_equal(result: Any) -> None:
    for other in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert other == result and hash(other) == hash(result) and repr(other) == repr(result)
    assert result != 1 and result.__eq__(1) is NotImplemented and result in {result}


@EACH
def test_fields_cannot_be_set_or_deleted(result: Any) -> None:
    for name in (type(result).__match_args__[0], "other"):
        with pytest.raises(AttributeError):
            setattr(result, name, 1)
        with pytest.raises(AttributeError):
            delattr(result, name)


@EACH
def test_replace_changes_a_copy(result: Any) -> None:
    first, *others = type(result).__match_args__
    changed = result.replace(**{first: "changed"})
    assert getattr(changed, first) == "changed" and changed != result
    assert [getattr(changed, name) for name in others] == [getattr(result, name) for name in others]
    assert result.replace() == result == result.__replace__()
    with pytest.raises(TypeError, match=f"{type(result).__name__} has no field 'nonsense'; accepted: {first}"):
        result.replace(nonsense=1)


@EACH
def test_to_dict_holds_every_field_as_json(result: Any) -> None:
    shown = result.to_dict()
    assert tuple(shown) == type(result).__match_args__
    assert json.loads(json.dumps(shown)) == shown


@EACH
def test_repr_names_every_field(result: Any) -> None:
    name = type(result).__name__
    shown = ", ".join(f"{field}={getattr(result, field)!r}" for field in type(result).__match_args__)
    assert repr(result) == f"{name}({shown})" and type(result).__module__ == "lcm"


@EACH
def test_help_describes_the_class_and_every_field(result: Any) -> None:
    cls = type(result)
    assert inspect.getdoc(cls)
    for name, member in vars(cls).items():
        if not name.startswith("_"):
            assert len((inspect.getdoc(member) or "").split()) >= 3, f"{cls.__name__}.{name} has no documentation"
    assert list(inspect.signature(cls).parameters) == list(cls.__match_args__)


def test_patterns_match_by_position_and_by_name() -> None:
    match RESULT:
        case lcm.ReconcileResult("w-1", lcm.Outcome.RETRY, error=lcm.CallFailure(code=code)):
            assert code == "RequestLimitExceeded"
        case _:
            pytest.fail("no match")


def test_optional_fields_have_defaults() -> None:
    effect = lcm.Effect(lcm.EffectName.START_INSTANCE, "start_instance i-1")
    assert effect.details == {} and effect.result is lcm.EffectResult.PLANNED
    assert effect.ec2_instance_id is None and effect.error is None
    assert REGION.error is None and REGION.dry_run is False
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        lcm.Reason(lcm.ReasonCode.DRIFT)  # type: ignore[call-arg]


def test_reports_summarize_themselves() -> None:
    assert str(RESULTS[-1]) == "2 of 3 reconciled in 60 s (2 success); unfinished: w-3"
    assert str(REGION) == "us-east-1: 1 seen, 2 imported, 1 to reconcile, 0 marked terminated."
    assert RESULTS[-2].orphans == ("w-1",) and not RESULTS[-1].is_complete
    assert VERDICT.why == "EC2 reports that the instance does not exist"


@pytest.mark.parametrize("conclusion", lcm.Conclusion)
def test_each_conclusion_has_a_sentence(conclusion: lcm.Conclusion) -> None:
    assert len(lcm.Verdict("w-1", "i-1", conclusion).why.split()) >= 5


def test_unknown_conclusion_has_no_sentence() -> None:
    unknown: Any = "lost"
    with pytest.raises(ValueError, match='"lost" is not a conclusion; accepted: orphan, alive, '):
        _ = lcm.Verdict("w-1", "i-1", unknown).why
