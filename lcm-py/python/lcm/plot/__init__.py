"""Plots of the lifecycle, of workers and of fleets, with the colors of :mod:`lcm.palette`.

Install matplotlib with ``pip install 'lcm-sdk[plot]'``.

>>> from lcm import plot
>>> figure = plot.state_machine(title="The lifecycle")
"""

from __future__ import annotations

from lcm._extras import needed
from lcm.plot.grid import DecisionGrid, decision_grid

with needed("matplotlib", by="lcm.plot", extra="plot"):
    from lcm.plot.machine import state_machine
    from lcm.plot.simulated import counts, figures, spans
    from lcm.plot.span import Span
    from lcm.plot.style import SOFT, key, show, use_style
    from lcm.plot.tiles import Tile, board
    from lcm.plot.timeline import Diary, bands, events, fleet, lanes, moments, stack, timeline

__all__ = [
    "SOFT",
    "DecisionGrid",
    "Diary",
    "Span",
    "Tile",
    "bands",
    "board",
    "counts",
    "decision_grid",
    "events",
    "figures",
    "fleet",
    "key",
    "lanes",
    "moments",
    "show",
    "spans",
    "stack",
    "state_machine",
    "timeline",
    "use_style",
]
