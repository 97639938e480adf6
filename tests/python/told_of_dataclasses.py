"""Tells all there is to tell of the package's dataclasses. With `original`, `dataclasses` itself makes them.

Whatever ours do differently shows as a difference between the two.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import sys
import typing
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

MODULES = ["data", "observation", "orphans", "outcome", "policy", "ports", "results", "sweep"]

# Must come before the package: whoever asks for our way of making dataclasses is given the original.
if sys.argv[1:] == ["original"]:
    sys.modules["lcm._frozen"] = dataclasses

import lcm  # noqa: E402
from lcm import ports  # noqa: E402


def classes() -> Iterator[type]:
    """Every dataclass of the package."""
    homes = [importlib.import_module(f"lcm.{name}") for name in MODULES]
    found = {value for home in homes for value in vars(home).values() if isinstance(value, type)}
    mine = [each for each in found if dataclasses.is_dataclass(each) and each.__module__.startswith("lcm")]
    yield from sorted(mine, key=lambda each: (each.__module__, each.__name__))


def objects() -> list[Any]:
    """One of each kind, most of them."""
    reason = lcm.Reason(lcm.ReasonCode.DRIFT, "a sentence")
    failure = lcm.CallFailure("throttled", "slow down", cause=ValueError("not shown"))
    effect = lcm.Effect(lcm.EffectName.STOP_INSTANCE, "stop_instance i-1", error=failure)
    verdict = lcm.Verdict("w-1", "i-1", lcm.Conclusion.ORPHAN)
    running = lcm.WorkerStatus.RUNNING

    return [
        reason,
        failure,
        effect,
        verdict,
        lcm.ReconcileResult(
            lcm.Outcome.RETRY, "w-1", running, running, (effect,), reason, lcm.Requeue.NOW, error=failure
        ),
        lcm.decide(lcm.Worker("w-1", "running", ec2_instance_id="i-1"), lcm.Observation(ec2="stopped")),
        lcm.OrphanReport("us-east-1", (verdict,), ("i-2",)),
        lcm.RegionReport("us-east-1", (verdict,), (), 1, 2, ("w-2",), (), ()),
        lcm.DiscoveryReport(()),
        lcm.SweepReport(1, {lcm.Outcome.SUCCESS: 1}, (), timedelta(seconds=1)),
        lcm.Instance("running", tags={"a": "b"}),
        lcm.Image("ami-1", "cml", "2026-01-01"),
        lcm.Session("s-1", "running"),
        lcm.Template("metal", "m5zn.metal"),
        lcm.CloudMetrics(1.5),
        lcm.CmlMetrics(ready=True),
        lcm.IdleReport(error="none"),
        lcm.FleetView(3),
        lcm.Observation(ec2="stopped", sessions=[{"id": "s-1", "status": "running"}]),
        lcm.ScaleDownPolicy(min_workers=2),
        lcm.OrphanPolicy(),
        lcm.Backoff(),
        lcm.RegionConfig("subnet-1", ("sg-1",)),
        lcm.Policy(regions={"us-east-1": lcm.RegionConfig("subnet-1", ("sg-1",))}),
        ports.CmlTarget("192.0.2.1", "admin", lcm.Secret("hunter2")),
        ports.Lease(1, timedelta(seconds=15)),
        ports.Won(1),
        ports.Held("another", 2),
        ports.Listing(1),
        ports.Changed(1, ("key",)),
        ports.Progress(1),
        ports.Compacted(1),
    ]


def attempt(act: Callable[[], object]) -> str:
    """What comes of something that may be refused."""
    try:
        return repr(act())
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"


def tell_of_class(cls: Any) -> None:
    print(f"{cls.__module__}.{cls.__qualname__}: {cls.__doc__}")
    print("  bases", cls.__bases__, "slots", cls.__slots__, "match", cls.__match_args__)
    print("  signature", inspect.signature(cls), inspect.signature(cls.__init__), cls.__init__.__qualname__)
    print("  annotations", cls.__annotations__, cls.__init__.__annotations__)
    print("  hints", attempt(lambda: typing.get_type_hints(cls)))
    print("  fields", dataclasses.fields(cls), cls.__dataclass_params__)
    print("  without arguments:", attempt(cls))
    print("  with too many:", attempt(lambda: cls(*range(30))))
    print("  with one that is unknown:", attempt(lambda: cls(nonsense=1)))


def tell_of_object(object: Any) -> None:
    cls = type(object)
    first = dataclasses.fields(object)[0].name
    print(repr(object), str(object), [name for name in dir(object) if not name.startswith("_")])
    print("  to_dict", object.to_dict())
    print("  asdict", attempt(lambda: dataclasses.asdict(object)))
    print("  astuple", attempt(lambda: dataclasses.astuple(object)))
    print("  pickled", attempt(lambda: pickle.loads(pickle.dumps(object)) == object))
    print("  bytes", attempt(lambda: pickle.dumps(object)))
    print("  state", attempt(object.__getstate__))
    print("  copies", attempt(lambda: copy.copy(object) == object), attempt(lambda: copy.deepcopy(object) == object))
    print("  equal", object == copy.copy(object), object != copy.copy(object), object == 1, object.__eq__(1))
    print("  hash", attempt(lambda: hash(object) == hash(copy.copy(object)) and object in {object}))
    value = getattr(object, first)
    print("  replaced", attempt(lambda: dataclasses.replace(object, **{first: value}) == object))
    print("  replaced by nonsense", attempt(lambda: dataclasses.replace(object, nonsense=1)))
    print("  set", attempt(lambda: setattr(object, first, 1)), "deleted", attempt(lambda: delattr(object, first)))
    print("  has", hasattr(object, "__dict__"), hasattr(object, "__weakref__"))

    plain: Any = type("Plain", (cls,), {"__module__": __name__})
    derived = plain(*(getattr(object, name) for name in cls.__match_args__))
    print("  derived", derived, derived == object, derived == copy.copy(derived), derived.to_dict())
    print("  derived, set", attempt(lambda: setattr(derived, first, 1)), attempt(lambda: delattr(derived, first)))
    wider: Any = dataclasses.make_dataclass("Wider", [("more", int, 7)], bases=(cls,), frozen=True, kw_only=True)
    print("  wider", inspect.signature(wider), dataclasses.fields(wider))
    if cls is not lcm.Policy:  # It reads its own fields, and refuses others.
        derived = wider(*(getattr(object, name) for name in cls.__match_args__))
        print("  wider", derived, derived.to_dict(), attempt(lambda: hash(derived) == hash(copy.copy(derived))))
        print("  wider, set", attempt(lambda: setattr(derived, "more", 1)), attempt(lambda: setattr(derived, first, 1)))


def main() -> None:
    known = list(classes())
    for cls in known:
        tell_of_class(cls)
    made = objects()
    missing = set(known) - {type(object) for object in made} - {ports.Patch}
    assert not missing, f"no object of {missing} is looked at"
    for object in made:
        tell_of_object(object)


main()
