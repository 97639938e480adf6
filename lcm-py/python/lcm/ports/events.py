"""Port to an event sink."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from lcm.ports.bridge import MaybeAwaitable

__all__ = ["Events"]


class Events(Protocol):
    """A sink for CloudEvents."""

    @abstractmethod
    def publish(self, event: dict[str, Any], /) -> MaybeAwaitable[None]:
        """Publish a CloudEvent."""
