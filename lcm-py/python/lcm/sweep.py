"""What the look at everything came to that a controller takes when it becomes leader."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from lcm.data import Data
from lcm.words import Outcome

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from lcm._frozen import dataclass

__all__ = ["SweepReport"]


@dataclass(frozen=True, slots=True)
class SweepReport(Data):
    """What a sweep came to.

    >>> from lcm.data import FrozenMap
    >>> print(SweepReport(3, FrozenMap({Outcome.SUCCESS: 2}), ("w-3",), timedelta(seconds=60)))
    2 of 3 looked at in 60 s (2 success); not in time: w-3
    """

    listed: int
    """How many there were."""
    outcomes: Mapping[Outcome, int]
    """How many passes ended in each outcome. Whoever was gone by then has none."""
    unfinished: tuple[str, ...]
    """Those that were not looked at in time."""
    took: timedelta
    """How long it took."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was looked at."""
        return not self.unfinished

    def __str__(self) -> str:
        looked_at = self.listed - len(self.unfinished)
        outcomes = ", ".join(f"{passes} {kind}" for kind, passes in self.outcomes.items())
        text = f"{looked_at} of {self.listed} looked at in {self.took.total_seconds():.3g} s"
        text += f" ({outcomes})" if outcomes else ""
        return f"{text}; not in time: {', '.join(self.unfinished)}" if self.unfinished else text

    def _repr_html_(self) -> str:
        from lcm import _html_reports

        return _html_reports.sweep(self)
