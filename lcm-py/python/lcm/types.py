"""Types for annotations: fields of a record, statistics, faults and settings.

A type checker then finds a misspelled field, status or setting before the program runs:

>>> from lcm.types import Settings, WorkerFields
>>> import lcm
>>> fields: WorkerFields = {"desired_status": "running", "template_name": "small"}
>>> settings: Settings = {"CONTROL_PLANE_API_URL": "http://localhost:8080"}
>>> lcm.Worker("w-1", "pending", **fields).template_name
'small'
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NotRequired, SupportsIndex, TypeAlias, TypedDict

from lcm._vocabulary import AnyDesiredStatus, AnyWorkerStatus, Settings

__all__ = [
    "CapabilityStats",
    "ControllerStats",
    "DiscoveryStats",
    "ExternalStopStats",
    "FaultAction",
    "FaultRule",
    "NotesStats",
    "QueueStats",
    "RecordProblem",
    "RecordStats",
    "RegionStats",
    "ResourceOutcome",
    "ResourceState",
    "ResourceStats",
    "ServiceStats",
    "Settings",
    "ShardStats",
    "SweepStats",
    "UntrustedRegion",
    "WorkerChanges",
    "WorkerFields",
]

Time: TypeAlias = datetime | str | None


class WorkerFields(TypedDict, total=False):
    """Fields of a worker besides its id and status, by their names on the record. Times are datetimes or ISO 8601."""

    desired_status: AnyDesiredStatus | None
    """Status that the owner wants, or None."""
    ec2_instance_id: str | None
    """Id of the EC2 instance, or None before the launch."""
    version: SupportsIndex | None
    """Version of the record. Writes are conditional on it."""
    name: str | None
    """Display name of the worker."""
    aws_region: str | None
    """AWS region of the instance, or None for the default region."""
    ip_address: str | None
    """Address that the control plane prefers."""
    public_ip: str | None
    """Public IP address of the instance."""
    private_ip: str | None
    """Private IP address of the instance."""
    template_name: str | None
    """Name of the template to launch from."""
    instance_type: str | None
    """EC2 instance type, such as ``m5zn.metal``."""
    ami_name: str | None
    """AMI name or pattern. Takes precedence over the template's."""
    aws_tags: Mapping[str, str]
    """Tags of the instance. They take precedence over the region's."""
    cml_username: str | None
    """User name for CML."""
    cml_password: str | None
    """Password for CML. It is never printed."""
    license: Mapping[str, Any]
    """License of the worker, with its tokens."""
    is_idle_detection_enabled: bool
    """Whether idle detection applies to this worker."""
    created_at: Time
    """Time the record was created."""
    updated_at: Time
    """Time of the last write."""
    terminated_at: Time
    """Time of the termination."""
    start_initiated_at: Time
    """Time of the last request to start the instance."""
    last_activity_check_at: Time
    """Time of the last idle check."""
    metadata: Mapping[str, Any]
    """Free-form data of the control plane."""
    drain_started_at: Time
    """Time the drain began."""
    drain_timeout_seconds: int | None
    """Timeout that the template gave the drain, where it is not the default."""
    drain_tries: int | None
    """Number of times that a session kept the worker from leaving its drain."""
    scaled_down_at: Time
    """Time of the last scale-down."""
    launch_generation: int | None
    """Number of ended launches of this worker; part of the launch token."""
    launched_at: Time
    """Time of the launch."""
    launch_plan: Mapping[str, Any] | None
    """Plan of the launch in progress."""
    license_attempt: str | None
    """License operation that was started last."""
    license_wait: str | None
    """License operation that waits for its start."""
    ec2_account_id: str | None
    """AWS account that was seen to own the instance."""
    ec2_region: str | None
    """Region in which the instance was seen."""


class WorkerChanges(WorkerFields, total=False):
    """All fields of a worker, to change some of them."""

    id: str
    """Id of the worker."""
    status: AnyWorkerStatus
    """Status of the worker."""


class QueueStats(TypedDict):
    """Load of the work queue."""

    active: int
    """Reconciles in progress."""
    waiting: dict[str, int]
    """Waiting resources by priority."""


class ServiceStats(TypedDict):
    """Whether a service that the controller needs can be reached."""

    service: str
    """Name of the service."""
    url: str | None
    """Address of the service, where it is known."""
    reachable: bool | None
    """Whether the last call succeeded; None before the first call."""
    since: str | None
    """Time of the first failed call since the last that succeeded."""
    last_error: str | None
    """Error of the last failed call since then."""


class ShardStats(TypedDict):
    """A shard that the controller leads."""

    shard: int
    """Number of the shard."""
    fencing_token: int | None
    """Fencing token of writes to its workers."""
    lease_age_seconds: float
    """Time since its lease was last renewed."""


class SweepStats(TypedDict):
    """The last sweep over all workers that ended."""

    started_at: str
    """Time at which the sweep began."""
    finished_at: str
    """Time at which the sweep ended."""
    resources: int
    """Number of listed workers."""
    failed: int
    """Number of workers that were not reconciled in time or have to be retried."""


class RecordProblem(TypedDict):
    """A record with fields that cannot be read."""

    worker_id: str | None
    """Id of the worker, if that could be read."""
    managed: bool
    """Whether the worker is reconciled."""
    problems: list[str]
    """Description of each field."""


class RecordStats(TypedDict):
    """Problems of the records at the last listing."""

    unreadable: int
    """Number of unmanaged records: their id, status or instance id cannot be read."""
    degraded: int
    """Number of managed records with a field that cannot be read or is probably misspelled."""
    problems: list[RecordProblem]
    """The first hundred of these records."""


class NotesStats(TypedDict):
    """Where the notes about workers are kept."""

    place: str
    """``record``, ``undecided``, or the kind of the store, such as ``etcd``."""
    reason: str
    """Reason for this place."""
    url: str | None
    """Address of the store, if notes are kept there."""
    lost: bool
    """Whether a note that was written to a record was missing at the next read."""


class RegionStats(TypedDict):
    """Discovery in one region."""

    last_complete_scan_at: str | None
    """Time at which the last complete scan ended."""
    found: int
    """Number of instances that the last scan found."""
    foreign: int
    """Number of those that another control plane manages."""
    imported: int
    """Number of instances imported by all runs."""
    orphans_terminated: int
    """Number of records marked terminated by all runs."""
    is_frozen: bool
    """Whether the last run froze the region."""


class DiscoveryStats(TypedDict):
    """Runs of discovery and garbage collection."""

    runs: int
    """Number of runs that ended."""
    last_run_at: str | None
    """Time at which the last run ended."""
    last_complete_scan_at: str | None
    """Time at which the last run ended that scanned every region completely."""
    found: int
    """Number of instances that the last run found."""
    imported: int
    """Number of instances imported by all runs."""
    orphans_terminated: int
    """Number of records marked terminated by all runs."""
    frozen_regions: list[str]
    """Regions that the last run froze."""
    regions: dict[str, RegionStats]
    """Statistics by region."""


class CapabilityStats(TypedDict):
    """Optional features of the control plane, as far as its responses have shown them."""

    versions: Literal["yes", "no", "unknown"]
    """Records carry a version, and writes are conditional on it."""
    notes: Literal["yes", "no", "unknown"]
    """Records keep the notes of LCM."""
    desired_status: Literal["yes", "no", "unknown"]
    """The desired status of a worker can be written."""
    cancel_drain: Literal["yes", "no", "unknown"]
    """A drain can be canceled."""
    session_moves: Literal["yes", "no", "unknown"]
    """Sessions can be handed back to the scheduler and retried."""
    pause_suppression: Literal["yes", "no", "unknown"]
    """Idle detection can be requested without an automatic pause."""
    audits: Literal["yes", "no", "unknown"]
    """Audit entries and events are stored."""


class UntrustedRegion(TypedDict):
    """A region whose absences are not believed, because nothing proves the account of the credentials."""

    region: str
    """Name of the region."""
    since: str
    """Time of the first absence without proof."""
    doubt: str
    """The doubt about the account."""


class ExternalStopStats(TypedDict):
    """The external-stop policy. It lapses if the control plane does not store a desired status."""

    configured: Literal["restart", "respect"]
    """Policy of the settings."""
    effective: Literal["restart", "respect"]
    """Policy that workers are reconciled with."""


class ControllerStats(TypedDict):
    """Statistics of a :class:`lcm.Controller`. Times are ISO 8601 texts."""

    instance_id: str
    """Identity in the election."""
    role: str
    """``leader`` or ``standby``."""
    leader: str | None
    """Identity of the leader, as far as this controller knows."""
    services: list[ServiceStats]
    """Whether etcd and the control plane can be reached."""
    fencing_token: int | None
    """Fencing token of its writes while it leads by election."""
    shards: NotRequired[list[ShardStats]]
    """Shards that it leads; missing if the fleet has one shard."""
    queue: QueueStats
    """Load of the work queue."""
    watch: str
    """``connected``, ``connecting``, ``given_up``, or ``off`` if it is disabled or the controller does not lead."""
    last_sweep: SweepStats | None
    """The last sweep that ended."""
    records: RecordStats
    """Problems of the records at the last listing."""
    notes: NotesStats
    """Where the notes about workers are kept."""
    discovery: DiscoveryStats | None
    """Runs of discovery and garbage collection."""
    control_plane: CapabilityStats
    """Optional features of the control plane."""
    external_stop_policy: ExternalStopStats
    """Meaning of a stop from outside."""
    untrusted_regions: list[UntrustedRegion]
    """Regions whose absences are not believed."""
    readiness: str
    """``standby``, ``sweeping`` or ``ready``."""
    counters: dict[str, int]
    """Counters by name, such as ``provisioned_count``."""


class ResourceOutcome(TypedDict):
    """Outcome of the last reconcile of a resource."""

    outcome: Literal["success", "requeue", "retry", "skip"]
    """Outcome of the reconcile."""
    code: str
    """Stable code of the reason."""
    error: str | None
    """Error message, or None."""


class ResourceState(TypedDict):
    """Reconciliation state of one resource."""

    retry_count: int
    """Number of consecutive failures."""
    last: ResourceOutcome | None
    """Outcome of its last reconcile, or None before the first."""


class ResourceStats(TypedDict):
    """Statistics of a :class:`lcm.ResourceController`."""

    instance_id: str
    """Identity in the election."""
    role: str
    """``leader`` or ``standby``."""
    queue: QueueStats
    """Load of the work queue."""
    resources: dict[str, ResourceState]
    """State of the resources by key."""


class ErrorFault(TypedDict):
    """Returns an error without executing the request."""

    kind: Literal["error"]
    code: str
    """Error code of the service."""
    status: NotRequired[int]
    """HTTP status; the default of the code if missing."""
    message: NotRequired[str]
    """Error message; the default of the code if missing."""


class CredentialsFault(TypedDict):
    """Returns the error of AWS for rejected credentials. AWS services only."""

    kind: Literal["credentials"]
    problem: Literal["expired", "invalid"]
    """Reason of the rejection."""


class LatencyFault(TypedDict):
    """Delays the request."""

    kind: Literal["latency"]
    seconds: float
    """Length of the delay."""
    on: NotRequired[Literal["world", "real"]]
    """Clock on which the delay is measured."""


class ResetFault(TypedDict):
    """Resets the connection without executing the request."""

    kind: Literal["reset"]


class DropResponseFault(TypedDict):
    """Executes the request and closes the connection without a response."""

    kind: Literal["drop-response"]


class VisibilityLagFault(TypedDict):
    """Hides instances that were launched recently."""

    kind: Literal["visibility-lag"]
    seconds: float
    """Seconds after the launch for which an instance is hidden."""


class OmitFault(TypedDict):
    """Omits instances from lists."""

    kind: Literal["omit"]
    fraction: NotRequired[float]
    """Probability from 0 to 1 that an instance is omitted; 1 by default."""


class EmptyPageFault(TypedDict):
    """Returns an empty page with a next token."""

    kind: Literal["empty-page"]


class PartialPageFault(TypedDict):
    """Returns a page with fewer items than requested."""

    kind: Literal["partial-page"]
    limit: int
    """Highest number of items on the page."""


class ShuffleFault(TypedDict):
    """Returns the items of a list in random order."""

    kind: Literal["shuffle"]


CustomFault = TypedDict("CustomFault", {"kind": Literal["custom"], "name": str, "with": NotRequired[Mapping[str, Any]]})
"""A fault that is specific to one service, such as ``bad-gateway``, with its parameters in ``with``."""

FaultAction: TypeAlias = (
    ErrorFault
    | CredentialsFault
    | LatencyFault
    | ResetFault
    | DropResponseFault
    | VisibilityLagFault
    | OmitFault
    | EmptyPageFault
    | PartialPageFault
    | ShuffleFault
    | CustomFault
)
"""The fault of a rule; ``kind`` selects it."""


class FaultRule(TypedDict, total=False):
    """Conditions of a fault. A missing condition matches every request."""

    service: Literal["ec2", "cloudwatch", "sts", "cml", "etcd", "control-plane"]
    """Matches requests to this service."""
    operation: str
    """Matches requests for this operation; ``*`` and ``?`` are wildcards."""
    region: str
    """Matches requests in this region."""
    instance: str
    """Matches requests that contain this instance id; outside AWS, requests about this worker or session."""
    key_prefix: str
    """Matches requests to etcd with a key that has this prefix."""
    after: int
    """Number of matching requests that are served before the rule applies."""
    times: int
    """Number of requests to which the rule applies; no limit if missing."""
    probability: float
    """Probability from 0 to 1 that the rule applies to a matching request."""
    per: Literal["attempt", "call"]
    """Unit that ``after``, ``times`` and ``probability`` count."""
