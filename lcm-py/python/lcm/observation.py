"""Observations of a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from lcm import _lcm
from lcm.enums import Ec2State
from lcm.failure import CallFailure
from lcm.values import Absent, Data, FrozenMap, refuse_naive

__all__ = [
    "CloudMetrics",
    "CmlMetrics",
    "FleetView",
    "IdleReport",
    "Image",
    "Instance",
    "Observation",
    "Session",
    "Template",
]


@dataclass(frozen=True, slots=True)
class Instance(Data):
    """An EC2 instance, as EC2 describes it.

    >>> Instance("running", public_ip="203.0.113.7").public_ip
    '203.0.113.7'
    """

    state: Ec2State | str
    """Its state."""
    id: str = ""
    """Its id; left out, it is that of the worker it is looked at for."""
    public_ip: str | None = None
    """Public address, while it has one."""
    private_ip: str | None = None
    """Private address."""
    launched_at: datetime | None = None
    """When it was launched or last started."""
    client_token: str | None = None
    """The token it was launched with."""
    state_reason: str | None = None
    """Why it is in its state, in EC2's words."""
    instance_type: str | None = None
    """Instance type."""
    image_id: str | None = None
    """The AMI it was made from."""
    tags: Mapping[str, str] = field(default_factory=FrozenMap)
    """Its tags."""

    def __post_init__(self) -> None:
        refuse_naive("launched_at", self.launched_at)
        object.__setattr__(self, "state", Ec2State(self.state))
        object.__setattr__(self, "tags", FrozenMap(self.tags))


@dataclass(frozen=True, slots=True)
class Image(Data):
    """An AMI, as EC2 describes it."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    creation_date: str
    """When it was made, as EC2 writes it."""


@dataclass(frozen=True, slots=True)
class Session(Data):
    """A lab session, as far as a worker's lifecycle cares."""

    id: str
    """Its id."""
    status: str
    """Its state; a word that is not known counts as active."""
    worker_id: str | None = None
    """The worker it is assigned to."""
    timeslot_start: datetime | None = None
    """When it is to begin."""
    retry_count: int = 0
    """How often it was retried after a failure."""

    def __post_init__(self) -> None:
        refuse_naive("timeslot_start", self.timeslot_start)


@dataclass(frozen=True, slots=True)
class Template(Data):
    """A worker template."""

    name: str
    """Unique name."""
    instance_type: str
    """EC2 instance type, such as ``m5zn.metal``."""
    ami_name_pattern: str = "cisco-cml2.9*"
    """Which AMIs qualify; the newest match is used."""
    drain_timeout_hours: float = 4.0
    """How long a drain waits for sessions before it forces them."""
    enabled: bool = True
    """Whether the control plane offers it for new workers."""


@dataclass(frozen=True, slots=True)
class CloudMetrics(Data):
    """Utilisation of an instance, in percent."""

    cpu_utilization: float | None = None
    """Processor."""
    memory_utilization: float | None = None
    """Memory."""
    disk_utilization: float | None = None
    """Disk."""


@dataclass(frozen=True, slots=True)
class CmlMetrics(Data):
    """Metrics that CML reports."""

    labs_count: int | None = None
    """Labs on the system."""
    nodes_count: int | None = None
    """Nodes on the system."""
    version: str | None = None
    """CML's version."""
    ready: bool | None = None
    """Whether CML says it can start nodes."""


@dataclass(frozen=True, slots=True)
class IdleReport(Data):
    """Result of an idle check."""

    telemetry_fetched: bool = True
    """Whether CML's telemetry could be read."""
    idle_check_performed: bool = True
    """Whether the check was carried out."""
    auto_pause_triggered: bool = False
    """Whether the server paused the worker by itself."""
    is_idle: bool = False
    """Whether the worker is unused."""
    idle_minutes: float | None = None
    """For how long, if known."""
    eligible_for_pause: bool = False
    """Whether it may be paused."""
    in_snooze_period: bool = False
    """Whether it is in the quiet time after a resume."""
    error: str | None = None
    """Error message of the check, or None."""


@dataclass(frozen=True, slots=True)
class FleetView(Data):
    """How many workers run, and when one was last scaled down."""

    running: int
    """Workers in service."""
    last_scale_down_at: datetime | None = None
    """The latest scale-down."""

    def __post_init__(self) -> None:
        refuse_naive("last_scale_down_at", self.last_scale_down_at)


@dataclass(frozen=True, slots=True)
class Observation(Data):
    """Observation of one worker.

    Each part is one of four answers: left out (nobody asked), :data:`ABSENT` (there is none), a
    :class:`CallFailure` (no answer: nothing may be concluded), or what was found. ``ec2`` may be a state alone.

    >>> Observation(ec2="stopped").ec2
    'stopped'
    >>> Observation(ec2="sleeping")
    Traceback (most recent call last):
    ...
    ValueError: ec2: "sleeping" is not a state of an EC2 instance; accepted: pending, running, ...
    """

    ec2: Ec2State | str | Instance | Mapping[str, Any] | Absent | CallFailure | None = None
    """The worker's instance, or just its state."""
    tagged: Sequence[Instance | Mapping[str, Any]] | Absent | CallFailure | None = None
    """Every instance whose tags name this worker."""
    template: Template | Mapping[str, Any] | Absent | CallFailure | None = None
    """The worker's template."""
    images: Sequence[Image | Mapping[str, Any]] | Absent | CallFailure | None = None
    """The AMIs that match."""
    sessions: Sequence[Session | Mapping[str, Any]] | Absent | CallFailure | None = None
    """The sessions assigned to the worker."""
    cloud_metrics: CloudMetrics | Mapping[str, Any] | Absent | CallFailure | None = None
    """Utilization from CloudWatch."""
    cml: CmlMetrics | Mapping[str, Any] | Absent | CallFailure | None = None
    """Metrics from CML."""
    registration: str | Mapping[str, Any] | Absent | CallFailure | None = None
    """Registration status from CML, such as ``COMPLETED``."""
    telemetry: Sequence[Mapping[str, Any]] | Absent | CallFailure | None = None
    """CML's telemetry events, for an idle check that is due."""
    idle: IdleReport | Mapping[str, Any] | Absent | CallFailure | None = None
    """Result of the idle check."""
    fleet: FleetView | Mapping[str, Any] | Absent | CallFailure | None = None
    """State of the fleet, for scale-down."""
    metrics_reported_at: datetime | None = None
    """When this worker's metrics were last reported."""
    idle_checked_at: datetime | None = None
    """When idle detection was last asked about this worker."""
    _native: _lcm.Observation = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        for name, value in given.items():
            if isinstance(value, list | tuple | Mapping):
                given[name] = _freeze(value)
                object.__setattr__(self, name, given[name])
        object.__setattr__(self, "_native", _lcm.Observation(given))

    def __reduce__(self) -> tuple[type[Observation], tuple[Any, ...]]:
        return Observation, tuple(getattr(self, item.name) for item in fields(self) if item.init)


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenMap({key: _freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_freeze(item) for item in value)
    return value
