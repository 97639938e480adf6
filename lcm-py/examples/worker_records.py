"""The records of a service in SQLite, and the port through which LCM reads and writes them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import lcm

Record = dict[str, Any]

TABLES = """
CREATE TABLE IF NOT EXISTS workers (id TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, worker_id TEXT, session TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS templates (name TEXT PRIMARY KEY, template TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS audit (worker_id TEXT NOT NULL, label TEXT NOT NULL, detail TEXT NOT NULL);
"""

ENDED = {"stopped", "archived", "terminated", "expired"}
"""States of a session that is over."""


class Conflict(Exception):
    """The record changed since it was read, or it does not allow the change."""


class WorkerRepository:
    """The records of the service. Its instances share a file, and a write needs the version that was read."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(TABLES)

    def add(self, record: Mapping[str, Any]) -> Record:
        """Store a new record. Raises `Conflict` if its id is taken."""
        try:
            self._database.execute("INSERT INTO workers VALUES (?, 1, ?)", (record["id"], json.dumps(dict(record))))
        except sqlite3.IntegrityError:
            raise Conflict(f"there is a worker {record['id']}") from None
        return {**record, "version": 1}

    def worker(self, id: str) -> Record | None:
        """Return a record, or None if there is none."""
        row = self._database.execute("SELECT record, version FROM workers WHERE id = ?", (id,)).fetchone()
        return {**json.loads(row[0]), "version": row[1]} if row else None

    def workers(self) -> list[Record]:
        """Return all records."""
        rows = self._database.execute("SELECT record, version FROM workers ORDER BY id")
        return [{**json.loads(record), "version": version} for record, version in rows]

    def save(self, record: Record) -> Record:
        """Write a record. Raises `Conflict` unless the stored version is that of the record."""
        id, version = record["id"], record["version"]
        written = self._database.execute(
            "UPDATE workers SET record = ?, version = version + 1 WHERE id = ? AND version = ?",
            (json.dumps(record), id, version),
        )
        if not written.rowcount:
            raise Conflict(f"worker {id} has another version than {version}")
        return {**record, "version": version + 1}

    def sessions(self, worker_id: str) -> list[Record]:
        """Return the sessions on a worker."""
        rows = self._database.execute("SELECT session FROM sessions WHERE worker_id = ? ORDER BY id", (worker_id,))
        return [json.loads(session) for (session,) in rows]

    def put_session(self, session: Mapping[str, Any]) -> None:
        """Store a session."""
        row = (session["id"], session.get("worker_id"), json.dumps(dict(session)))
        self._database.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", row)

    def move_session(self, id: str, **changes: Any) -> None:
        """Change a session. Raises `Conflict` if it is over or does not exist."""
        row = self._database.execute("SELECT session FROM sessions WHERE id = ?", (id,)).fetchone()
        session = json.loads(row[0]) if row else {"status": "expired"}
        if session["status"] in ENDED:
            raise Conflict(f"session {id} is {session['status']}")
        self.put_session({**session, **changes})

    def end_session(self, id: str) -> None:
        """End a session. A session that is over stays as it is."""
        try:
            self.move_session(id, status="terminated")
        except Conflict:
            return

    def template(self, name: str) -> Record | None:
        """Return a template, or None if there is none."""
        row = self._database.execute("SELECT template FROM templates WHERE name = ?", (name,)).fetchone()
        return dict(json.loads(row[0])) if row else None

    def put_template(self, template: Mapping[str, Any]) -> None:
        """Store a template."""
        row = (template["name"], json.dumps(dict(template)))
        self._database.execute("INSERT OR REPLACE INTO templates VALUES (?, ?)", row)

    def note(self, worker_id: str, label: str, detail: str) -> None:
        """Add an entry to the audit log."""
        self._database.execute("INSERT INTO audit VALUES (?, ?, ?)", (worker_id, label, detail))

    def notes(self, worker_id: str) -> list[tuple[str, str]]:
        """Return the audit log of a worker, oldest first: labels and details."""
        query = "SELECT label, detail FROM audit WHERE worker_id = ? ORDER BY rowid"
        return self._database.execute(query, (worker_id,)).fetchall()


def after_report(record: Record, report: str) -> Record:
    """Return a record after a report of its license operation. The last report of an operation ends it."""
    license = record.get("license") or {}
    if report.startswith("start-"):
        return {**record, "license": {**license, "operation_in_progress": True}}
    ended = {**license, "operation_in_progress": False, "pending_operation": None, "pending_token": None}
    if report == "complete-registration":
        ended |= {"status": "registered", "token": license.get("pending_token") or license.get("token")}
    if report == "complete-deregistration":
        ended |= {"status": "unregistered", "token": None}
    return {**record, "license": ended}


@contextmanager
def reported_as(kind: Literal["conflict", "refused"]) -> Iterator[None]:
    """Report a conflict in the repository to LCM as this kind of failure."""
    try:
        yield
    except Conflict as conflict:
        raise lcm.PortError(str(conflict), kind) from conflict


class RecordsPort(lcm.ports.ControlPlane):
    """The repository as the control plane of LCM. Methods without a use here keep their defaults."""

    def __init__(self, records: WorkerRepository) -> None:
        self.records = records

    async def workers(self, region: str | None, with_terminated: bool, /) -> list[Record]:
        return self.records.workers()

    async def worker(self, id: str, /) -> Record | None:
        return self.records.worker(id)

    async def write(self, patch: lcm.ports.Patch, /) -> int:
        record = self._record(patch.worker_id)
        if patch.status == record["status"] == "terminated":
            return int(record["version"])
        if patch.expected_version not in (None, record["version"]):
            raise lcm.PortError(f"the record has version {record['version']}", "conflict")
        if patch.status == "draining" and record["status"] != "running":
            raise lcm.PortError(f"the worker is {record['status']}", "conflict")
        changes = patch.to_dict()["changes"]
        if report := changes.pop("license_report", None):
            record = after_report(record, report)
        after = {**record, **changes, "status": str(patch.status or record["status"])}
        if patch.termination:
            after["terminated_at"] = patch.at.isoformat()
            for session in self.records.sessions(patch.worker_id):
                self.records.end_session(session["id"])
        with reported_as("conflict"):
            return int(self.records.save(after)["version"])

    async def report_license(self, id: str, report: str, /) -> int:
        with reported_as("conflict"):
            return int(self.records.save(after_report(self._record(id), report))["version"])

    async def template(self, name: str, /) -> Record | None:
        return self.records.template(name)

    async def sessions(self, worker_id: str, /) -> list[Record]:
        return self.records.sessions(worker_id)

    async def hand_back_session(self, session_id: str, /) -> None:
        with reported_as("refused"):
            self.records.move_session(session_id, status="pending", worker_id=None)

    async def retry_session(self, session_id: str, attempt: int, /) -> None:
        with reported_as("refused"):
            self.records.move_session(session_id, status="instantiating", retry_count=attempt)

    async def terminate_session(self, session_id: str, reason: str, /) -> None:
        self.records.end_session(session_id)

    async def audit(self, id: str, label: str, detail: str, /) -> None:
        self.records.note(id, label, detail)

    def _record(self, id: str) -> Record:
        if record := self.records.worker(id):
            return record
        raise lcm.PortError(f"there is no worker {id}", "refused")
