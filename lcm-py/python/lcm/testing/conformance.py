"""Whether a port that you wrote in Python keeps its promises.

These are the very suites that the ports written in Rust have to pass. A suite needs a *world*: an object that gives the
port and sets up what stands behind it, with plain or ``async`` methods. What is not kept is an ``AssertionError`` that
names the promise and what the port was asked last.

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

A port whose coroutines need a loop of their own is checked from a thread, while the loop runs::

    await asyncio.to_thread(check_control_plane, world, loop=asyncio.get_running_loop())
"""

from __future__ import annotations

import asyncio
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
from lcm.ports.bridge import Answer

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
    """A control plane, and a hand that puts things into it."""

    def control_plane(self) -> ControlPlane:
        """The port under test."""
        ...

    def put_worker(self, record: dict[str, Any], /) -> Answer[None]:
        """Put a record in. It may hold secrets, and fields that nobody knows: both must come back."""
        ...

    def put_unreadable(self, record: dict[str, Any], /) -> Answer[None]:
        """Put a record in that cannot be read: its status is no status."""
        ...

    def put_session(self, session: dict[str, Any], /) -> Answer[None]:
        """Put a session in."""
        ...

    def put_template(self, template: dict[str, Any], /) -> Answer[None]:
        """Put a template in."""
        ...

    def audit(self, worker_id: str, /) -> Answer[Iterable[str]]:
        """The labels in the audit of a worker, oldest first."""
        ...


class ComputeWorld(Protocol):
    """A cloud with at least two images in each region, and a hand that moves it."""

    def compute(self) -> Compute:
        """The port under test."""
        ...

    def region(self) -> Answer[str]:
        """A region in which everything happens."""
        ...

    def other_region(self) -> Answer[str]:
        """A region in which nothing ever happened."""
        ...

    def plan(self) -> Answer[Mapping[str, Any]]:
        """What a launch in the region needs: ``image_id``, ``instance_type``, ``subnet_id`` and what else you check."""
        ...

    def image_pattern(self) -> Answer[str]:
        """A pattern that matches the name of the plan's image and of no other."""
        ...

    def settle(self) -> Answer[None]:
        """Let every change under way come to its end."""
        ...

    def forget_terminated(self) -> Answer[None]:
        """Let the cloud forget what is terminated."""
        ...

    def fail(self, failure: CallFailure, /) -> Answer[None]:
        """Make every call fail with this failure's kind until :meth:`recover`."""
        ...

    def recover(self) -> Answer[None]:
        """End :meth:`fail`."""
        ...


class MetricsWorld(Protocol):
    """Something that measures instances, and a hand that moves it."""

    def metrics(self) -> Metrics:
        """The port under test."""
        ...

    def region(self) -> Answer[str]:
        """The region in which everything happens."""
        ...

    def now(self) -> Answer[datetime]:
        """What time it is there. Asked once."""
        ...

    def silent_instances(self, count: int, /) -> Answer[Iterable[str]]:
        """The ids of so many instances about which nothing was ever reported."""
        ...

    def report(self, id: str, at: datetime, measured: CloudMetrics, /) -> Answer[None]:
        """Report something about an instance at a moment."""
        ...

    def fail(self, failure: CallFailure, /) -> Answer[None]:
        """Make every call fail with this failure's kind until :meth:`recover`."""
        ...

    def recover(self) -> Answer[None]:
        """End :meth:`fail`."""
        ...


class CmlWorld(Protocol):
    """One CML, and a hand that moves it."""

    def cml(self) -> Cml:
        """The port under test."""
        ...

    def target(self) -> Answer[CmlTarget]:
        """The CML: of version 2, ready, not registered, with one lab of two nodes, none of which was ever started.

        A registration takes it ten seconds.
        """
        ...

    def nowhere(self) -> Answer[CmlTarget]:
        """Somewhere nobody listens."""
        ...

    def set_booting(self, booting: bool, /) -> Answer[None]:
        """Put the CML back to where only a page of HTML answers, or let it be ready again."""
        ...

    def pass_time(self, time: timedelta, /) -> Answer[None]:
        """Let time pass for it."""
        ...

    def start_lab(self) -> Answer[None]:
        """Somebody starts a lab: its telemetry tells of the category ``start_lab``."""
        ...

    def end_logins(self) -> Answer[None]:
        """Make the tokens it has given out worthless."""
        ...

    def next_registration(self, end: str, /) -> Answer[None]:
        """How the next registrations end: ``completes`` or ``fails``."""
        ...


class CoordinationWorld(Protocol):
    """What elects a leader, and a hand that changes keys behind its back."""

    def coordination(self) -> Coordination:
        """The port under test."""
        ...

    def put(self, key: str, value: str, /) -> Answer[None]:
        """Write a key."""
        ...

    def delete(self, key: str, /) -> Answer[None]:
        """Delete a key."""
        ...

    def compact(self) -> Answer[None]:
        """Forget everything before the current revision."""
        ...


class EventsWorld(Protocol):
    """A place for events, and somebody who looks what arrived there."""

    def events(self) -> Events:
        """The port under test."""
        ...

    def arrived(self) -> Answer[Iterable[tuple[str, str]]]:
        """The type and the subject of what has arrived, oldest first."""
        ...


def check_control_plane(world: ControlPlaneWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every promise of :class:`lcm.ports.ControlPlane`, one after the other, in one world."""
    _check("control_plane", ControlPlane, world, ControlPlaneWorld, loop)


def check_compute(world: ComputeWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every promise of :class:`lcm.ports.Compute`, one after the other, in one world."""
    _check("compute", Compute, world, ComputeWorld, loop)


def check_metrics(world: MetricsWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every promise of :class:`lcm.ports.Metrics`, one after the other, in one world."""
    _check("metrics", Metrics, world, MetricsWorld, loop)


def check_cml(world: CmlWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every promise of :class:`lcm.ports.Cml`, one after the other, in one world."""
    _check("cml", Cml, world, CmlWorld, loop)


def check_coordination(world: CoordinationWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every promise of :class:`lcm.ports.Coordination`, under keys that start with ``/conformance/``.

    It waits for a lease to end, so it takes some seconds.
    """
    _check("coordination", Coordination, world, CoordinationWorld, loop)


def check_events(world: EventsWorld, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Check every promise of :class:`lcm.ports.Events`, one after the other, in one world."""
    _check("events", Events, world, EventsWorld, loop)


def _check(name: str, port: type, world: object, kind: type, loop: asyncio.AbstractEventLoop | None) -> None:
    hand = Bridge(world, kind, loop)
    _refuse_own_loop(loop)
    tested = getattr(world, name)()
    witness = _Witness(tested, port, loop)
    broken = _lcm.check_port(name, witness, hand)
    if broken is not None:
        promise, shown, place = broken
        asked = "\n".join(f"  {call}" for call in witness.calls)
        message = (
            f"{type(tested).__name__} breaks a promise of lcm.ports.{port.__name__}: {promise}\n"
            f"{shown}\nIt was asked last:\n{asked}\nThe promise is written down in {place}"
        )
        raise AssertionError(message) from witness.accident


def _refuse_own_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise RuntimeError("this would wait on the very loop that the port needs; use `await asyncio.to_thread(…)`")


class _Call:
    """A call and what came of it."""

    def __init__(self, method: str, arguments: tuple[Any, ...]) -> None:
        self.error: BaseException | None = None
        self._asked = f"{method}({', '.join(map(repr, arguments))})"
        self._ending = "…"

    def answered(self, answer: object) -> None:
        self._ending = repr(answer)

    def raised(self, error: BaseException) -> None:
        self.error = error
        self._ending = f"raised {error!r}"

    def finish(self, future: Future[Any]) -> None:
        if future.cancelled():
            self._ending = "cancelled"
        elif (error := future.exception()) is not None:
            self.raised(error)
        else:
            self.answered(future.result())

    def __str__(self) -> str:
        return f"{_short(self._asked)} → {_short(self._ending)}"


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


class _Witness(Bridge):
    """Remembers the last calls, for whoever has to find out what went wrong."""

    def __init__(self, port: object, required: type, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(port, required, loop)
        self.calls: deque[_Call] = deque(maxlen=5)

    def begin(self, method: str, arguments: tuple[Any, ...], fence: int | None) -> tuple[bool, Any]:
        call = _Call(method, arguments)
        self.calls.append(call)
        try:
            waiting, answer = super().begin(method, arguments, fence)
        except BaseException as error:
            call.raised(error)
            raise
        if waiting:
            answer.add_done_callback(call.finish)
        else:
            call.answered(answer)
        return waiting, answer

    def beside(self, port: object, required: type) -> Bridge:
        given = _Witness(port, required, self.loop)
        given.calls = self.calls
        return given

    @property
    def accident(self) -> BaseException | None:
        """What the last call raised, unless it was meant to."""
        error = self.calls[-1].error if self.calls else None
        return None if isinstance(error, PortError) else error
