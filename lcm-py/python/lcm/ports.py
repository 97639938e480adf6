"""Ports that you can write in Python, with plain or ``async`` methods.

Give one to :class:`lcm.Clients` and every pass asks it instead of the adapter that the settings would choose. A method
that raises :class:`lcm.PortError` says what kind of failure it was; after any other exception nobody knows what was
done, and the pass is repeated.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias, TypeVar

from lcm._lcm import Worker
from lcm.data import Absent, CallFailure, Data, FrozenMap
from lcm.observation import IdleReport, Image, Instance, Session, Template
from lcm.words import OutcomeKind, WorkerStatus

__all__ = ["Compute", "ControlPlane", "Events", "Patch", "Resources"]

T = TypeVar("T")
R = TypeVar("R")
Answer: TypeAlias = T | Awaitable[T]
"""What a plain method gives back, or what an ``async`` one does."""


@dataclass(frozen=True, slots=True)
class Patch(Data):
    """What to write to a worker's record, if nobody else has written to it in between."""

    worker_id: str
    """Whose record."""
    expected_version: int | None
    """The version that was read. If the record has another one, raise ``PortError("…", "conflict")``."""
    status: WorkerStatus | None
    """The new status, if it changes."""
    record: Worker
    """The record as it is once this is written; its version is yours to raise."""
    changes: FrozenMap
    """The other fields that change; None clears one."""
    termination: FrozenMap | None
    """Who terminated the worker and why, when that is the new status. Its sessions end too."""
    drain: FrozenMap | None
    """Who asked for the drain, or called it off, and why."""
    at: datetime
    """When the pass was made."""
    fence: int | None
    """The leader's fencing token: a write with a smaller one than seen before comes from a leader that was."""


class ControlPlane(Protocol):
    """The owner of the records. Those methods that have a body can be left as they are by whoever inherits."""

    def workers(self, region: str | None, with_terminated: bool, /) -> Answer[Iterable[Worker | Mapping[str, Any]]]:
        """List the records. More than was asked for does no harm."""
        ...

    def worker(self, id: str, /) -> Answer[Worker | Mapping[str, Any] | None]:
        """Read a record; None if there is none."""
        ...

    def write(self, patch: Patch, /) -> Answer[int | None]:
        """Write a record and give its new version, if records have versions."""
        ...

    def template(self, name: str, /) -> Answer[Template | Mapping[str, Any] | None]:
        """Read a template; None if there is none."""
        ...

    def sessions(self, worker_id: str, /) -> Answer[Iterable[Session | Mapping[str, Any]]]:
        """List the sessions of a worker. A drain stops the worker once none is left, so forget none."""
        ...

    def hand_back_session(self, session_id: str, /) -> Answer[None]:
        """Give a session that has not begun back to the scheduler."""
        ...

    def retry_session(self, session_id: str, attempt: int, /) -> Answer[None]:
        """Try a failed session again on the same worker."""
        ...

    def terminate_session(self, session_id: str, reason: str, /) -> Answer[None]:
        """End a session."""
        ...

    def report_metrics(
        self, id: str, cloud: dict[str, Any] | None, cml: dict[str, Any] | None, at: datetime, /
    ) -> Answer[int | None]:
        """Take note of a worker's utilisation; gives the record's version if that changes it."""
        return None

    def report_license(self, id: str, report: str, /) -> Answer[int | None]:
        """Take note of how a licence operation goes, such as ``complete-registration``."""
        return None

    def detect_idle(
        self, id: str, telemetry: list[dict[str, Any]] | None, auto_pause: str, /
    ) -> Answer[IdleReport | Mapping[str, Any]]:
        """Judge whether a worker is idle. As it stands: no result, which never means idle."""
        return IdleReport(telemetry_fetched=False, idle_check_performed=False)

    def idle_status(self, id: str, /) -> Answer[IdleReport | Mapping[str, Any]]:
        """Tell the last judgement."""
        return IdleReport(telemetry_fetched=False, idle_check_performed=False)

    def import_instances(self, region: str, instances: list[dict[str, Any]], /) -> Answer[int]:
        """Make records for instances that nobody knows; gives how many were made."""
        return 0

    def discovery_settings(self) -> Answer[Mapping[str, Any] | None]:
        """How discovery is set: ``enabled``, ``regions``, ``ami_name_pattern``. None leaves that to the settings."""
        return None

    def audit(self, id: str, label: str, detail: str, /) -> Answer[None]:
        """Take note of a scaling decision."""
        return None


class Compute(Protocol):
    """EC2. Every call is made with a region, and every change can be asked for twice without harm."""

    def instances(
        self, region: str, ids: list[str], /
    ) -> Answer[Mapping[str, Instance | Mapping[str, Any] | str | Absent | CallFailure]]:
        """Describe instances by id.

        Only :data:`lcm.ABSENT` says that there is none. An id that is left out was not answered, and nothing is
        concluded from that.
        """
        ...

    def tagged(self, region: str, worker_id: str, /) -> Answer[Iterable[Instance | Mapping[str, Any]]]:
        """Every instance whose tag ``lcm:worker_id`` names the worker, dead ones included."""
        ...

    def images(self, region: str, pattern: str, /) -> Answer[Iterable[Image | Mapping[str, Any]]]:
        """The AMIs whose name matches."""
        ...

    def scan(
        self, region: str, ami_name_pattern: str | None, tags: list[tuple[str, str | None]], /
    ) -> Answer[Iterable[Instance | Mapping[str, Any]]]:
        """Every instance that matches, all pages of them: raise if one page fails, or the missing ones look gone."""
        ...

    def sees_subnet(self, region: str, subnet_id: str, /) -> Answer[bool]:
        """Whether the subnet is visible with these credentials."""
        ...

    def launch(self, plan: FrozenMap, /) -> Answer[str]:
        """Launch exactly this plan, ``client_token`` included, and give the instance's id."""
        ...

    def start(self, region: str, id: str, /) -> Answer[None]:
        """Start an instance."""
        ...

    def stop(self, region: str, id: str, /) -> Answer[None]:
        """Stop an instance."""
        ...

    def terminate(self, region: str, id: str, /) -> Answer[None]:
        """Terminate an instance."""
        ...


class Events(Protocol):
    """Whoever listens."""

    def publish(self, event: dict[str, Any], /) -> Answer[None]:
        """Take a CloudEvent."""
        ...


class Resources(Protocol[R]):
    """What an :class:`lcm.ResourceController` keeps reconciled. Nothing is reconciled twice at the same time."""

    def key(self, resource: R, /) -> str:
        """Name a resource. Must not wait."""
        ...

    def list(self, everything: bool, /) -> Answer[Iterable[R]]:
        """List resources: everything there is, or what may need something done."""
        ...

    def fetch(self, key: str, /) -> Answer[R | None]:
        """Read one resource that was told as changed; None if it is gone."""
        ...

    def reconcile(self, resource: R, /) -> Answer[OutcomeKind | str | timedelta | None]:
        """One pass over a resource.

        None is a success, a timedelta says when to look again, and a word is an outcome. What it raises is logged and
        retried after the backoff.
        """
        ...


class Bridge:
    """An object whose methods Rust calls, from threads of its own."""

    def __init__(self, port: object, required: type) -> None:
        missing = [name for name in vars(required) if not name.startswith("_") and not hasattr(port, name)]
        if missing:
            raise TypeError(
                f"a {type(port).__name__} is no lcm.ports.{required.__name__}: it lacks {', '.join(missing)}"
            )
        self._port = port
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where coroutines run; a loop of our own if nobody waits with asyncio."""

    def begin(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call a method; gives whether the answer is to be waited for, and the answer or its future."""
        answer = getattr(self._port, method)(*arguments)
        if not inspect.isawaitable(answer):
            return False, answer
        loop = self.loop
        if loop is None or loop.is_closed() or not loop.is_running():
            loop = _background()
        future: Future[Any] = asyncio.run_coroutine_threadsafe(_awaited(answer), loop)
        return True, future


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _background() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="lcm-ports", daemon=True).start()
        return _loop
