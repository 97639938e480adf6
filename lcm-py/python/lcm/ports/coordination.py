"""etcd, as far as electing a leader and watching keys need it, as a port that you can write in Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, TypeAlias

from lcm.ports.bridge import Answer
from lcm.values import Absent, Data, FrozenMap

__all__ = ["Changed", "Compacted", "Coordination", "Held", "Lease", "Listing", "Progress", "Watch", "Won"]


@dataclass(frozen=True, slots=True)
class Lease(Data):
    """A lease that was granted."""

    id: int
    """Its id."""
    ttl: timedelta
    """How long it lives without renewal, as it was granted: never shorter than asked for."""


@dataclass(frozen=True, slots=True)
class Won(Data):
    """The key is ours."""

    revision: int
    """The revision at which it was created. It grows with every leader, so it can fence the earlier ones off."""


@dataclass(frozen=True, slots=True)
class Held(Data):
    """Another process holds the key."""

    by: str
    """The value they put there."""
    revision: int
    """The server's revision at that moment: the key is watched from the next one on."""


@dataclass(frozen=True, slots=True)
class Listing(Data):
    """All keys under a prefix at one revision."""

    revision: int
    """The server's revision: a watch goes on from the next one."""
    keys: Mapping[str, int] = field(default_factory=FrozenMap)
    """Each key with the revision of its last change."""


@dataclass(frozen=True, slots=True)
class Changed(Data):
    """Keys changed or vanished, all up to a revision."""

    revision: int
    """The revision of the last of them."""
    keys: Iterable[str]
    """The keys, each as often as it changed."""


@dataclass(frozen=True, slots=True)
class Progress(Data):
    """Nothing changed up to a revision: the server is there."""

    revision: int
    """The revision."""


@dataclass(frozen=True, slots=True)
class Compacted(Data):
    """The revision asked for is gone: everything is listed again."""

    revision: int
    """The oldest revision that can be watched."""


WatchUpdate: TypeAlias = Changed | Progress | Compacted
"""One update of a watch."""


class Watch(Protocol):
    """A running watch.

    ``next`` is waited for all the time that somebody listens, so it should be ``async``. A plain one keeps a thread
    busy: let it give a :class:`Progress` every few seconds when nothing happens.
    """

    @abstractmethod
    def next(self) -> Answer[WatchUpdate]:
        """The next update, without a gap. An exception ends the watch; another one is opened after a delay."""

    @abstractmethod
    def probe(self) -> Answer[None]:
        """Ask for a sign of life while ``next`` is waited for: a :class:`Progress` should follow."""

    @abstractmethod
    def close(self) -> Answer[None]:
        """Close the watch. A pending ``next`` is cancelled first."""


class Coordination(Protocol):
    """Leader election: leases, keys bound to a lease, and watches.

    A leader that cannot be sure of its lease stops. So a call that takes longer than the time to live, or raises, costs
    the lead; it never leaves two leaders.
    """

    @abstractmethod
    def grant(self, ttl: timedelta, /) -> Answer[Lease]:
        """Grant a lease; it may live longer than asked for."""

    @abstractmethod
    def renew(self, lease_id: int, /) -> Answer[timedelta | Absent]:
        """Renew a lease; gives how long it lives from now, or :data:`lcm.ABSENT` if there is no such lease any more."""

    @abstractmethod
    def revoke(self, lease_id: int, /) -> Answer[None]:
        """Give a lease and all its keys up. One that is gone already is a success."""

    @abstractmethod
    def claim(self, key: str, value: str, lease_id: int, /) -> Answer[Won | Held]:
        """Create a key only if it does not exist, in one transaction, bound to a lease.

        A key that holds this very value under this very lease was won before, and its answer lost. A lease that is
        gone is ``refused``.
        """

    @abstractmethod
    def list(self, prefix: str, /) -> Answer[Listing]:
        """All keys that start with a prefix, at one revision."""

    @abstractmethod
    def watch(self, prefix: str, from_revision: int, /) -> Answer[Watch]:
        """Watch every key that starts with a prefix, from a revision on.

        What has happened since that revision is told first. If that is not known any more, :class:`Compacted` says so.
        """
