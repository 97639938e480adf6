"""Policies that decisions depend on, with their defaults."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from typing import Any

from lcm import _lcm
from lcm.enums import ExternalStopPolicy
from lcm.values import Data, FrozenMap, with_field_docs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lcm._vocabulary import AnyExternalStopPolicy

__all__ = ["Backoff", "OrphanPolicy", "Policy", "RegionConfig", "ScaleDownPolicy"]


_MAX_COUNT = 2**32 - 1


def _time(path: str, value: Any) -> timedelta:
    if not isinstance(value, timedelta):
        raise TypeError(f"{path} is {value!r}; accepted: a timedelta, such as timedelta(seconds=90)")
    if value < timedelta(0):
        raise ValueError(f"{path} is {value.total_seconds():g} s; accepted: a time from 0 up")
    return value


def _count(path: str, value: Any) -> int:
    accepted = f"a whole number from 0 to {_MAX_COUNT}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{path} is {value!r}; accepted: {accepted}")
    count = operator.index(value)
    if not 0 <= count <= _MAX_COUNT:
        raise ValueError(f"{path} is {count}; accepted: {accepted}")
    return count


def _optional_count(path: str, value: Any) -> int | None:
    return None if value is None else _count(path, value)


def _number(path: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{path} is {value!r}; accepted: a number")
    if not math.isfinite(value):
        raise ValueError(f"{path} is {value!r}; accepted: a finite number")
    return value


def _switch(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{path} is {value!r}; accepted: True or False")
    return value


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{path} is {value!r}; accepted: text")
    return value


def _optional_text(path: str, value: Any) -> str | None:
    return None if value is None else _text(path, value)


def _texts(path: str, value: Any) -> tuple[str, ...]:
    # A text is iterable too: each of its letters would be an item.
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{path} is {value!r}; accepted: a list of texts, such as [{value!r}]")
    texts = tuple(_text(f"{path}[{index}]", item) for index, item in enumerate(value))
    if not texts:
        raise ValueError(f"{path} is empty; accepted: a list of at least one text")
    return texts


def _text_map(path: str, value: Any) -> FrozenMap:
    if not isinstance(value, Mapping):
        raise TypeError(f"{path} is {value!r}; accepted: a dict of texts")
    return FrozenMap({_text(f"a key of {path}", key): _text(f"{path}[{key!r}]", text) for key, text in value.items()})


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "timedelta": _time,
    "int": _count,
    "int | None": _optional_count,
    "float": _number,
    "bool": _switch,
    "str": _text,
    "str | None": _optional_text,
    "tuple[str, ...]": _texts,
    "Mapping[str, str]": _text_map,
}


def _check(policy: Any, path: str) -> None:
    """Check each field by its declared type. Errors name the field and the accepted values."""
    for item in fields(policy):
        if check := _CHECKS.get(str(item.type)):
            checked = check(f"{path}.{item.name}", getattr(policy, item.name))
            object.__setattr__(policy, item.name, checked)


def _nested(path: str, kind: type[Any], value: Any) -> Any:
    """Accept an object of the class, or a dict of its fields."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{path} is {value!r}; accepted: an lcm.{kind.__name__}, or a dict of its fields")
    names = [item.name for item in fields(kind)]
    for name in value:
        if name not in names:
            raise TypeError(f"{path} has no field {name!r}; accepted: {', '.join(names)}")
    for item in fields(kind):
        if item.default is MISSING and item.default_factory is MISSING and item.name not in value:
            raise TypeError(f"{path}.{item.name} is missing")
    try:
        return kind(**value)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace(f"{kind.__name__}.", f"{path}.", 1)) from None


@with_field_docs
@dataclass(frozen=True, slots=True)
class ScaleDownPolicy(Data):
    """Policy of scaling idle workers down."""

    enabled: bool = False
    """Whether idle workers are scaled down."""
    min_workers: int = 0
    """Lowest number of running workers."""
    cooldown: timedelta = timedelta(seconds=600)
    """Shortest time between two scale-downs."""
    look_ahead: timedelta = timedelta(minutes=30)
    """A worker with a session scheduled within this time is not scaled down."""

    def __post_init__(self) -> None:
        _check(self, "policy.scale_down")


@with_field_docs
@dataclass(frozen=True, slots=True)
class OrphanPolicy(Data):
    """Limits of garbage collection."""

    max_terminations_per_pass: int | None = None
    """Highest number of records that one run marks terminated. None is no limit."""

    def __post_init__(self) -> None:
        _check(self, "policy.orphans")


@with_field_docs
@dataclass(frozen=True, slots=True)
class Backoff(Data):
    """Delay before a retry: ``min(base * multiplier ** retries, max)``."""

    base: timedelta = timedelta(seconds=1)
    """Delay before the first retry."""
    multiplier: float = 2.0
    """Factor by which each retry multiplies the delay."""
    max: timedelta = timedelta(seconds=60)
    """Upper limit of the delay."""

    def __post_init__(self) -> None:
        _check(self, "policy.backoff")


@with_field_docs
@dataclass(frozen=True, slots=True)
class RegionConfig(Data):
    """Launch configuration of one region.

    >>> RegionConfig("subnet-1", "sg-1")
    Traceback (most recent call last):
    ...
    TypeError: RegionConfig.security_group_ids is 'sg-1'; accepted: a list of texts, such as ['sg-1']
    """

    subnet_id: str
    """The subnet to launch in."""
    security_group_ids: tuple[str, ...]
    """Security groups of the instance; at least one."""
    key_name: str | None = None
    """Name of the key pair, or None."""
    default_tags: Mapping[str, str] = field(default_factory=FrozenMap)
    """Tags of every instance in the region. A worker's own tags take precedence."""

    def __post_init__(self) -> None:
        _check(self, "RegionConfig")


@with_field_docs
@dataclass(frozen=True, slots=True)
class Policy(Data):
    """Everything a decision depends on besides the worker, the observation and the time.

    Nested policies can be given as dicts of their fields.

    >>> Policy().consistency_window.total_seconds()
    120.0
    >>> Policy(external_stop_policy="respect").external_stop_policy
    <ExternalStopPolicy.RESPECT: 'respect'>
    >>> Policy(metrics_interval=timedelta(seconds=-1))
    Traceback (most recent call last):
    ...
    ValueError: policy.metrics_interval is -1 s; accepted: a time from 0 up
    >>> Policy(scale_down={"enabled": True, "min_workers": 2}).scale_down.min_workers
    2
    """

    consistency_window: timedelta = timedelta(seconds=120)
    """Time after a launch in which EC2 may not return the instance yet."""
    provisioning_timeout: timedelta = timedelta(seconds=900)
    """Time that an instance may take to run."""
    external_stop_policy: AnyExternalStopPolicy = ExternalStopPolicy.RESTART
    """Reaction to a stop from outside."""
    resurrect_terminated: bool = True
    """Whether a live instance of a terminated record brings the record back."""
    max_session_retries: int = 3
    """How often a failed session is retried on a draining worker."""
    drain_settle: timedelta = timedelta(seconds=10)
    """Shortest time from the end of placement on a worker to the last listing of its sessions."""
    max_drain_tries: int = 3
    """How often a session that cannot be ended delays the stop after the deadline of a drain."""
    metrics_interval: timedelta = timedelta(seconds=60)
    """Age at which metrics are collected again."""
    idle_detection_interval: timedelta = timedelta(seconds=300)
    """Shortest time between two idle checks of one worker."""
    license_poll_interval: timedelta = timedelta(seconds=5)
    """Time between two checks of a license operation in CML."""
    license_timeout: timedelta = timedelta(seconds=900)
    """Time that CML may take to finish a registration."""
    scale_down: ScaleDownPolicy = field(default_factory=ScaleDownPolicy)
    """Policy of scaling idle workers down."""
    orphans: OrphanPolicy = field(default_factory=OrphanPolicy)
    """Limits of garbage collection."""
    backoff: Backoff = field(default_factory=Backoff)
    """Delays between retries."""
    default_region: str | None = None
    """Region of workers without one."""
    regions: Mapping[str, RegionConfig] = field(default_factory=FrozenMap)
    """Launch configuration by region."""
    aws_account_id: str | None = None
    """Account of the workers' instances. An absence that this account reports is believed."""
    _native: _lcm.Policy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self, "policy")
        if self.external_stop_policy not in list(ExternalStopPolicy):
            accepted = ", ".join(ExternalStopPolicy)
            raise ValueError(f"policy.external_stop_policy is {self.external_stop_policy!r}; accepted: {accepted}")
        object.__setattr__(self, "external_stop_policy", ExternalStopPolicy(self.external_stop_policy))
        for name, kind in (("scale_down", ScaleDownPolicy), ("orphans", OrphanPolicy), ("backoff", Backoff)):
            object.__setattr__(self, name, _nested(f"policy.{name}", kind, getattr(self, name)))
        if not isinstance(self.regions, Mapping):
            raise TypeError(f"policy.regions is {self.regions!r}; accepted: a dict of lcm.RegionConfig by region")
        regions = {
            name: _nested(f"policy.regions[{name!r}]", RegionConfig, region) for name, region in self.regions.items()
        }
        object.__setattr__(self, "regions", FrozenMap(regions))
        object.__setattr__(self, "_native", _lcm.Policy(self.to_dict()))

    def __reduce__(self) -> tuple[type[Policy], tuple[Any, ...]]:
        return Policy, tuple(getattr(self, item.name) for item in fields(self) if item.init)
