"""Periods with one value, of which timelines consist."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Span"]


class Span(NamedTuple):
    """A period with one value, in minutes, or in hours for a simulation."""

    start: float
    end: float
    word: str
