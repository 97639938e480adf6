"""Plots of the notebooks."""

from plots.machine import machine
from plots.style import SOFT, key
from plots.tiles import Tile, board
from plots.timeline import Diary, Span, bands, events, lanes, moments, stack

__all__ = ["SOFT", "Diary", "Span", "Tile", "bands", "board", "events", "key", "lanes", "machine", "moments", "stack"]
