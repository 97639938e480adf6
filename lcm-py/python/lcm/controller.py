"""Controllers in your own process: election, watch, start-up sweep, polling, backoff and metrics, from Rust."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lcm import _lcm
from lcm._asyncio import answering, begin, wait
from lcm._lcm import SweepReport
from lcm.clients import Clients, clients_or_environment
from lcm.policy import Policy
from lcm.ports import Bridge, Coordination, Resources

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
    def _answering(self) -> AbstractContextManager[None]:
        """Have what is written in Python awaited on the running loop meanwhile."""

    async def run(self) -> None:
        """Run until :meth:`stop`. Cancelled, it finishes what is under way, gives the lease up, and then ends."""
        self._start_once()
        await self._run()

    def _start_once(self) -> None:
        if self._started:
            raise RuntimeError("a controller runs once; make another one")
        self._started = True

    async def _run(self) -> None:
        try:
            with self._answering():
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
        """Whether it was started and has not ended. One that stands by runs, too."""
        return self._started and not self._ended

    def stop(self) -> None:
        """Ask it to finish what is under way and end. Returns at once; again is fine."""
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

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics of the controller: role, queue and more."""
        return self._native.stats()

    def metrics(self) -> str:
        """Its metrics, as Prometheus reads them."""
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
    """Keeps a fleet of workers honest for as long as it runs and leads.

    How often it looks, where leaders are elected and what it discovers is said by the settings of its clients. With
    ``ETCD_ENDPOINTS`` empty it leads at once, alone. With ``LEADER_SHARDS`` several share the fleet. ``coordination``
    elects leaders and is watched in place of etcd: see :class:`lcm.ports.Coordination`.

    Run it as a task of your service, or use it with ``async with``::

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

    def _answering(self) -> AbstractContextManager[None]:
        if self._elected is not None:
            self._elected.loop = asyncio.get_running_loop()
        return answering(self._clients)

    async def ready(self) -> SweepReport:
        """Wait until it leads and has looked at every worker once; tells how that went, and who was not in time."""
        return await wait(self._native.start_ready)


class ResourceController(Running, Generic[R]):
    """Keeps any resources reconciled for as long as it runs and leads: a scheduler or a lablet controller, say.

    ``resources`` says what there is and what to do about each; see :class:`lcm.ports.Resources`. ``name`` is what it is
    elected as: one of that name leads, or with ``LEADER_SHARDS`` each a part. ``watch`` names prefixes in etcd, each
    with a slash at its end; the segment after the prefix is the key of what changed. Settings are those of
    :class:`lcm.Clients`, from the environment unless they are given. ``coordination`` takes etcd's place: see
    :class:`lcm.ports.Coordination`.
    """

    def __init__(
        self,
        resources: Resources[R],
        *,
        name: str,
        watch: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        coordination: Coordination | None = None,
    ) -> None:
        self._bridge = Bridge(resources, Resources)
        self._elected = None if coordination is None else Bridge(coordination, Coordination)
        if isinstance(watch, str):
            raise TypeError(f"watch is {watch!r}; accepted: a list of prefixes")
        variables = {**(os.environ if settings is None else settings), "LCM_SERVICE_NAME": name}
        super().__init__(_lcm.ResourceController(variables, self._bridge, resources.key, list(watch), self._elected))

    def _answering(self) -> AbstractContextManager[None]:
        for bridge in (self._bridge, self._elected):
            if bridge is not None:
                bridge.loop = asyncio.get_running_loop()
        return nullcontext()
