"""Port to the CML system on a worker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lcm.observation import CmlMetrics
from lcm.ports.bridge import MaybeAwaitable
from lcm.values import Data, Secret

__all__ = ["Cml", "CmlTarget"]


@dataclass(frozen=True, slots=True)
class CmlTarget(Data):
    """Address and credentials of a CML system. ``repr`` omits the password.

    >>> CmlTarget("203.0.113.7", "admin", Secret("hunter2"))
    CmlTarget(address='203.0.113.7', username='admin')
    """

    address: str
    """Address without a scheme."""
    username: str
    """User name to sign in with."""
    password: Secret = field(repr=False)
    """Password to sign in with."""


class Cml(Protocol):
    """The CML system on one worker.

    A system that does not respond yet or rejects the sign-in is ``unreachable`` or ``unclear``. Only a rejected request
    is ``refused``, because it is not retried.
    """

    @abstractmethod
    def system(self, at: CmlTarget, /) -> MaybeAwaitable[CmlMetrics | Mapping[str, Any]]:
        """Return the system's metrics; an unknown value is None."""

    @abstractmethod
    def telemetry(self, at: CmlTarget, /) -> MaybeAwaitable[Iterable[Mapping[str, Any]]]:
        """Return the telemetry events unchanged. An empty list means no activity."""

    @abstractmethod
    def registration(self, at: CmlTarget, /) -> MaybeAwaitable[str | Mapping[str, Any]]:
        """Return the registration status, such as ``COMPLETED``, or a dict with ``word`` and ``attempted``.

        ``word`` is the status and ``attempted`` identifies the latest attempt, so that the failure of an earlier one
        does not count for it.
        """

    @abstractmethod
    def register(self, at: CmlTarget, token: Secret, /) -> MaybeAwaitable[None]:
        """Start a registration with a token. Success means accepted; :meth:`registration` returns the progress.

        A registration that is already in progress is a ``conflict``.
        """

    @abstractmethod
    def reregister(self, at: CmlTarget, token: Secret, /) -> MaybeAwaitable[None]:
        """Start a registration that replaces the current one; see :meth:`register`."""

    @abstractmethod
    def deregister(self, at: CmlTarget, /) -> MaybeAwaitable[None]:
        """Return the license. A local deregistration and an unregistered system are successes too."""
