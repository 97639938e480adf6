"""Observations of a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from lcm import _lcm
from lcm.enums import Ec2State
from lcm.failure import CallFailure
from lcm.values import Absent, Data, FrozenMap, refuse_naive, with_field_docs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lcm._vocabulary import AnyEc2State

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


@with_field_docs
@dataclass(frozen=True, slots=True)
class Instance(Data):
    """An EC2 instance, as EC2 describes it.

    >>> Instance("running", public_ip="203.0.113.7").public_ip
    '203.0.113.7'
    """

    state: AnyEc2State
    """State of the instance, an :class:`Ec2State`."""
    id: str = ""
    """Instance id. Empty stands for the id in the worker's record."""
    public_ip: str | None = None
    """Public address; None while the instance has none."""
    private_ip: str | None = None
    """Private address."""
    launched_at: datetime | None = None
    """Time of the launch or the last start."""
    client_token: str | None = None
    """Client token of the launch."""
    state_reason: str | None = None
    """EC2's message about the last change of state."""
    instance_type: str | None = None
    """Instance type."""
    image_id: str | None = None
    """AMI that the instance was launched from."""
    account_id: str | None = None
    """Account that owns the instance."""
    tags: Mapping[str, str] = field(default_factory=FrozenMap)
    """Tags of the instance."""

    def __post_init__(self) -> None:
        refuse_naive("launched_at", self.launched_at)
        object.__setattr__(self, "state", Ec2State(self.state))
        object.__setattr__(self, "tags", FrozenMap(self.tags))


@with_field_docs
@dataclass(frozen=True, slots=True)
class Image(Data):
    """An AMI, as EC2 describes it."""

    id: str
    """AMI id."""
    name: str
    """AMI name."""
    creation_date: str
    """Creation time in EC2's format."""


@with_field_docs
@dataclass(frozen=True, slots=True)
class Session(Data):
    """The fields of a lab session that a worker's lifecycle depends on."""

    id: str
    """Session id."""
    status: str
    """Status of the session. An unknown status counts as active."""
    worker_id: str | None = None
    """Id of the assigned worker."""
    timeslot_start: datetime | None = None
    """Scheduled start time."""
    retry_count: int = 0
    """Number of retries after a failure."""

    def __post_init__(self) -> None:
        refuse_naive("timeslot_start", self.timeslot_start)


@with_field_docs
@dataclass(frozen=True, slots=True)
class Template(Data):
    """A worker template."""

    name: str
    """Unique name."""
    instance_type: str | None = None
    """EC2 instance type, such as ``m5zn.metal``; None leaves it to the worker."""
    ami_name_pattern: str = "cisco-cml2.9*"
    """Pattern of the AMI name. The newest match is used."""
    drain_timeout_hours: float = 4.0
    """Hours that a drain waits for sessions before it terminates them."""
    enabled: bool = True
    """Whether the control plane offers the template for new workers."""


@with_field_docs
@dataclass(frozen=True, slots=True)
class CloudMetrics(Data):
    """Figures of an instance from CloudWatch; None where none are reported."""

    cpu_utilization: float | None = None
    """CPU utilization in percent."""
    memory_utilization: float | None = None
    """Memory utilization in percent."""
    disk_utilization: float | None = None
    """Disk utilization in percent."""
    network_in_bytes: float | None = None
    """Bytes received in the latest period of five minutes."""
    network_out_bytes: float | None = None
    """Bytes sent in the latest period of five minutes."""


@with_field_docs
@dataclass(frozen=True, slots=True)
class CmlMetrics(Data):
    """Metrics that CML reports."""

    labs_count: int | None = None
    """Number of labs on the system."""
    nodes_count: int | None = None
    """Number of nodes on the system."""
    cml_version: str | None = None
    """CML version, such as ``2.9.1+build.7``."""
    ready: bool | None = None
    """Whether CML reports that it can start nodes."""
    system_info: Mapping[str, Any] | None = None
    """Capacity and use of the system: ``all_cpu_count``, ``all_memory_total`` and so on, and ``computes``."""
    system_health: Mapping[str, Any] | None = None
    """CML's own verdict on its health."""
    license_info: Mapping[str, Any] | None = None
    """Registration, authorization and features of the license, as CML shows them."""
    uptime_seconds: int | None = None
    """Seconds since EC2 last started the instance."""

    def __post_init__(self) -> None:
        for name in ("system_info", "system_health", "license_info"):
            object.__setattr__(self, name, _freeze(getattr(self, name)))


@with_field_docs
@dataclass(frozen=True, slots=True)
class IdleReport(Data):
    """Result of an idle check."""

    telemetry_fetched: bool = True
    """Whether CML's telemetry could be read."""
    idle_check_performed: bool = True
    """Whether the check was carried out."""
    auto_pause_triggered: bool = False
    """Whether the control plane paused the worker."""
    is_idle: bool = False
    """Whether the worker is idle."""
    idle_minutes: float | None = None
    """Minutes since the last activity, or None."""
    eligible_for_pause: bool = False
    """Whether the worker may be paused."""
    in_snooze_period: bool = False
    """Whether the snooze period after a resume lasts."""
    idle_threshold_minutes: float | None = None
    """Minutes without activity after which the control plane counts a worker as idle, or None."""
    error: str | None = None
    """Error message of the check, or None."""


@with_field_docs
@dataclass(frozen=True, slots=True)
class FleetView(Data):
    """Number of running workers, and the time of the last scale-down."""

    running: int
    """Number of workers in service."""
    last_scale_down_at: datetime | None = None
    """Time of the last scale-down, or None."""

    def __post_init__(self) -> None:
        refuse_naive("last_scale_down_at", self.last_scale_down_at)


@with_field_docs
@dataclass(frozen=True, slots=True)
class Observation(Data):
    """Observation of one worker.

    Each field is None (not requested), :data:`ABSENT` (does not exist), a :class:`CallFailure` (the call failed, so
    nothing is concluded) or the response. ``ec2`` may be a state alone.

    >>> Observation(ec2="stopped").ec2
    'stopped'
    >>> Observation(ec2="sleeping")
    Traceback (most recent call last):
    ...
    ValueError: ec2: "sleeping" is not a state of an EC2 instance; accepted: pending, running, ...
    """

    ec2: AnyEc2State | Instance | Mapping[str, Any] | Absent | CallFailure | None = None
    """The worker's instance, or its state alone."""
    tagged: Sequence[Instance | Mapping[str, Any]] | Absent | CallFailure | None = None
    """Every instance whose tags name this worker."""
    account_proved: bool | CallFailure | None = None
    """Whether the credentials belong to the account of the worker's instance. Read if EC2 shows no instance."""
    template: Template | Mapping[str, Any] | Absent | CallFailure | None = None
    """The worker's template."""
    images: Sequence[Image | Mapping[str, Any]] | Absent | CallFailure | None = None
    """AMIs that match the template's pattern."""
    sessions: Sequence[Session | Mapping[str, Any]] | Absent | CallFailure | None = None
    """The sessions assigned to the worker."""
    cloud_metrics: CloudMetrics | Mapping[str, Any] | Absent | CallFailure | None = None
    """Utilization from CloudWatch."""
    cml: CmlMetrics | Mapping[str, Any] | Absent | CallFailure | None = None
    """Metrics from CML."""
    registration: str | Mapping[str, Any] | Absent | CallFailure | None = None
    """Registration status from CML, such as ``COMPLETED``."""
    telemetry: Sequence[Mapping[str, Any]] | Absent | CallFailure | None = None
    """CML's telemetry events, for an idle check."""
    idle: IdleReport | Mapping[str, Any] | Absent | CallFailure | None = None
    """Result of the idle check."""
    fleet: FleetView | Mapping[str, Any] | Absent | CallFailure | None = None
    """State of the fleet, for scale-down."""
    metrics_reported_at: datetime | None = None
    """Time of the last metrics report for this worker."""
    idle_checked_at: datetime | None = None
    """Time of the last idle check of this worker."""
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
