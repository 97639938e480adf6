"""CloudWatch, as a port that you can write in Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from lcm.failure import CallFailure
from lcm.observation import CloudMetrics
from lcm.ports.bridge import Answer

__all__ = ["Metrics"]


class Metrics(Protocol):
    """CloudWatch, asked for many instances at once."""

    @abstractmethod
    def utilization(
        self, region: str, ids: list[str], until: datetime, /
    ) -> Answer[Mapping[str, CloudMetrics | Mapping[str, Any] | CallFailure]]:
        """The latest utilisation of instances up to a moment, by id.

        An instance about which nothing was reported is ``CloudMetrics()``; what is not measured is None alone, which
        is not nought. An id that is left out was not answered, and a :class:`lcm.CallFailure` says why.
        """
