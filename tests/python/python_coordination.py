"""Coordination ports in memory, with ``async`` and with blocking methods."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import lcm
from lcm.ports import Changed, Compacted, Coordination, Held, Lease, Listing, Progress, Watch, Won

T = TypeVar("T")


@dataclass
class Entry:
    """Value and revisions of a key."""

    value: str
    created: int
    modified: int
    lease: int | None


class PythonCoordination(Coordination):
    """A coordination port in memory. Controllers that share it compete."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.keys: dict[str, Entry] = {}
        self.history: list[tuple[int, str]] = []
        self.leases: dict[int, tuple[timedelta, asyncio.TimerHandle]] = {}
        self.watches: list[PythonWatch] = []
        self.granted = 0
        self.trouble: Exception | None = None

    async def grant(self, ttl: timedelta, /) -> Lease:
        self._check_available()
        self.granted += 1
        self._expire_later(self.granted, ttl)
        return Lease(self.granted, ttl)

    async def renew(self, lease_id: int, /) -> timedelta | lcm.Absent:
        self._check_available()
        if lease_id not in self.leases:
            return lcm.ABSENT
        ttl, timer = self.leases[lease_id]
        timer.cancel()
        self._expire_later(lease_id, ttl)
        return ttl

    async def revoke(self, lease_id: int, /) -> None:
        self._check_available()
        self._end(lease_id)

    async def claim(self, key: str, value: str, lease_id: int, /) -> Won | Held:
        self._check_available()
        if entry := self.keys.get(key):
            ours = (entry.value, entry.lease) == (value, lease_id)
            return Won(entry.created) if ours else Held(entry.value, self.revision)
        if lease_id not in self.leases:
            raise lcm.PortError("the lease is gone", "refused", "NotFound")
        self.put(key, value, lease_id)
        return Won(self.revision)

    async def list(self, prefix: str, /) -> Listing:
        self._check_available()
        return Listing(
            self.revision, {key: entry.modified for key, entry in self.keys.items() if key.startswith(prefix)}
        )

    async def watch(self, prefix: str, from_revision: int, /) -> PythonWatch:
        self._check_available()
        watch = PythonWatch(self, prefix, from_revision)
        self.watches.append(watch)
        return watch

    def put(self, key: str, value: str, lease: int | None = None) -> None:
        """Write a key."""
        self.revision += 1
        created = self.keys[key].created if key in self.keys else self.revision
        self.keys[key] = Entry(value, created, self.revision, lease)
        self._notify(key)

    def delete(self, *keys: str) -> None:
        """Delete keys, all at one revision."""
        self.revision += 1
        for key in keys:
            del self.keys[key]
        self._notify(*keys)

    def compact(self) -> None:
        """Compact the history up to the current revision."""
        self.compacted = self.revision
        self.history = [(revision, key) for revision, key in self.history if revision >= self.compacted]

    def _check_available(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def _notify(self, *keys: str) -> None:
        self.history += [(self.revision, key) for key in keys]
        for watch in self.watches:
            watch.notified.set()

    def _expire_later(self, lease: int, ttl: timedelta) -> None:
        timer = asyncio.get_running_loop().call_later(ttl.total_seconds(), self._end, lease)
        self.leases[lease] = (ttl, timer)

    def _end(self, lease: int) -> None:
        if lease in self.leases:
            self.leases.pop(lease)[1].cancel()
            if held := [key for key, entry in self.keys.items() if entry.lease == lease]:
                self.delete(*held)


class PythonWatch(Watch):
    """A watch that reads the history after each notification."""

    def __init__(self, keys: PythonCoordination, prefix: str, next_revision: int) -> None:
        self.keys = keys
        self.prefix = prefix
        self.next_revision = next_revision
        self.notified = asyncio.Event()
        self.is_probed = False

    async def next(self) -> Changed | Progress | Compacted:
        while True:
            if self.next_revision < self.keys.compacted:
                gone, self.next_revision = self.keys.compacted, self.keys.compacted
                return Compacted(gone)
            new = [entry for entry in self.keys.history if entry[0] >= self.next_revision]
            self.next_revision = self.keys.revision + 1
            if changes := [(revision, key) for revision, key in new if key.startswith(self.prefix)]:
                return Changed(changes[-1][0], [key for _, key in changes])
            if self.is_probed:
                self.is_probed = False
                return Progress(self.keys.revision)
            self.notified.clear()
            await self.notified.wait()

    async def probe(self) -> None:
        self.is_probed = True
        self.notified.set()

    async def close(self) -> None:
        self.keys.watches.remove(self)


class BlockingCoordination(Coordination):
    """A coordination port with blocking methods."""

    def __init__(self, keys: PythonCoordination) -> None:
        self.keys = keys
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop of the keys."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def grant(self, ttl: timedelta, /) -> Lease:
        return self.run(self.keys.grant(ttl)).result()

    def renew(self, lease_id: int, /) -> timedelta | lcm.Absent:
        return self.run(self.keys.renew(lease_id)).result()

    def revoke(self, lease_id: int, /) -> None:
        self.run(self.keys.revoke(lease_id)).result()

    def claim(self, key: str, value: str, lease_id: int, /) -> Won | Held:
        return self.run(self.keys.claim(key, value, lease_id)).result()

    def list(self, prefix: str, /) -> Listing:
        return self.run(self.keys.list(prefix)).result()

    def watch(self, prefix: str, from_revision: int, /) -> BlockingWatch:
        return BlockingWatch(self, self.run(self.keys.watch(prefix, from_revision)).result())


class BlockingWatch(Watch):
    """A blocking watch that returns a heartbeat at intervals, because it occupies a thread."""

    def __init__(self, keys: BlockingCoordination, watch: PythonWatch) -> None:
        self.keys = keys
        self.watch = watch
        self.waiting: Future[Changed | Progress | Compacted] | None = None

    def next(self) -> Changed | Progress | Compacted:
        self.waiting = self.waiting or self.keys.run(self.watch.next())
        try:
            update = self.waiting.result(timeout=0.2)
        except TimeoutError:
            return Progress(self.keys.keys.revision)
        self.waiting = None
        return update

    def probe(self) -> None:
        self.keys.run(self.watch.probe()).result()

    def close(self) -> None:
        self.keys.run(self.watch.close()).result()


class CoordinationWorld:
    """World of the coordination port."""

    def __init__(self, keys: PythonCoordination | None = None) -> None:
        self.keys = keys or PythonCoordination()

    def coordination(self) -> Coordination:
        return self.keys

    async def put(self, key: str, value: str, /) -> None:
        self.keys.put(key, value)

    async def delete(self, key: str, /) -> None:
        self.keys.delete(key)

    async def compact(self) -> None:
        self.keys.compact()


class BlockingCoordinationWorld:
    """World of the blocking coordination port."""

    def __init__(self) -> None:
        self.keys = BlockingCoordination(PythonCoordination())
        self.world = CoordinationWorld(self.keys.keys)

    def coordination(self) -> Coordination:
        return self.keys

    def put(self, key: str, value: str, /) -> None:
        self.keys.run(self.world.put(key, value)).result()

    def delete(self, key: str, /) -> None:
        self.keys.run(self.world.delete(key)).result()

    def compact(self) -> None:
        self.keys.run(self.world.compact()).result()
