"""Resources of a custom controller."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol, TypeVar

from lcm.enums import Outcome
from lcm.ports.bridge import Answer

__all__ = ["Resources"]

R = TypeVar("R")


class Resources(Protocol[R]):
    """Resources that an :class:`lcm.ResourceController` reconciles. Nothing is reconciled twice at the same time."""

    @abstractmethod
    def key(self, resource: R, /) -> str:
        """Name a resource. Must not wait."""

    @abstractmethod
    def list(self, everything: bool, /) -> Answer[Iterable[R]]:
        """List resources: everything there is, or what may need something done."""

    @abstractmethod
    def fetch(self, key: str, /) -> Answer[R | None]:
        """Read one resource that was told as changed; None if it is gone."""

    @abstractmethod
    def reconcile(self, resource: R, /) -> Answer[Outcome | str | timedelta | None]:
        """One pass over a resource.

        None is a success, a timedelta says when to look again, and a word is an outcome. What it raises is logged and
        retried after the backoff.
        """
