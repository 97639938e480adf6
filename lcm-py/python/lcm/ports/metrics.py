"""Port to CloudWatch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from lcm.failure import CallFailure
from lcm.observation import CloudMetrics
from lcm.ports.bridge import MaybeAwaitable

__all__ = ["Metrics"]


class Metrics(Protocol):
    """CloudWatch metrics, for many instances per call."""

    @abstractmethod
    def utilization(
        self, region: str, ids: list[str], until: datetime, /
    ) -> MaybeAwaitable[Mapping[str, CloudMetrics | Mapping[str, Any] | CallFailure]]:
        """Return the latest utilization of instances up to ``until``, by id.

        An instance without data points is ``CloudMetrics()``. A metric without data points is None, which differs from
        zero. A missing id and a :class:`lcm.CallFailure` count as a failed call.
        """
