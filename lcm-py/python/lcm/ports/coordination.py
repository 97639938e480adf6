"""Port to etcd, for leader election and watches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, TypeAlias

from lcm.ports.bridge import MaybeAwaitable
from lcm.values import Absent, Data, FrozenMap

__all__ = ["Changed", "Compacted", "Coordination", "Held", "Lease", "Listing", "Progress", "Watch", "Won"]


@dataclass(frozen=True, slots=True)
class Lease(Data):
    """A granted lease."""

    id: int
    """Lease id."""
    ttl: timedelta
    """Granted time to live; at least the requested one."""


@dataclass(frozen=True, slots=True)
class Won(Data):
    """The key was created: the caller leads."""

    revision: int
    """Revision that created the key. It grows with every leader and serves as the fencing token."""


@dataclass(frozen=True, slots=True)
class Held(Data):
    """Another process holds the key."""

    by: str
    """Value of the key."""
    revision: int
    """Current revision of the server. The key is watched from the next one."""


@dataclass(frozen=True, slots=True)
class Listing(Data):
    """All keys under a prefix at one revision."""

    revision: int
    """Current revision of the server. A watch starts at the next one."""
    keys: Mapping[str, int] = field(default_factory=FrozenMap)
    """Maps each key to the revision of its last change."""


@dataclass(frozen=True, slots=True)
class Changed(Data):
    """Keys that were written or deleted up to a revision."""

    revision: int
    """Revision of the last change."""
    keys: Iterable[str]
    """One entry per change."""


@dataclass(frozen=True, slots=True)
class Progress(Data):
    """A heartbeat of the server: no key changed up to a revision."""

    revision: int
    """Current revision of the server."""


@dataclass(frozen=True, slots=True)
class Compacted(Data):
    """The requested revision was compacted. All keys are listed again."""

    revision: int
    """Oldest revision that can be watched."""


WatchUpdate: TypeAlias = Changed | Progress | Compacted
"""One update of a watch."""


class Watch(Protocol):
    """A running watch.

    Make ``next`` ``async``: a call is pending as long as the watch is open. A plain method occupies a thread and has to
    return a :class:`Progress` every few seconds when no key changes.
    """

    @abstractmethod
    def next(self) -> MaybeAwaitable[WatchUpdate]:
        """Return the next update, without a gap. An exception ends the watch; it is opened again after a delay."""

    @abstractmethod
    def probe(self) -> MaybeAwaitable[None]:
        """Request a :class:`Progress` while ``next`` is pending."""

    @abstractmethod
    def close(self) -> MaybeAwaitable[None]:
        """Close the watch. A pending ``next`` is canceled first."""


class Coordination(Protocol):
    """Leader election: leases, keys bound to a lease, and watches.

    A leader whose lease may have expired stops. A call that raises or takes longer than the time to live ends the lead;
    it never results in two leaders.
    """

    @abstractmethod
    def grant(self, ttl: timedelta, /) -> MaybeAwaitable[Lease]:
        """Grant a lease. Its time to live may be longer than ``ttl``."""

    @abstractmethod
    def renew(self, lease_id: int, /) -> MaybeAwaitable[timedelta | Absent]:
        """Renew a lease. Returns its time to live, or :data:`lcm.ABSENT` if the lease has expired."""

    @abstractmethod
    def revoke(self, lease_id: int, /) -> MaybeAwaitable[None]:
        """Revoke a lease and delete its keys. An expired lease is a success."""

    @abstractmethod
    def claim(self, key: str, value: str, lease_id: int, /) -> MaybeAwaitable[Won | Held]:
        """Create a key only if it does not exist, in one transaction, bound to a lease.

        A key with the same value and lease is :class:`Won`: the response of an earlier call was lost. An expired lease
        is ``refused``.
        """

    @abstractmethod
    def list(self, prefix: str, /) -> MaybeAwaitable[Listing]:
        """List all keys that start with a prefix, at one revision."""

    @abstractmethod
    def watch(self, prefix: str, from_revision: int, /) -> MaybeAwaitable[Watch]:
        """Watch every key that starts with a prefix, from a revision on.

        Changes since that revision are returned first, or :class:`Compacted` if they are no longer available.
        """
