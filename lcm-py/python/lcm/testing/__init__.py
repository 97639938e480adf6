"""A fake cloud for tests and notebooks.

>>> from lcm.testing import FakeCloud
>>> with FakeCloud() as cloud:
...     instance = cloud.run(tags={"team": "blue"})
...     cloud.advance(60)
...     [(seen.state.value, seen.tags["team"]) for seen in cloud.instances()]
[('running', 'blue')]
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

from lcm import _lcm
from lcm._asyncio import wait
from lcm._lcm import Worker
from lcm.clients import Clients
from lcm.controller import Controller, ResourceController
from lcm.exceptions import FakeCloudError
from lcm.observation import Instance, Session
from lcm.ports import Cml, Compute, ControlPlane, Events, Metrics
from lcm.types import FaultAction, FaultRule, Settings

__all__ = ["FakeCloud", "MaskedSecret", "Snapshot", "crash"]

T = TypeVar("T")

REGION = "us-east-1"
"""Default region of all methods."""


class MaskedSecret(TypedDict):
    """Secrets of one kind that a snapshot does not hold, and the value that a restored cloud has instead."""

    secret: str
    count: int
    default: str


@dataclass(frozen=True)
class Snapshot:
    """A whole cloud at one time, as one JSON document. It is taken by :meth:`FakeCloud.snapshot`."""

    text: str = field(repr=False)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the snapshot to a file, for :meth:`load`, ``fake-cloud --restore`` or the console."""
        Path(path).write_text(self.text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Snapshot:
        """Read a snapshot from a file.

        Raises:
            FakeCloudError: the file cannot be read. Its content is checked when a cloud is restored from it.
        """
        try:
            return cls(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FakeCloudError(f"cannot read the snapshot {path}: {error}") from error


def _snapshot(given: Snapshot | str | PathLike[str]) -> Snapshot:
    return given if isinstance(given, Snapshot) else Snapshot.load(given)


class FakeCloud:
    """Fakes of EC2, CloudWatch, CML, etcd and the control plane, served to real clients on free local ports.

    Use it with ``with`` or ``async with``; two clouds share no state. Its clock is moved by :meth:`advance`
    (``clock="manual"``), follows real time (``"real"``) or runs faster (``"x60"``). ``control_plane`` selects the
    generation of the control plane: ``"original"``, the deployed server as it is, or ``"extended"``, which also keeps
    versions and notes on its records and cancels drains. The default is that of the scenario, else ``"original"``.

    ``scenario`` is the name of a built-in one, the path of a YAML file, or the content of one as a mapping. ``leases``
    selects the clock of etcd leases: ``"wall"``, so that a controller keeps its lease while the clock is moved,
    ``"world"``, so that it loses it, or ``"auto"``, which is the world's clock unless that runs faster.

    ``restore`` is a :class:`Snapshot`, or the path of its file, from which the cloud goes on. Its clock, seed, delays
    and generation take the place of the arguments.

    Instances are given by their id or their ``Name`` tag, or by their worker; workers by their id or name. A name that
    does not exist is refused with the one that was probably meant, and so are operations, fields and statuses.

    Methods such as :meth:`stop_instance` act like a person in the AWS console and are not part of :meth:`requests`.
    """

    def __init__(
        self,
        *,
        clock: str = "manual",
        seed: int = 0,
        delays: str = "",
        leases: Literal["wall", "world", "auto"] = "wall",
        scenario: str | Mapping[str, Any] | None = None,
        control_plane: Literal["original", "extended"] | None = None,
        restore: Snapshot | str | PathLike[str] | None = None,
    ) -> None:
        if restore is not None and (scenario is not None or control_plane is not None):
            raise FakeCloudError("restore takes the place of scenario and control_plane: give one of them")
        text = None if restore is None else _snapshot(restore).text
        self._options = (clock, seed, delays, leases, scenario, control_plane, text)
        self._cloud: _lcm.FakeCloud | None = None
        self._is_branch = False

    def start(self) -> Self:
        """Start every service."""
        if self._cloud is not None:
            raise FakeCloudError("the fake cloud is already running")
        self._cloud = _lcm.FakeCloud(*self._options)
        return self

    def stop(self) -> None:
        """Stop every service. Repeated calls have no effect."""
        if self._cloud is not None:
            self._cloud.stop()
            self._cloud = None

    def _enter(self) -> Self:
        # A branch runs already.
        if self._is_branch and self._cloud is not None:
            self._is_branch = False
            return self
        return self.start()

    def __enter__(self) -> Self:
        return self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self._enter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def is_running(self) -> bool:
        """Whether the cloud is started and not stopped."""
        return self._cloud is not None

    @property
    def _native(self) -> _lcm.FakeCloud:
        if self._cloud is None:
            raise FakeCloudError("the fake cloud is not running; use it with `with FakeCloud() as cloud:`")
        return self._cloud

    @property
    def endpoints(self) -> dict[str, Any]:
        """URLs of the services: ``aws_url``, ``etcd_endpoint``, ``control_plane_url`` and more."""
        return self._native.endpoints()

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that direct boto3, etcdctl and ``lcm`` to this cloud."""
        return self._native.environment()

    def clients(
        self,
        settings: Settings | Mapping[str, str] | None = None,
        *,
        control_plane: ControlPlane | None = None,
        compute: Compute | None = None,
        metrics: Metrics | None = None,
        cml: Cml | None = None,
        events: Events | None = None,
    ) -> Clients:
        """Return clients for this cloud that use its clock. ``settings`` take precedence over :attr:`env`."""
        merged = {**self.env, **cast(Mapping[str, str], settings or {})}
        return Clients(
            merged,
            control_plane=control_plane,
            compute=compute,
            metrics=metrics,
            cml=cml,
            events=events,
            clock=self._native,
        )

    # Time

    @property
    def now(self) -> datetime:
        """Current time of the cloud."""
        return self._native.now()

    def advance(
        self, step: float | timedelta, *, controllers: Iterable[Controller | ResourceController[Any]] = ()
    ) -> None:
        """Move the clock forward, by seconds or a timedelta, and wait until every CML server has reacted.

        The steps of a scenario's timeline are taken at their times, before the clock goes on.

        The timers of ``controllers`` move along: each poll, requeue and retry that is due runs to its end before the
        clock goes on, so that an hour of reconciles takes seconds. Leases, time limits and retries within a call stay
        on real time, and with ``leases="wall"`` the election is kept. Controllers run on an asyncio loop, which
        this method would block: from their loop use :meth:`advance_async`.

        Raises:
            FakeCloudError: a controller was still at work after a minute of real time.
        """
        natives = [controller._native for controller in controllers]
        if natives and asyncio._get_running_loop() is not None:
            message = "advance(controllers=...) blocks the running loop; use 'await cloud.advance_async(...)'"
            raise FakeCloudError(message)
        self._native.advance(_seconds(step), natives)

    async def advance_async(
        self, step: float | timedelta, *, controllers: Iterable[Controller | ResourceController[Any]] = ()
    ) -> None:
        """Move the clock as :meth:`advance` does, on asyncio.

        >>> import asyncio, lcm
        >>> async def main():
        ...     with FakeCloud() as cloud:
        ...         _ = cloud.add_worker(id="w-1", status="pending", template_name="metal")
        ...         async with lcm.Controller(cloud.clients()) as controller:
        ...             await controller.ready()
        ...             await cloud.advance_async(600, controllers=[controller])
        ...         return cloud.worker("w-1").status.value
        >>> asyncio.run(main())
        'running'
        """
        native, seconds = self._native, _seconds(step)
        natives = [controller._native for controller in controllers]
        await wait(lambda done: native.start_advance(seconds, natives, done))

    def settle(self) -> None:
        """Wait until every CML server matches the state of its instance."""
        self._native.settle()

    def reset(self, *, empty: bool = False) -> None:
        """Restore the scenario of the start, or an empty cloud. The clock is not reset."""
        self._native.reset(empty)

    def snapshot(self, *, secrets: bool = False) -> Snapshot:
        """Return the whole cloud: EC2, CloudWatch, records, etcd, CML servers, faults, pending steps and the clock.

        Passwords, tokens and keys are masked unless ``secrets`` is true.

        >>> with FakeCloud() as cloud:
        ...     saved = cloud.snapshot()
        ...     first = cloud.run().id
        ...     _ = cloud.restore(saved)
        ...     cloud.run().id == first
        True
        """
        return Snapshot(self._native.snapshot(secrets))

    def restore(self, snapshot: Snapshot | str | PathLike[str]) -> list[MaskedSecret]:
        """Replace the whole cloud by a snapshot, or by the file of one, with its clock.

        Returns the secrets that the snapshot does not hold, and the defaults in their place.

        Raises:
            FakeCloudError: the snapshot cannot be read, is of another version, or has another generation of the control
                plane. The cloud stays as it was.
        """
        return cast("list[MaskedSecret]", self._native.restore(_snapshot(snapshot).text))

    @property
    def masked(self) -> list[MaskedSecret]:
        """Secrets that the snapshot did not hold from which the cloud started."""
        return cast("list[MaskedSecret]", self._native.masked())

    def branch(self) -> FakeCloud:
        """Return another running cloud that goes on from here. The two are independent; stop both.

        >>> with FakeCloud() as cloud, cloud.branch() as other:
        ...     cloud.now == other.now
        True
        """
        other = FakeCloud()
        other._options = self._options
        other._cloud = self._native.branch()
        other._is_branch = True
        return other

    def until(self, condition: Callable[[], T], *, timeout: float = 10.0, interval: float = 0.01) -> T:
        """Wait, in real time, until a condition is true, and return its value.

        A condition that raises :class:`AssertionError` or :class:`~lcm.FakeCloudError`, as for a worker that does not
        exist yet, is checked again.

        >>> with FakeCloud(clock="x60", delays="starting=1") as cloud:
        ...     instance = cloud.run(tags={"Name": "blue"})
        ...     cloud.until(lambda: cloud.instance("blue").state == "running")
        True

        Raises:
            TimeoutError: the condition was not true within ``timeout`` seconds. The message has its last value, and the
                state of the cloud.
        """
        wait = _Wait(self, timeout)
        while True:
            with wait:
                if value := wait.see(condition()):
                    return value
            wait.check()
            time.sleep(interval)

    @overload
    async def until_async(
        self, condition: Callable[[], Awaitable[T]], *, timeout: float = 10.0, interval: float = 0.01
    ) -> T: ...

    @overload
    async def until_async(self, condition: Callable[[], T], *, timeout: float = 10.0, interval: float = 0.01) -> T: ...

    async def until_async(self, condition: Callable[[], Any], *, timeout: float = 10.0, interval: float = 0.01) -> Any:
        """Wait as :meth:`until` does, on asyncio. The condition may be a coroutine function."""
        wait = _Wait(self, timeout)
        while True:
            with wait:
                found = condition()
                value = await found if inspect.isawaitable(found) else found
                if wait.see(value):
                    return value
            wait.check()
            await asyncio.sleep(interval)

    def summary(self) -> str:
        """Describe the cloud in a few lines: the time, the workers, the instances and the latest requests."""
        return self._native.summary()

    # EC2 and CloudWatch

    def add_account(self, id: str, access_key: str) -> dict[str, str]:
        """Add an AWS account, and return the settings that replace those of the default account in :attr:`env`.

        Requests signed with ``access_key`` see the resources of this account only. Unknown keys belong to the default
        account.
        """
        return self._native.add_account(id, access_key)

    def run(
        self, *, region: str = REGION, tags: Mapping[str, str] | None = None, account: str | None = None
    ) -> Instance:
        """Launch an instance of the region's newest image that is not public, in the default account or in another."""
        return Instance(**self._native.run(region, list((tags or {}).items()), account))

    def add_image(
        self,
        id: str,
        name: str,
        *,
        region: str = REGION,
        creation_date: datetime | None = None,
        owner: str | None = None,
        sharing: Literal["private", "shared", "public"] = "shared",
    ) -> None:
        """Add an image, created now by default.

        ``sharing`` says which accounts can use it: ``"private"`` its owner only, ``"shared"`` all accounts of this
        cloud, ``"public"`` every account of AWS.
        """
        self._native.add_image(region, id, name, creation_date, owner, sharing)

    def start_instance(self, instance: str | Instance | Worker, *, region: str | None = None) -> None:
        """Start a stopped instance."""
        self._native.start_instance(*self._find(instance, region))

    def stop_instance(self, instance: str | Instance | Worker, *, region: str | None = None) -> None:
        """Stop an instance."""
        self._native.stop_instance(*self._find(instance, region))

    def terminate(self, instance: str | Instance | Worker, *, region: str | None = None) -> None:
        """Terminate an instance."""
        self._native.terminate_instance(*self._find(instance, region))

    def tag(self, instance: str | Instance | Worker, key: str, value: str, *, region: str | None = None) -> None:
        """Tag an instance."""
        self._native.tag(*self._find(instance, region), key, value)

    def _find(self, instance: str | Instance | Worker, region: str | None) -> tuple[str, str]:
        """Return the region and the id of an instance. Without a region, all regions are searched."""
        return self._native.find_instance(region, _id(instance))

    def instances(self, *, region: str = REGION) -> list[Instance]:
        """List all visible instances in the order of their launches."""
        return [Instance(**shown) for shown in self._native.instances(region)]

    def instance(self, instance: str | Instance | Worker, *, region: str | None = None) -> Instance | None:
        """Return an instance; None if it is no longer visible."""
        try:
            found, id = self._find(instance, region)
        except FakeCloudError:
            return None
        return next((seen for seen in self.instances(region=found) if seen.id == id), None)

    def set_metric(
        self,
        instance: str | Instance | Worker,
        name: str,
        value: float,
        *,
        namespace: str = "AWS/EC2",
        region: str | None = None,
    ) -> None:
        """Set a metric of an instance at the current time, in percent."""
        region, id = self._find(instance, region)
        self._native.set_metric(region, namespace, name, id, value)

    # The control plane

    def add_worker(self, **fields: Any) -> Worker:
        """Add a worker's record."""
        return Worker.from_dict(self._native.add_worker({"name": fields.get("id", "worker"), **fields}))

    def update_worker(self, id: str, **fields: Any) -> Worker:
        """Write fields of a worker's record. Watchers are notified."""
        return Worker.from_dict(self._native.update_worker(id, fields))

    def worker(self, id: str) -> Worker:
        """Read a worker's record, by its id or name."""
        return Worker.from_dict(self._native.worker(id))

    def workers(self) -> list[Worker]:
        """List all records by id, terminated ones included."""
        return [Worker.from_dict(record) for record in self._native.workers()]

    def drain(self, worker: str | Worker, *, reason: str = "maintenance", requested_by: str = "operator") -> Worker:
        """Drain a worker through the control plane, as an operator does. The worker must be running."""
        return Worker.from_dict(self._native.drain(_worker_id(worker), reason, requested_by))

    def cancel_drain(
        self, worker: str | Worker, *, reason: str = "called off", cancelled_by: str = "operator"
    ) -> Worker:
        """Cancel a drain through the control plane, as an operator does.

        The generation ``"original"`` cannot: there, set the desired status to running.
        """
        return Worker.from_dict(self._native.cancel_drain(_worker_id(worker), reason, cancelled_by))

    def add_session(self, **fields: Any) -> Session:
        """Add a session."""
        return _session(self._native.add_session(fields))

    def move_session(self, session: str | Session, status: str) -> Session:
        """Set the status of a session, such as ``stopped`` after its end or ``failed`` after an error."""
        id = session.id if isinstance(session, Session) else session
        return _session(self._native.move_session(id, status))

    def sessions(self) -> list[Session]:
        """List all sessions by id."""
        return [_session(record) for record in self._native.sessions()]

    def add_template(self, **fields: Any) -> dict[str, Any]:
        """Add a template, or replace the one of the same name."""
        return self._native.add_template(fields)

    def audit(self) -> list[dict[str, Any]]:
        """Return the scaling audit, oldest entry first."""
        return self._native.audit()

    def events(self) -> list[dict[str, Any]]:
        """Return the published events, oldest first."""
        return self._native.events()

    # Faults and the request log

    def inject(self, action: FaultAction, **rule: Unpack[FaultRule]) -> int:
        """Add a fault rule and return its number.

        ``action`` is the fault: ``{"kind": "error", "code": "RequestLimitExceeded"}``, ``{"kind": "reset"}``,
        ``{"kind": "drop-response"}``, ``{"kind": "latency", "seconds": 3}`` and more. ``rule`` selects the requests:
        ``service``, ``operation``, ``region``, ``instance``, ``after``, ``times``, ``probability``, ``per``. An
        operation, a region or an instance that does not exist is refused.
        """
        return self._native.inject({**rule, "action": dict(action)})

    def fail_next(
        self,
        operation: str,
        *,
        service: Literal["ec2", "cloudwatch", "sts", "cml", "etcd", "control-plane"] | None = None,
        code: str = "RequestLimitExceeded",
        times: int = 1,
        per: Literal["call", "attempt"] = "call",
    ) -> int:
        """Fail the next calls of an operation, each with all its retries, so that the next reconcile fails.

        ``per="attempt"`` fails requests instead, and the retry of a client may succeed. Requests belong to one call if
        they have the same invocation id, which ``lcm`` and the SDKs of AWS send to AWS; any other request is a call of
        its own.

        >>> import lcm
        >>> with FakeCloud() as cloud:
        ...     worker = cloud.add_worker(id="w-1", status="running", ec2_instance_id=cloud.run().id)
        ...     rule = cloud.fail_next("DescribeInstances")
        ...     outcomes = [lcm.reconcile(worker, clients=cloud.clients()).outcome.value for _ in range(2)]
        ...     outcomes[0]
        'retry'
        """
        rule: FaultRule = {"operation": operation, "times": times, "per": per}
        if service is not None:
            rule["service"] = service
        return self.inject({"kind": "error", "code": code}, **rule)

    def clear_faults(self) -> None:
        """Remove all fault rules."""
        self._native.clear_faults()

    def requests(self, **filter: Any) -> list[dict[str, Any]]:
        """Return the request log, oldest first, by ``service``, ``operation``, ``region``, ``subject``, ``code``.

        The subject is an instance, by its id or ``Name`` tag, a worker, by its id or name, or another resource that a
        request names. For an operation of AWS or CML a worker stands for its instance. A name that does not exist is
        refused, unless it has the form of an id.
        """
        return self._native.requests(filter)

    def count(self, operation: str | None = None, **filter: Any) -> int:
        """Count the requests that match a filter; see :meth:`requests`."""
        return self._native.count({"operation": operation, **filter})

    def assert_called(self, operation: str, *, times: int | None = None, **filter: Any) -> None:
        """Assert that an operation was requested: at least once, or as often as ``times`` says.

        The error lists the latest requests. The filter is that of :meth:`requests`.

        >>> with FakeCloud() as cloud:
        ...     cloud.assert_called("RunInstances", times=0)
        """
        __tracebackhide__ = True
        problem = self._native.check_called({"operation": operation, **filter}, times)
        if problem is not None:
            raise AssertionError(problem)

    def assert_not_called(self, operation: str, **filter: Any) -> None:
        """Assert that an operation was not requested, as :meth:`assert_called` does with ``times=0``."""
        __tracebackhide__ = True
        self.assert_called(operation, times=0, **filter)

    def assert_worker(self, worker: str | Worker, **fields: Any) -> Worker:
        """Assert that the record of a worker has these values, and return it.

        The error has all values that differ, and the state of the cloud.

        >>> with FakeCloud() as cloud:
        ...     _ = cloud.add_worker(id="w-1", name="blue", status="stopped")
        ...     cloud.assert_worker("blue", status="stopped", ec2_instance_id=None).id
        'w-1'
        """
        __tracebackhide__ = True
        record = self.worker(_worker_id(worker))
        unknown = [name for name in fields if not hasattr(record, name)]
        if unknown:
            hint = did_you_mean(unknown[0], [name for name in dir(record) if not name.startswith("_")])
            raise FakeCloudError(f"unknown field {unknown[0]!r} of a worker{hint}")
        wrong = {name: getattr(record, name) for name, value in fields.items() if getattr(record, name) != value}
        if wrong:
            differences = "\n".join(
                f"  {name}: expected {fields[name]!s}, is {value!s}" for name, value in wrong.items()
            )
            raise AssertionError(f"worker {record.id}:\n{differences}\n{self.summary()}")
        return record

    def request_report(self, limit: int = 100) -> str:
        """Return the latest requests, one line each, after a line with the number of all."""
        lines, total = self._native.request_lines(limit)
        return "\n".join([f"latest {len(lines)} of {total} requests", *lines])

    def forget_requests(self) -> None:
        """Clear the request log."""
        self._native.forget_requests()

    def __repr__(self) -> str:
        return f"<FakeCloud at {self.endpoints['aws_url']}>" if self._cloud else "<FakeCloud, not running>"


class _Wait:
    """Remembers the last value of a condition, and errors that mean "not yet"."""

    def __init__(self, cloud: FakeCloud, timeout: float) -> None:
        self._cloud = cloud
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._last = "nothing"

    def see(self, value: T) -> T:
        self._last = repr(value)
        return value

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, AssertionError | FakeCloudError):
            return False
        self._last = f"{type(error).__name__}: {error}"
        return True

    def check(self) -> None:
        if time.monotonic() >= self._end:
            text = f"the condition was not true within {self._timeout:g} s; last value: {self._last}\n"
            raise TimeoutError(text + self._cloud.summary())


def _seconds(step: float | timedelta) -> float:
    return step.total_seconds() if isinstance(step, timedelta) else step


def did_you_mean(typed: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'name'?``, or nothing if no name is similar."""
    similar = difflib.get_close_matches(typed, list(names), n=1, cutoff=0.75)
    return f"; did you mean '{similar[0]}'?" if similar else ""


def crash(controller: Controller | ResourceController[Any]) -> None:
    """End a controller like a killed process: at once, without releasing its lease.

    Another controller leads after the lease has expired. Call this on the loop that runs the controller; its
    :meth:`~lcm.Controller.run` returns.
    """
    controller._crash()


def _id(instance: str | Instance | Worker) -> str:
    return instance if isinstance(instance, str) else instance.id


def _worker_id(worker: str | Worker) -> str:
    return worker.id if isinstance(worker, Worker) else worker


def _session(record: Mapping[str, Any]) -> Session:
    start = record.get("timeslot_start")
    return Session(
        id=record["id"],
        status=record["status"],
        worker_id=record.get("worker_id"),
        timeslot_start=datetime.fromisoformat(start) if start else None,
        retry_count=int(record.get("retry_count") or 0),
    )
