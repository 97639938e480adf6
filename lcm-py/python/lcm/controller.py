"""Controllers that run in the process of a service: election, watch, startup sweep, polling, backoff and metrics."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar, cast

from lcm import _lcm
from lcm._asyncio import begin, ports_on_running_loop, wait
from lcm._lcm import SweepReport
from lcm.clients import Clients, clients_or_environment
from lcm.policy import Policy
from lcm.ports import Bridge, Coordination, Resources
from lcm.types import ControllerStats, ResourceStats, Settings

__all__ = ["Controller", "ResourceController"]

R = TypeVar("R")


class Running(ABC):
    """Base class of controllers: run, inspect and stop."""

    def __init__(self, native: _lcm.Controller | _lcm.ResourceController) -> None:
        self._native = native
        self._started = False
        self._ended = False
        self._begun: tuple[_lcm.Task, asyncio.Future[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def _ports_on_running_loop(self) -> AbstractContextManager[None]:
        """Run the coroutines of ports written in Python on the running loop."""

    async def run(self) -> None:
        """Run until :meth:`stop`. When canceled, finish the reconciles in progress and release the lease first."""
        self._start_once()
        await self._run()

    def _start_once(self) -> None:
        if self._started:
            raise RuntimeError("a controller runs once; create another one")
        self._started = True

    async def _run(self) -> None:
        try:
            with self._ports_on_running_loop():
                self._begun = begin(self._native.start)
                ended = self._begun[1]
                try:
                    await asyncio.shield(ended)
                except asyncio.CancelledError:
                    self.stop()
                    await ended
                    raise
        finally:
            self._ended = True

    @property
    def is_running(self) -> bool:
        """Whether the controller was started and has not ended. A standby counts as running."""
        return self._started and not self._ended

    def stop(self) -> None:
        """Request a graceful stop and return at once. Reconciles in progress finish; repeated calls have no effect."""
        self._native.stop()

    def _crash(self) -> None:
        if self._begun is not None:
            task, ended = self._begun
            task.cancel()
            if not ended.done():
                ended.set_result(None)

    def trigger(self, key: str) -> bool:
        """Reconcile one resource now. Returns False while another process leads."""
        return self._native.trigger(key)

    METRICS_CONTENT_TYPE: ClassVar[str] = _lcm.METRICS_CONTENT_TYPE
    """Content type of :meth:`metrics`."""

    def metrics(self) -> str:
        """Return the metrics in the OpenMetrics text format, which Prometheus reads."""
        return self._native.metrics()

    async def __aenter__(self) -> Self:
        self._start_once()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task


class Controller(Running):
    """Reconciles a fleet of workers while it runs and leads.

    The settings of its clients define the intervals, the election and discovery. Without ``ETCD_ENDPOINTS`` it leads
    at once, without an election. With ``LEADER_SHARDS`` several controllers share the fleet. ``coordination`` replaces
    etcd for election and watch: see :class:`lcm.ports.Coordination`.

    Run it as a task of a service, or use it with ``async with``::

        async with lcm.Controller() as controller:
            await controller.ready()
            ...
    """

    _native: _lcm.Controller

    def __init__(
        self,
        clients: Clients | None = None,
        *,
        policy: Policy | None = None,
        coordination: Coordination | None = None,
    ) -> None:
        elected = None if coordination is None else Bridge(coordination, Coordination)
        super().__init__(_lcm.Controller(clients_or_environment(clients), policy, elected))
        self._clients = clients
        self._elected = elected

    def _ports_on_running_loop(self) -> AbstractContextManager[None]:
        if self._elected is not None:
            self._elected.loop = asyncio.get_running_loop()
        return ports_on_running_loop(self._clients)

    @property
    def stats(self) -> ControllerStats:
        """Statistics of the controller: role, readiness, queue, counters and more."""
        return cast(ControllerStats, self._native.stats())

    @property
    def readiness_problem(self) -> str | None:
        """Why this instance is not ready, in a sentence for a readiness probe, or None if it is.

        An instance is ready if it has swept its workers or stands by for the leader, and reaches etcd and the control
        plane.
        """
        return self._native.readiness_problem() if self.is_running else "the controller does not run"

    async def ready(self) -> SweepReport:
        """Wait until it leads and has finished its startup sweep; return the report of that sweep.

        Raises RuntimeError if the controller was not started, or has stopped.
        """
        # A task that was created to run the controller begins now.
        await asyncio.sleep(0)
        if not self._started:
            raise RuntimeError("the controller was not started; run it as a task, or use it with 'async with'")
        if self._ended:
            raise RuntimeError("the controller has stopped")
        return await wait(self._native.start_ready)


class ResourceController(Running, Generic[R]):
    """Reconciles resources of any kind while it runs and leads, such as those of a scheduler or a lablet controller.

    ``resources`` lists and reconciles them: see :class:`lcm.ports.Resources`. Controllers of the same ``name`` elect
    one leader, or one per shard with ``LEADER_SHARDS``. ``watch`` lists etcd prefixes that end with a slash; the
    segment after the prefix is the key of the changed resource. ``settings`` are those of :class:`lcm.Clients` and
    default to the environment. ``coordination`` replaces etcd: see :class:`lcm.ports.Coordination`.
    """

    def __init__(
        self,
        resources: Resources[R],
        *,
        name: str,
        watch: Sequence[str] = (),
        settings: Settings | Mapping[str, str] | None = None,
        coordination: Coordination | None = None,
    ) -> None:
        self._bridge = Bridge(resources, Resources)
        self._elected = None if coordination is None else Bridge(coordination, Coordination)
        if isinstance(watch, str):
            raise TypeError(f"watch is {watch!r}; accepted: a list of prefixes")
        given = cast(Mapping[str, str], os.environ if settings is None else settings)
        variables = {**given, "LCM_SERVICE_NAME": name}
        super().__init__(_lcm.ResourceController(variables, self._bridge, resources.key, list(watch), self._elected))

    _native: _lcm.ResourceController

    @property
    def stats(self) -> ResourceStats:
        """Statistics of the controller: role, queue and the state of each resource."""
        return cast(ResourceStats, self._native.stats())

    def _ports_on_running_loop(self) -> AbstractContextManager[None]:
        for bridge in (self._bridge, self._elected):
            if bridge is not None:
                bridge.loop = asyncio.get_running_loop()
        return nullcontext()
