"""The same decisions in plain Python: what a team would write for itself.

Only for comparison. It covers what can be decided from the state of an instance alone, and is written to be quick: no
frozen dataclass, no dispatch by name, dates read only where they count. It decides from the control plane's dicts, or
from objects that somebody made of those before.
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
class Pass:
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
    """A record that was read before: every word is checked, and every date is a date."""

    status: Status
    desired: Desired | None
    started: datetime | None
    address: str | None
    pending_operation: str | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Worker:
        wanted, started = record.get("desired_status"), record.get("start_initiated_at") or record.get("created_at")
        return cls(
            Status(record["status"].lower()),
            None if wanted is None else Desired(wanted),
            None if started is None else datetime.fromisoformat(started),
            record.get("public_ip") or record.get("private_ip") or record.get("ip_address"),
            (record.get("license") or {}).get("pending_operation"),
        )


@dataclass(slots=True)
class TypedPass(Pass):
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


def pending(seen: Pass) -> Decision:
    if seen.ec2 == "shutting-down":
        return seen.stay("requeue", "terminate_under_way")
    if seen.ec2 == "terminated":
        if seen.desired is Desired.TERMINATED:
            return Decision("success", Status.TERMINATED, "not_wanted")
        return seen.stay("requeue", "launch_died")
    return Decision("success", Status.PROVISIONING, "instance_recorded")


def provisioning(seen: Pass) -> Decision:
    if seen.ec2 == "pending":
        if seen.is_old(PROVISIONING_LIMIT):
            return Decision("success", Status.FAILED, "provisioning_timeout")
        return seen.stay("requeue", "coming_up")
    if seen.ec2 == "running":
        if seen.has_address():
            return Decision("success", Status.RUNNING, "up")
        return Decision("success", Status.STARTING, "awaiting_address")
    if seen.ec2 == "stopped":
        return Decision("success", Status.STOPPED, "drift")
    if seen.ec2 in ("shutting-down", "terminated"):
        return Decision("success", Status.FAILED, "launch_ended")
    return seen.stay("retry", "unexpected_ec2_state")


def running(seen: Pass) -> Decision:
    if seen.desired is Desired.STOPPED:
        return Decision("success", Status.STOPPING, "desired_stopped")
    if seen.desired is Desired.TERMINATED:
        return Decision("success", Status.TERMINATING, "desired_terminated")
    if seen.ec2 == "running":
        if seen.has_pending_operation():
            return seen.stay("requeue", "license_in_progress")
        return seen.stay("success", "in_service")
    if seen.ec2 == "terminated":
        return Decision("success", Status.TERMINATED, "gone")
    return Decision("success", OBSERVED.get(seen.ec2, Status.UNKNOWN), "drift")


def stopping(seen: Pass) -> Decision:
    if seen.ec2 == "running":
        if seen.desired is Desired.RUNNING:
            return Decision("success", Status.RUNNING, "stop_overtaken")
        return seen.stay("requeue", "stop_requested", "stop_instance")
    if seen.ec2 == "stopping":
        return seen.stay("requeue", "stop_under_way")
    if seen.ec2 == "stopped":
        return Decision("success", Status.STOPPED, "ec2_stopped")
    if seen.ec2 in ("shutting-down", "terminated"):
        return Decision("success", OBSERVED[seen.ec2], "drift")
    return seen.stay("retry", "unexpected_ec2_state")


def stopped(seen: Pass) -> Decision:
    if seen.ec2 in ("shutting-down", "terminated"):
        return Decision("success", OBSERVED[seen.ec2], "gone" if seen.ec2 == "terminated" else "drift")
    if seen.desired is Desired.TERMINATED:
        return Decision("success", Status.TERMINATING, "desired_terminated")
    if seen.ec2 == "running":
        return Decision("success", Status.RUNNING, "unexpected_restart")
    if seen.ec2 == "stopping":
        return seen.stay("requeue", "stop_under_way")
    if seen.ec2 == "stopped":
        if seen.desired is Desired.RUNNING:
            return Decision("success", Status.STARTING, "start_requested", "start_instance")
        return seen.stay("success", "at_rest")
    return seen.stay("requeue", "coming_up")


def terminating(seen: Pass) -> Decision:
    if seen.ec2 == "terminated":
        return Decision("success", Status.TERMINATED, "ec2_terminated")
    if seen.ec2 == "shutting-down":
        return seen.stay("requeue", "terminate_under_way")
    return seen.stay("requeue", "terminate_requested", "terminate_instance")


def terminated(seen: Pass) -> Decision:
    if seen.ec2 in ("shutting-down", "terminated"):
        return seen.stay("skip", "terminated")
    return Decision("success", OBSERVED[seen.ec2], "resurrected")


HANDLERS: dict[Status, Callable[[Pass], Decision]] = {
    Status.PENDING: pending,
    Status.PROVISIONING: provisioning,
    Status.RUNNING: running,
    Status.STOPPING: stopping,
    Status.STOPPED: stopped,
    Status.TERMINATING: terminating,
    Status.TERMINATED: terminated,
}


def decide(record: Mapping[str, Any], ec2: str, now: datetime) -> Decision:
    """Decide about one worker from its record and the state of its instance."""
    status = Status(record["status"].lower())
    wanted = record.get("desired_status")
    desired = None if wanted is None else Desired(wanted)
    return HANDLERS[status](Pass(record, status, desired, ec2, now))


def decide_typed(worker: Worker, ec2: str, now: datetime) -> Decision:
    """Decide about one worker that was read before."""
    return HANDLERS[worker.status](TypedPass(NO_RECORD, worker.status, worker.desired, ec2, now, worker))
