"""Whoever listens, as a port that you can write in Python."""

from __future__ import annotations

from typing import Any, Protocol

from lcm.ports.bridge import Answer

__all__ = ["Events"]


class Events(Protocol):
    """Whoever listens."""

    def publish(self, event: dict[str, Any], /) -> Answer[None]:
        """Take a CloudEvent."""
        ...
