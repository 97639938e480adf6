"""The same decisions in plain Python, as a team would write them without LCM.

Used for comparison only. Covers the decisions that depend on the state of the instance alone. Written to be fast: no
frozen dataclasses, no dispatch by name, dates parsed only where a decision needs them. Decides from the control plane's
dicts or from parsed objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    PENDING = "pending"
    PROVISIONING = "provisioning"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Desired(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    TERMINATED = "terminated"


@dataclass(slots=True)
class Decision:
    outcome: str
    target: Status
    reason: str
    action: str | None = None


@dataclass(slots=True)
class Context:
    record: Mapping[str, Any]
    status: Status
    desired: Desired | None
    ec2: str
    now: datetime

    def is_old(self, limit: timedelta) -> bool:
        started = self.record.get("start_initiated_at") or self.record.get("created_at")
        return started is not None and self.now - datetime.fromisoformat(started) > limit

    def has_address(self) -> bool:
        record = self.record
        return bool(record.get("public_ip") or record.get("private_ip") or record.get("ip_address"))

    def has_pending_operation(self) -> bool:
        license = self.record.get("license")
        return license is not None and license.get("pending_operation") is not None

    def stay(self, outcome: str, reason: str, action: str | None = None) -> Decision:
        return Decision(outcome, self.status, reason, action)


@dataclass(slots=True)
class Worker:
    """A parsed record with validated enums and dates."""

    status: Status
    desired: Desired | None
    started: datetime | None
    address: str | None
    pending_operation: str | None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Worker:
        wanted, started = record.get("desired_status"), record.get("start_initiated_at") or record.get("created_at")
        return cls(
            Status(record["status"].lower()),
            None if wanted is None else Desired(wanted),
            None if started is None else datetime.fromisoformat(started),
            record.get("public_ip") or record.get("private_ip") or record.get("ip_address"),
            (record.get("license") or {}).get("pending_operation"),
        )


@dataclass(slots=True)
class TypedContext(Context):
    worker: Worker

    def is_old(self, limit: timedelta) -> bool:
        return self.worker.started is not None and self.now - self.worker.started > limit

    def has_address(self) -> bool:
        return bool(self.worker.address)

    def has_pending_operation(self) -> bool:
        return self.worker.pending_operation is not None


NO_RECORD: Mapping[str, Any] = {}
PROVISIONING_LIMIT = timedelta(minutes=15)
OBSERVED = {
    "pending": Status.PROVISIONING,
    "running": Status.RUNNING,
    "stopping": Status.STOPPING,
    "stopped": Status.STOPPED,
    "shutting-down": Status.TERMINATING,
    "terminated": Status.TERMINATED,
}


def pending(context: Context) -> Decision:
    if context.ec2 == "shutting-down":
        return context.stay("requeue", "terminate_under_way")
    if context.ec2 == "terminated":
        if context.desired is Desired.TERMINATED:
            return Decision("success", Status.TERMINATED, "not_wanted")
        return context.stay("requeue", "launch_died")
    return Decision("success", Status.PROVISIONING, "instance_recorded")


def provisioning(context: Context) -> Decision:
    if context.ec2 == "pending":
        if context.is_old(PROVISIONING_LIMIT):
            return Decision("success", Status.FAILED, "provisioning_timeout")
        return context.stay("requeue", "coming_up")
    if context.ec2 == "running":
        if context.has_address():
            return Decision("success", Status.RUNNING, "up")
        return Decision("success", Status.STARTING, "awaiting_address")
    if context.ec2 == "stopped":
        return Decision("success", Status.STOPPED, "drift")
    if context.ec2 in ("shutting-down", "terminated"):
        return Decision("success", Status.FAILED, "launch_ended")
    return context.stay("retry", "unexpected_ec2_state")


def running(context: Context) -> Decision:
    if context.desired is Desired.STOPPED:
        return Decision("success", Status.STOPPING, "desired_stopped")
    if context.desired is Desired.TERMINATED:
        return Decision("success", Status.TERMINATING, "desired_terminated")
    if context.ec2 == "running":
        if context.has_pending_operation():
            return context.stay("requeue", "license_in_progress")
        return context.stay("success", "in_service")
    if context.ec2 == "terminated":
        return Decision("success", Status.TERMINATED, "gone")
    return Decision("success", OBSERVED.get(context.ec2, Status.UNKNOWN), "drift")


def stopping(context: Context) -> Decision:
    if context.ec2 == "running":
        if context.desired is Desired.RUNNING:
            return Decision("success", Status.RUNNING, "stop_overtaken")
        return context.stay("requeue", "stop_requested", "stop_instance")
    if context.ec2 == "stopping":
        return context.stay("requeue", "stop_under_way")
    if context.ec2 == "stopped":
        return Decision("success", Status.STOPPED, "ec2_stopped")
    if context.ec2 in ("shutting-down", "terminated"):
        return Decision("success", OBSERVED[context.ec2], "drift")
    return context.stay("retry", "unexpected_ec2_state")


def stopped(context: Context) -> Decision:
    if context.ec2 in ("shutting-down", "terminated"):
        return Decision("success", OBSERVED[context.ec2], "gone" if context.ec2 == "terminated" else "drift")
    if context.desired is Desired.TERMINATED:
        return Decision("success", Status.TERMINATING, "desired_terminated")
    if context.ec2 == "running":
        return Decision("success", Status.RUNNING, "unexpected_restart")
    if context.ec2 == "stopping":
        return context.stay("requeue", "stop_under_way")
    if context.ec2 == "stopped":
        if context.desired is Desired.RUNNING:
            return Decision("success", Status.STARTING, "start_requested", "start_instance")
        return context.stay("success", "at_rest")
    return context.stay("requeue", "coming_up")


def terminating(context: Context) -> Decision:
    if context.ec2 == "terminated":
        return Decision("success", Status.TERMINATED, "ec2_terminated")
    if context.ec2 == "shutting-down":
        return context.stay("requeue", "terminate_under_way")
    return context.stay("requeue", "terminate_requested", "terminate_instance")


def terminated(context: Context) -> Decision:
    if context.ec2 in ("shutting-down", "terminated"):
        return context.stay("skip", "terminated")
    return Decision("success", OBSERVED[context.ec2], "resurrected")


HANDLERS: dict[Status, Callable[[Context], Decision]] = {
    Status.PENDING: pending,
    Status.PROVISIONING: provisioning,
    Status.RUNNING: running,
    Status.STOPPING: stopping,
    Status.STOPPED: stopped,
    Status.TERMINATING: terminating,
    Status.TERMINATED: terminated,
}


def decide(record: Mapping[str, Any], ec2: str, now: datetime) -> Decision:
    """Decides for one worker from its record and the state of its instance."""
    status = Status(record["status"].lower())
    wanted = record.get("desired_status")
    desired = None if wanted is None else Desired(wanted)
    return HANDLERS[status](Context(record, status, desired, ec2, now))


def decide_typed(worker: Worker, ec2: str, now: datetime) -> Decision:
    """Decides for one parsed worker."""
    return HANDLERS[worker.status](TypedContext(NO_RECORD, worker.status, worker.desired, ec2, now, worker))
