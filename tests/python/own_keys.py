"""Leases, keys and watches of one's own: what etcd does for an election, on one event loop."""

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
    """A key."""

    value: str
    created: int
    modified: int
    lease: int | None


class OwnKeys(Coordination):
    """Everybody who shares one of these competes."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.keys: dict[str, Entry] = {}
        self.history: list[tuple[int, str]] = []
        self.leases: dict[int, tuple[timedelta, asyncio.TimerHandle]] = {}
        self.watches: list[OwnWatch] = []
        self.granted = 0
        self.trouble: Exception | None = None

    async def grant(self, ttl: timedelta, /) -> Lease:
        self._reach()
        self.granted += 1
        self._run_out_later(self.granted, ttl)
        return Lease(self.granted, ttl)

    async def renew(self, lease_id: int, /) -> timedelta | lcm.Absent:
        self._reach()
        if lease_id not in self.leases:
            return lcm.ABSENT
        ttl, timer = self.leases[lease_id]
        timer.cancel()
        self._run_out_later(lease_id, ttl)
        return ttl

    async def revoke(self, lease_id: int, /) -> None:
        self._reach()
        self._end(lease_id)

    async def claim(self, key: str, value: str, lease_id: int, /) -> Won | Held:
        self._reach()
        if entry := self.keys.get(key):
            ours = (entry.value, entry.lease) == (value, lease_id)
            return Won(entry.created) if ours else Held(entry.value, self.revision)
        if lease_id not in self.leases:
            raise lcm.PortError("the lease is gone", "refused", "NotFound")
        self.put(key, value, lease_id)
        return Won(self.revision)

    async def list(self, prefix: str, /) -> Listing:
        self._reach()
        return Listing(
            self.revision, {key: entry.modified for key, entry in self.keys.items() if key.startswith(prefix)}
        )

    async def watch(self, prefix: str, from_revision: int, /) -> OwnWatch:
        self._reach()
        watch = OwnWatch(self, prefix, from_revision)
        self.watches.append(watch)
        return watch

    def put(self, key: str, value: str, lease: int | None = None) -> None:
        """Write a key."""
        self.revision += 1
        created = self.keys[key].created if key in self.keys else self.revision
        self.keys[key] = Entry(value, created, self.revision, lease)
        self._tell(key)

    def delete(self, *keys: str) -> None:
        """Delete keys, all at one revision."""
        self.revision += 1
        for key in keys:
            del self.keys[key]
        self._tell(*keys)

    def compact(self) -> None:
        """Forget everything before the current revision."""
        self.compacted = self.revision
        self.history = [(revision, key) for revision, key in self.history if revision >= self.compacted]

    def _reach(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def _tell(self, *keys: str) -> None:
        self.history += [(self.revision, key) for key in keys]
        for watch in self.watches:
            watch.news.set()

    def _run_out_later(self, lease: int, ttl: timedelta) -> None:
        timer = asyncio.get_running_loop().call_later(ttl.total_seconds(), self._end, lease)
        self.leases[lease] = (ttl, timer)

    def _end(self, lease: int) -> None:
        if lease in self.leases:
            self.leases.pop(lease)[1].cancel()
            if held := [key for key, entry in self.keys.items() if entry.lease == lease]:
                self.delete(*held)


class OwnWatch(Watch):
    """A watch that hears of news and looks what they are."""

    def __init__(self, keys: OwnKeys, prefix: str, next_revision: int) -> None:
        self.keys = keys
        self.prefix = prefix
        self.next_revision = next_revision
        self.news = asyncio.Event()
        self.is_probed = False

    async def next(self) -> Changed | Progress | Compacted:
        while True:
            if self.next_revision < self.keys.compacted:
                gone, self.next_revision = self.keys.compacted, self.keys.compacted
                return Compacted(gone)
            new = [entry for entry in self.keys.history if entry[0] >= self.next_revision]
            self.next_revision = self.keys.revision + 1
            if told := [(revision, key) for revision, key in new if key.startswith(self.prefix)]:
                return Changed(told[-1][0], [key for _, key in told])
            if self.is_probed:
                self.is_probed = False
                return Progress(self.keys.revision)
            self.news.clear()
            await self.news.wait()

    async def probe(self) -> None:
        self.is_probed = True
        self.news.set()

    async def close(self) -> None:
        self.keys.watches.remove(self)


class PlainKeys(Coordination):
    """The same with plain methods, as a client that knows nothing of asyncio would have them."""

    def __init__(self, keys: OwnKeys) -> None:
        self.keys = keys
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Have something done on the loop of the keys."""
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

    def watch(self, prefix: str, from_revision: int, /) -> PlainWatch:
        return PlainWatch(self, self.run(self.keys.watch(prefix, from_revision)).result())


class PlainWatch(Watch):
    """A watch that gives a sign of life now and then, because it keeps a thread busy."""

    def __init__(self, keys: PlainKeys, watch: OwnWatch) -> None:
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


class KeysWorld:
    """The keys, and a hand that changes them on the same loop."""

    def __init__(self, keys: OwnKeys | None = None) -> None:
        self.keys = keys or OwnKeys()

    def coordination(self) -> Coordination:
        return self.keys

    async def put(self, key: str, value: str, /) -> None:
        self.keys.put(key, value)

    async def delete(self, key: str, /) -> None:
        self.keys.delete(key)

    async def compact(self) -> None:
        self.keys.compact()


class PlainKeysWorld:
    """The same with plain methods."""

    def __init__(self) -> None:
        self.keys = PlainKeys(OwnKeys())
        self.world = KeysWorld(self.keys.keys)

    def coordination(self) -> Coordination:
        return self.keys

    def put(self, key: str, value: str, /) -> None:
        self.keys.run(self.world.put(key, value)).result()

    def delete(self, key: str, /) -> None:
        self.keys.run(self.world.delete(key)).result()

    def compact(self) -> None:
        self.keys.run(self.world.compact()).result()
