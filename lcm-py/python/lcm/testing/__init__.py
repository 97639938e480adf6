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
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from lcm import _lcm
from lcm._lcm import Worker
from lcm.clients import Clients
from lcm.controller import Controller, ResourceController
from lcm.exceptions import FakeCloudError
from lcm.observation import Instance, Session
from lcm.ports import Cml, Compute, ControlPlane, Events, Metrics

__all__ = ["FakeCloud", "crash"]

REGION = "us-east-1"
"""Default region of all methods."""


class FakeCloud:
    """Fakes of EC2, CloudWatch, CML, etcd and the control plane, served to real clients on free local ports.

    Use it with ``with`` or ``async with``; two clouds share no state. Its clock is moved by :meth:`advance`
    (``clock="manual"``), follows real time (``"real"``) or runs faster (``"x60"``).

    Methods such as :meth:`stop_instance` act like a person in the AWS console and are not part of :meth:`requests`.
    """

    def __init__(
        self,
        *,
        clock: str = "manual",
        seed: int = 0,
        delays: str = "",
        scenario: str | None = None,
        control_plane: str | None = None,
    ) -> None:
        self._options = (clock, seed, delays, scenario, control_plane)
        self._cloud: _lcm.FakeCloud | None = None

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

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

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
        settings: Mapping[str, str] | None = None,
        *,
        control_plane: ControlPlane | None = None,
        compute: Compute | None = None,
        metrics: Metrics | None = None,
        cml: Cml | None = None,
        events: Events | None = None,
    ) -> Clients:
        """Return clients for this cloud that use its clock. ``settings`` take precedence over :attr:`env`."""
        merged = {**self.env, **(settings or {})}
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

    def advance(self, step: float | timedelta) -> None:
        """Move the clock forward, by seconds or a timedelta, and wait until every CML server has reacted."""
        self._native.advance(step.total_seconds() if isinstance(step, timedelta) else step)

    def settle(self) -> None:
        """Wait until every CML server matches the state of its instance."""
        self._native.settle()

    def reset(self, *, empty: bool = False) -> None:
        """Restore the scenario of the start, or an empty cloud. The clock is not reset."""
        self._native.reset(empty)

    # EC2 and CloudWatch

    def run(self, *, region: str = REGION, tags: Mapping[str, str] | None = None) -> Instance:
        """Launch an instance of the region's newest image."""
        return Instance(**self._native.run(region, list((tags or {}).items())))

    def start_instance(self, instance: str | Instance, *, region: str = REGION) -> None:
        """Start a stopped instance."""
        self._native.start_instance(region, _id(instance))

    def stop_instance(self, instance: str | Instance, *, region: str = REGION) -> None:
        """Stop an instance."""
        self._native.stop_instance(region, _id(instance))

    def terminate(self, instance: str | Instance, *, region: str = REGION) -> None:
        """Terminate an instance."""
        self._native.terminate_instance(region, _id(instance))

    def tag(self, instance: str | Instance, key: str, value: str, *, region: str = REGION) -> None:
        """Tag an instance."""
        self._native.tag(region, _id(instance), key, value)

    def instances(self, *, region: str = REGION) -> list[Instance]:
        """List all visible instances in the order of their launches."""
        return [Instance(**shown) for shown in self._native.instances(region)]

    def instance(self, instance: str | Instance, *, region: str = REGION) -> Instance | None:
        """Return an instance; None if it is no longer visible."""
        return next((seen for seen in self.instances(region=region) if seen.id == _id(instance)), None)

    def set_metric(
        self, instance: str | Instance, name: str, value: float, *, namespace: str = "AWS/EC2", region: str = REGION
    ) -> None:
        """Set a metric of an instance at the current time, in percent."""
        self._native.set_metric(region, namespace, name, _id(instance), value)

    # The control plane

    def add_worker(self, **fields: Any) -> Worker:
        """Add a worker's record."""
        return Worker.from_dict(self._native.add_worker({"name": fields.get("id", "worker"), **fields}))

    def update_worker(self, id: str, **fields: Any) -> Worker:
        """Write fields of a worker's record. Its version increases and watchers are notified."""
        return Worker.from_dict(self._native.update_worker(id, fields))

    def worker(self, id: str) -> Worker:
        """Read a worker's record."""
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
        """Cancel a drain through the control plane, as an operator does."""
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

    def inject(self, action: Mapping[str, Any], **rule: Any) -> int:
        """Add a fault rule and return its number.

        ``action`` is the fault: ``{"kind": "error", "code": "RequestLimitExceeded"}``, ``{"kind": "reset"}``,
        ``{"kind": "drop-response"}``, ``{"kind": "latency", "seconds": 3}`` and more. ``rule`` selects the requests:
        ``service``, ``operation``, ``region``, ``instance``, ``after``, ``times``, ``probability``, ``per``.
        """
        return self._native.inject({**rule, "action": dict(action)})

    def fail_next(
        self, operation: str, *, service: str = "ec2", code: str = "RequestLimitExceeded", times: int = 1
    ) -> int:
        """Fail the next calls of an operation, including their retries."""
        return self.inject(
            {"kind": "error", "code": code}, service=service, operation=operation, times=times, per="call"
        )

    def clear_faults(self) -> None:
        """Remove all fault rules."""
        self._native.clear_faults()

    def requests(self, **filter: Any) -> list[dict[str, Any]]:
        """Return the request log, oldest first, by ``service``, ``operation``, ``region``, ``subject``, ``code``."""
        return self._native.requests(filter)

    def count(self, operation: str | None = None, **filter: Any) -> int:
        """Count the requests that match a filter; see :meth:`requests`."""
        return self._native.count({"operation": operation, **filter})

    def forget_requests(self) -> None:
        """Clear the request log."""
        self._native.forget_requests()

    def __repr__(self) -> str:
        return f"<FakeCloud at {self.endpoints['aws_url']}>" if self._cloud else "<FakeCloud, not running>"


def crash(controller: Controller | ResourceController[Any]) -> None:
    """End a controller like a killed process: at once, without releasing its lease.

    Another controller leads after the lease has expired. Call this on the loop that runs the controller; its
    :meth:`~lcm.Controller.run` returns.
    """
    controller._crash()


def _id(instance: str | Instance) -> str:
    return instance.id if isinstance(instance, Instance) else instance


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
