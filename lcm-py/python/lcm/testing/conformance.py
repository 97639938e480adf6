"""Conformance tests for ports written in Python.

The ports written in Rust pass the same suites. A suite needs a *world*: an object that returns the port and controls
its backend, with plain or ``async`` methods. A violation raises an ``AssertionError`` with the violated rule and the
last calls of the port.

>>> class Mailbox:
...     def __init__(self) -> None:
...         self.letters: list[dict[str, Any]] = []
...
...     def publish(self, event: dict[str, Any], /) -> None:
...         self.letters.append(event)
>>> class Post:
...     def __init__(self) -> None:
...         self.mailbox = Mailbox()
...
...     def events(self) -> Events:
...         return self.mailbox
...
...     def arrived(self) -> list[tuple[str, str]]:
...         return [(letter["type"], letter["subject"]) for letter in self.mailbox.letters]
>>> check_events(Post())

A port whose coroutines need a running loop is checked from another thread::

    await asyncio.to_thread(check_control_plane, world, loop=asyncio.get_running_loop())
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Protocol

from lcm import _lcm
from lcm.exceptions import PortError
from lcm.failure import CallFailure
from lcm.observation import CloudMetrics
from lcm.ports import Bridge, Cml, CmlTarget, Compute, ControlPlane, Coordination, Events, Metrics
from lcm.ports.bridge import MaybeAwaitable

__all__ = [
    "CmlWorld",
    "ComputeWorld",
    "ControlPlaneWorld",
    "CoordinationWorld",
    "EventsWorld",
    "MetricsWorld",
    "check_cml",
    "check_compute",
    "check_control_plane",
    "check_coordination",
    "check_events",
    "check_metrics",
]


class ControlPlaneWorld(Protocol):
    """Control of a control plane under test."""

    @abstractmethod
    def control_plane(self) -> ControlPlane:
        """Return the port under test."""
        ...

    @abstractmethod
    def put_worker(self, record: dict[str, Any], /) -> MaybeAwaitable[None]:
        """Store a record. Secrets and unknown fields must be preserved."""
        ...

    @abstractmethod
    def put_unreadable(self, record: dict[str, Any], /) -> MaybeAwaitable[None]:
        """Store a record that cannot be parsed, because its status is unknown."""
        ...

    @abstractmethod
    def put_session(self, session: dict[str, Any], /) -> MaybeAwaitable[None]:
        """Store a session."""
        ...

    @abstractmethod
    def put_template(self, template: dict[str, Any], /) -> MaybeAwaitable[None]:
        """Store a template."""
        ...

    @abstractmethod
    def audit(self, worker_id: str, /) -> MaybeAwaitable[Iterable[str]]:
        """Return the audit labels of a worker, oldest first."""
        ...


class ComputeWorld(Protocol):
    """Control of a cloud under test, with at least two images in each region."""

    @abstractmethod
    def compute(self) -> Compute:
        """Return the port under test."""
        ...

    @abstractmethod
    def region(self) -> MaybeAwaitable[str]:
        """Return the region of the tests."""
        ...

    @abstractmethod
    def other_region(self) -> MaybeAwaitable[str]:
        """Return a region without instances."""
        ...

    @abstractmethod
    def plan(self) -> MaybeAwaitable[Mapping[str, Any]]:
        """Return the launch parameters: ``image_id``, ``instance_type``, ``subnet_id`` and others if needed."""
        ...

    @abstractmethod
    def image_pattern(self) -> MaybeAwaitable[str]:
        """Return a pattern that only matches the name of the plan's image."""
        ...

    @abstractmethod
    def settle(self) -> MaybeAwaitable[None]:
        """Finish every pending change of state."""
        ...

    @abstractmethod
    def forget_terminated(self) -> MaybeAwaitable[None]:
        """Remove the terminated instances."""
        ...

    @abstractmethod
    def fail(self, failure: CallFailure, /) -> MaybeAwaitable[None]:
        """Make every call fail with this failure's kind until :meth:`recover`."""
        ...

    @abstractmethod
    def recover(self) -> MaybeAwaitable[None]:
        """End :meth:`fail`."""
        ...


class MetricsWorld(Protocol):
    """Control of a metrics service under test."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Return the port under test."""
        ...

    @abstractmethod
    def region(self) -> MaybeAwaitable[str]:
        """Return the region of the tests."""
        ...

    @abstractmethod
    def now(self) -> MaybeAwaitable[datetime]:
        """Return the current time. Called once."""
        ...

    @abstractmethod
    def silent_instances(self, count: int, /) -> MaybeAwaitable[Iterable[str]]:
        """Return ``count`` ids of instances without any data point."""
        ...

    @abstractmethod
    def report(self, id: str, at: datetime, measured: CloudMetrics, /) -> MaybeAwaitable[None]:
        """Store metrics of an instance at a time."""
        ...

    @abstractmethod
    def fail(self, failure: CallFailure, /) -> MaybeAwaitable[None]:
        """Make every call fail with this failure's kind until :meth:`recover`."""
        ...

    @abstractmethod
    def recover(self) -> MaybeAwaitable[None]:
        """End :meth:`fail`."""
        ...


class CmlWorld(Protocol):
    """Control of a CML system under test."""

    @abstractmethod
    def cml(self) -> Cml:
        """Return the port under test."""
        ...

    @abstractmethod
    def target(self) -> MaybeAwaitable[CmlTarget]:
        """Return the system: version 2, ready, not registered, with one lab of two nodes that were never started.

        A registration takes ten seconds.
        """
        ...

    @abstractmethod
    def nowhere(self) -> MaybeAwaitable[CmlTarget]:
        """Return a target without a server."""
        ...

    @abstractmethod
    def set_booting(self, booting: bool, /) -> MaybeAwaitable[None]:
        """Enter the boot phase, in which only an HTML page is served, or leave it."""
        ...

    @abstractmethod
    def pass_time(self, time: timedelta, /) -> MaybeAwaitable[None]:
        """Move the clock of the system forward."""
        ...

    @abstractmethod
    def start_lab(self) -> MaybeAwaitable[None]:
        """Start a lab, which adds a telemetry event of category ``start_lab``."""
        ...

    @abstractmethod
    def end_logins(self) -> MaybeAwaitable[None]:
        """Invalidate all issued tokens."""
        ...

    @abstractmethod
    def next_registration(self, end: str, /) -> MaybeAwaitable[None]:
        """Set the result of the next registrations: ``completes`` or ``fails``."""
        ...


class CoordinationWorld(Protocol):
    """Control of a coordination service under test."""

    @abstractmethod
    def coordination(self) -> Coordination:
        """Return the port under test."""
        ...

    @abstractmethod
    def put(self, key: str, value: str, /) -> MaybeAwaitable[None]:
        """Write a key."""
        ...

    @abstractmethod
    def delete(self, key: str, /) -> MaybeAwaitable[None]:
        """Delete a key."""
        ...

    @abstractmethod
    def compact(self) -> MaybeAwaitable[None]:
        """Compact the history up to the current revision."""
        ...


class EventsWorld(Protocol):
    """Control of an event sink under test."""

    @abstractmethod
    def events(self) -> Events:
        """Return the port under test."""
        ...

    @abstractmethod
    def arrived(self) -> MaybeAwaitable[Iterable[tuple[str, str]]]:
        """Return type and subject of the published events, oldest first."""
        ...


def check_control_plane(world: ControlPlaneWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every rule of :class:`lcm.ports.ControlPlane`, in order, in one world."""
    _check("control_plane", ControlPlane, world, ControlPlaneWorld, loop)


def check_compute(world: ComputeWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every rule of :class:`lcm.ports.Compute`, in order, in one world."""
    _check("compute", Compute, world, ComputeWorld, loop)


def check_metrics(world: MetricsWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every rule of :class:`lcm.ports.Metrics`, in order, in one world."""
    _check("metrics", Metrics, world, MetricsWorld, loop)


def check_cml(world: CmlWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every rule of :class:`lcm.ports.Cml`, in order, in one world."""
    _check("cml", Cml, world, CmlWorld, loop)


def check_coordination(world: CoordinationWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every rule of :class:`lcm.ports.Coordination`, under keys that start with ``/conformance/``.

    It waits for a lease to expire, which takes some seconds.
    """
    _check("coordination", Coordination, world, CoordinationWorld, loop)


def check_events(world: EventsWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every rule of :class:`lcm.ports.Events`, in order, in one world."""
    _check("events", Events, world, EventsWorld, loop)


def _check(name: str, port: type, world: object, kind: type, loop: asyncio.AbstractEventLoop | None) -> None:
    control = Bridge(world, kind, loop)
    _refuse_own_loop(loop)
    tested = getattr(world, name)()
    recorder = _RecordingBridge(tested, port, loop)
    broken = _lcm.check_port(name, recorder, control)
    if broken is not None:
        rule, details, location = broken
        calls = "\n".join(f"  {call}" for call in recorder.calls)
        message = (
            f"{type(tested).__name__} breaks a rule of lcm.ports.{port.__name__}: {rule}\n"
            f"{details}\nLast calls:\n{calls}\nThe rule is defined in {location}"
        )
        raise AssertionError(message) from recorder.cause


def _refuse_own_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise RuntimeError("this call would block the loop that the port runs on; use `await asyncio.to_thread(…)`")


class _Call:
    """A call of the port and its result."""

    def __init__(self, method: str, arguments: tuple[Any, ...]) -> None:
        self.error: BaseException | None = None
        self._call = f"{method}({', '.join(map(repr, arguments))})"
        self._result = "…"

    def returned(self, result: object) -> None:
        self._result = repr(result)

    def raised(self, error: BaseException) -> None:
        self.error = error
        self._result = f"raised {error!r}"

    def finish(self, future: Future[Any]) -> None:
        if future.cancelled():
            self._result = "cancelled"
        elif (error := future.exception()) is not None:
            self.raised(error)
        else:
            self.returned(future.result())

    def __str__(self) -> str:
        return f"{_short(self._call)} → {_short(self._result)}"


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


class _RecordingBridge(Bridge):
    """A bridge that records the last calls for the error message."""

    def __init__(self, port: object, required: type, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(port, required, loop)
        self.calls: deque[_Call] = deque(maxlen=5)

    def begin(self, method: str, arguments: tuple[Any, ...], fence: int | None) -> tuple[bool, Any]:
        call = _Call(method, arguments)
        self.calls.append(call)
        try:
            waiting, result = super().begin(method, arguments, fence)
        except BaseException as error:
            call.raised(error)
            raise
        if waiting:
            result.add_done_callback(call.finish)
        else:
            call.returned(result)
        return waiting, result

    def wrap(self, port: object, required: type) -> Bridge:
        given = _RecordingBridge(port, required, self.loop)
        given.calls = self.calls
        return given

    @property
    def cause(self) -> BaseException | None:
        """Exception of the last call, unless it is a :class:`PortError`."""
        error = self.calls[-1].error if self.calls else None
        return None if isinstance(error, PortError) else error
