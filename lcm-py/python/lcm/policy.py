"""Policies that decisions depend on, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from lcm import _lcm
from lcm.enums import ExternalStopPolicy
from lcm.values import Data, FrozenMap

__all__ = ["Backoff", "OrphanPolicy", "Policy", "RegionConfig", "ScaleDownPolicy"]


def _check_times(policy: Any) -> None:
    for item in fields(policy):
        if item.type == "timedelta" and not isinstance(getattr(policy, item.name), timedelta):
            value = getattr(policy, item.name)
            raise TypeError(f"{item.name} is {value!r}; accepted: a timedelta, such as timedelta(seconds=90)")


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
        _check_times(self)


@dataclass(frozen=True, slots=True)
class OrphanPolicy(Data):
    """Limits of garbage collection."""

    freeze_from_records: int = 3
    """Number of records from which an empty scan freezes the region."""
    max_terminations_per_pass: int | None = None
    """Highest number of records that one run marks terminated. None is no limit."""


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
        _check_times(self)


@dataclass(frozen=True, slots=True)
class RegionConfig(Data):
    """Launch configuration of one region."""

    subnet_id: str
    """The subnet to launch in."""
    security_group_ids: tuple[str, ...]
    """Security groups of the instance; at least one."""
    key_name: str | None = None
    """Name of the key pair, or None."""
    default_tags: Mapping[str, str] = field(default_factory=FrozenMap)
    """Tags of every instance in the region. A worker's own tags take precedence."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "security_group_ids", tuple(self.security_group_ids))
        object.__setattr__(self, "default_tags", FrozenMap(self.default_tags))


@dataclass(frozen=True, slots=True)
class Policy(Data):
    """Everything a decision depends on besides the worker, the observation and the time.

    >>> Policy().consistency_window.total_seconds()
    120.0
    >>> Policy(external_stop_policy="respect").external_stop_policy
    <ExternalStopPolicy.RESPECT: 'respect'>
    >>> Policy(metrics_interval=timedelta(seconds=-1))
    Traceback (most recent call last):
    ...
    ValueError: policy.metrics_interval is -1 s; accepted: a time from 0 up
    """

    consistency_window: timedelta = timedelta(seconds=120)
    """Time after a launch in which EC2 may not return the instance yet."""
    provisioning_timeout: timedelta = timedelta(seconds=900)
    """Time that an instance may take to run."""
    external_stop_policy: ExternalStopPolicy | str = ExternalStopPolicy.RESTART
    """Reaction to a stop from outside."""
    resurrect_terminated: bool = True
    """Whether a live instance of a terminated record brings the record back."""
    max_session_retries: int = 3
    """How often a failed session is retried on a draining worker."""
    metrics_interval: timedelta = timedelta(seconds=60)
    """Age at which metrics are collected again."""
    idle_detection_interval: timedelta = timedelta(seconds=300)
    """Shortest time between two idle checks of one worker."""
    license_poll_interval: timedelta = timedelta(seconds=5)
    """Time between two checks of a license operation in CML."""
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
    _native: _lcm.Policy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_times(self)
        object.__setattr__(self, "external_stop_policy", ExternalStopPolicy(self.external_stop_policy))
        if not isinstance(self.regions, Mapping):
            raise TypeError(f"regions is {self.regions!r}; accepted: a dict of lcm.RegionConfig by region")
        object.__setattr__(self, "regions", FrozenMap(self.regions))
        object.__setattr__(self, "_native", _lcm.Policy(self.to_dict()))

    def __reduce__(self) -> tuple[type[Policy], tuple[Any, ...]]:
        return Policy, tuple(getattr(self, item.name) for item in fields(self) if item.init)
