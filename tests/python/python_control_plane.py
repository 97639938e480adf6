"""A control-plane port with ``async`` methods."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import lcm
from lcm.ports import ControlPlane, Patch, fence

OVER = {"stopped", "archived", "terminated", "expired"}
Record = dict[str, Any]


class PythonControlPlane(ControlPlane):
    """A control plane that stores records in a dict. Writes need the latest version and the highest fencing token."""

    def __init__(self, *records: Mapping[str, Any]) -> None:
        self.records: dict[str, Record] = {record["id"]: {**record, "version": 1} for record in records}
        self.sessions_: dict[str, Record] = {}
        self.templates: dict[str, Record] = {}
        self.idle: dict[str, lcm.IdleReport] = {}
        self.metrics: dict[str, tuple[Any, Any]] = {}
        self.audited: list[tuple[str, str, str]] = []
        self.highest_fence = 0

    async def workers(self, region: str | None, with_terminated: bool, /) -> list[Record]:
        # The caller filters as well.
        return list(self.records.values())

    async def worker(self, id: str, /) -> Record | None:
        return self.records.get(id)

    async def write(self, patch: Patch, /) -> int:
        record = self._writable_record(patch.worker_id)
        version: int = record["version"]
        if patch.status == record["status"] == "terminated":
            return version
        if patch.expected_version not in (None, version):
            raise lcm.PortError(f"version {version} is the latest", "conflict")
        if patch.status == "draining" and record["status"] != "running":
            raise lcm.PortError(f"the worker is {record['status']}", "conflict")
        if patch.status == "terminated":
            for session in self.sessions_.values():
                if session["worker_id"] == patch.worker_id and session["status"] not in OVER:
                    session["status"] = "terminated"
        after = patch.apply_to(record).to_dict()
        after["license"] = {**record.get("license", {}), **after["license"]}
        after |= {name: record[name] for name in ("cml_password",) if name in record}
        if report := patch.changes.get("license_report"):
            after["license"] = license_after(after["license"], report)
        return self._store(after, version)

    async def template(self, name: str, /) -> Record | None:
        return self.templates.get(name)

    async def sessions(self, worker_id: str, /) -> list[Record]:
        return [session for session in self.sessions_.values() if session["worker_id"] == worker_id]

    async def hand_back_session(self, session_id: str, /) -> None:
        self._active_session(session_id).update(status="pending", worker_id=None)

    async def retry_session(self, session_id: str, attempt: int, /) -> None:
        self._active_session(session_id).update(status="instantiating", retry_count=attempt)

    async def terminate_session(self, session_id: str, reason: str, /) -> None:
        self._check_fence()
        self.sessions_[session_id]["status"] = "terminated"

    async def report_metrics(self, id: str, cloud: Any, cml: Any, at: datetime, /) -> int:
        version: int = self._writable_record(id)["version"]
        self.metrics[id] = (cloud, cml)
        return version

    async def report_license(self, id: str, report: str, /) -> int:
        record = self._writable_record(id)
        return self._store({**record, "license": license_after(record.get("license", {}), report)}, record["version"])

    async def detect_idle(self, id: str, telemetry: list[Record] | None, auto_pause: str, /) -> lcm.IdleReport:
        self._writable_record(id)
        if telemetry is None:
            return lcm.IdleReport(telemetry_fetched=False, idle_check_performed=False)
        self.idle[id] = lcm.IdleReport(is_idle=not telemetry, eligible_for_pause=not telemetry)
        return self.idle[id]

    async def idle_status(self, id: str, /) -> lcm.IdleReport:
        # No worker of the suite has ever been active.
        return self.idle.get(id, lcm.IdleReport(is_idle=True, eligible_for_pause=True))

    async def import_instances(self, region: str, instances: list[Record], /) -> int:
        self._check_fence()
        known = {record.get("ec2_instance_id") for record in self.records.values()}
        new = [instance for instance in instances if instance["id"] not in known]
        for instance in new:
            record = {"id": f"imported-{instance['id']}", "status": instance["state"], "aws_region": region}
            addresses = {name: instance[name] for name in ("public_ip", "private_ip")}
            self.records[record["id"]] = {**record, **addresses, "ec2_instance_id": instance["id"], "version": 1}
        return len(new)

    async def audit(self, id: str, label: str, detail: str, /) -> None:
        self._check_fence()
        self.audited.append((id, label, detail))

    def _check_fence(self) -> None:
        token = fence()
        if token is not None and token < self.highest_fence:
            raise lcm.PortError("a newer leader has written", "conflict")
        self.highest_fence = max(self.highest_fence, token or 0)

    def _writable_record(self, id: str) -> Record:
        self._check_fence()
        if id not in self.records:
            raise lcm.PortError(f"no worker {id}", "refused", "404")
        return self.records[id]

    def _active_session(self, session_id: str) -> Record:
        self._check_fence()
        session = self.sessions_[session_id]
        if session["status"] in OVER:
            raise lcm.PortError(f"{session_id} is {session['status']}", "refused")
        return session

    def _store(self, record: Record, version: int) -> int:
        self.records[record["id"]] = {**record, "version": version + 1}
        return version + 1


def license_after(license: Mapping[str, Any], report: str) -> Record:
    """Return a license after a progress report."""
    if report.startswith("start-"):
        return {**license, "operation_in_progress": True}
    after = {**license, "operation_in_progress": False, "pending_operation": None, "pending_token": None}
    if report == "complete-registration":
        after |= {"status": "registered", "token": license.get("pending_token") or license.get("token")}
    if report == "complete-deregistration":
        after |= {"status": "unregistered", "token": None}
    return after


class ControlPlaneWorld:
    """World of the control-plane port."""

    def __init__(self, records: PythonControlPlane | None = None) -> None:
        self.records = records or PythonControlPlane()

    def control_plane(self) -> PythonControlPlane:
        return self.records

    def put_worker(self, record: Record, /) -> None:
        self.records.records[record["id"]] = {**record, "version": 1}

    put_unreadable = put_worker

    def put_session(self, session: Record, /) -> None:
        self.records.sessions_[session["id"]] = session

    def put_template(self, template: Record, /) -> None:
        self.records.templates[template["name"]] = template

    async def audit(self, worker_id: str, /) -> list[str]:
        return [label for id, label, _ in self.records.audited if id == worker_id]
