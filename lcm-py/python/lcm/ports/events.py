"""Event sinks, as a port that you can write in Python."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from lcm.ports.bridge import Answer

__all__ = ["Events"]


class Events(Protocol):
    """A sink for CloudEvents."""

    @abstractmethod
    def publish(self, event: dict[str, Any], /) -> Answer[None]:
        """Take a CloudEvent."""
