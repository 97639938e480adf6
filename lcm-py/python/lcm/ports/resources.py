"""Resources of a custom controller."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol, TypeVar

from lcm.enums import Outcome
from lcm.ports.bridge import MaybeAwaitable

__all__ = ["Resources"]

R = TypeVar("R")


class Resources(Protocol[R]):
    """Resources that an :class:`lcm.ResourceController` reconciles. Each has at most one reconcile at a time."""

    @abstractmethod
    def key(self, resource: R, /) -> str:
        """Return the key of a resource. Must not block."""

    @abstractmethod
    def list(self, everything: bool, /) -> MaybeAwaitable[Iterable[R]]:
        """List all resources, or only those that may need a change."""

    @abstractmethod
    def fetch(self, key: str, /) -> MaybeAwaitable[R | None]:
        """Read one changed resource; None if it does not exist."""

    @abstractmethod
    def reconcile(self, resource: R, /) -> MaybeAwaitable[Outcome | str | timedelta | None]:
        """Reconcile a resource.

        None is a success, a timedelta the delay until the next reconcile, and a word an outcome. An exception is logged
        and the reconcile is retried after the backoff.
        """
