"""The CML on a worker, as a port that you can write in Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lcm.observation import CmlMetrics
from lcm.ports.bridge import Answer
from lcm.values import Data, Secret

__all__ = ["Cml", "CmlTarget"]


@dataclass(frozen=True, slots=True)
class CmlTarget(Data):
    """Where a CML is and how to sign in. It can be logged: the password is not shown.

    >>> CmlTarget("203.0.113.7", "admin", Secret("hunter2"))
    CmlTarget(address='203.0.113.7', username='admin')
    """

    address: str
    """Its address, without a scheme."""
    username: str
    """User."""
    password: Secret = field(repr=False)
    """Password."""


class Cml(Protocol):
    """The CML system on one worker.

    One that does not answer yet, or does not let us in, is ``unreachable`` or ``unclear``, never ``refused``: only a
    CML that said no to the very request is not asked again.
    """

    @abstractmethod
    def system(self, at: CmlTarget, /) -> Answer[CmlMetrics | Mapping[str, Any]]:
        """Return the system's metrics; an unknown value is None."""

    @abstractmethod
    def telemetry(self, at: CmlTarget, /) -> Answer[Iterable[Mapping[str, Any]]]:
        """Its telemetry events, as it wrote them. An empty list means that nothing happened."""

    @abstractmethod
    def registration(self, at: CmlTarget, /) -> Answer[str | Mapping[str, Any]]:
        """How its registration stands: CML's word, such as ``COMPLETED``, or ``word`` and ``attempted`` in a dict.

        ``attempted`` is CML's mark of its latest attempt. With it, the failure of an earlier attempt is not taken for
        that of ours.
        """

    @abstractmethod
    def register(self, at: CmlTarget, token: Secret, /) -> Answer[None]:
        """Hand a token over. Success means *accepted*: how it goes is read from :meth:`registration` later.

        One that is in progress already is a ``conflict``.
        """

    @abstractmethod
    def reregister(self, at: CmlTarget, token: Secret, /) -> Answer[None]:
        """The same, replacing a registration that is there."""

    @abstractmethod
    def deregister(self, at: CmlTarget, /) -> Answer[None]:
        """Give the licence back. Done, done locally only, and already done are all success."""
