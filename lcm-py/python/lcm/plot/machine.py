"""Draws the state machine from the transition table."""

from __future__ import annotations

from collections.abc import Iterable

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import lcm
from lcm import Transition
from lcm.palette import STATUSES, color, ink
from lcm.plot.style import SOFT, STYLE

__all__ = ["state_machine"]

Point = tuple[float, float]

PLACES: dict[str, Point] = {
    "failed": (2.9, 6.0),
    "terminated": (7.3, 6.0),
    "terminating": (11.7, 6.0),
    "pending": (0.0, 3.7),
    "provisioning": (5.0, 3.7),
    "running": (9.4, 3.7),
    "draining": (13.8, 3.7),
    "starting": (6.2, 1.4),
    "stopped": (9.8, 0.5),
    "stopping": (13.4, 1.4),
    "unknown": (1.2, 0.8),
}
"""Position of each status: final ones at the top, startup in the middle, stopping and restarting below."""

ROUTES = {
    ("pending", "failed"): (-0.22, 0.64),
    ("failed", "pending"): (-0.22, 0.52),
    ("pending", "terminated"): (0.04, 0.78),
    ("provisioning", "failed"): (0.0, 0.34),
    ("starting", "failed"): (-0.36, 0.22),
    ("failed", "terminating"): (-0.14, 0.5),
    ("stopped", "pending"): (-0.2, 0.4),
    ("stopped", "terminating"): (0.06, 0.28),
    ("running", "draining"): (-0.1, 0.5),
    ("draining", "running"): (-0.1, 0.5),
    ("stopping", "failed"): (-0.1, 0.5),
}
"""Bend and label position of edges whose straight line would cross others."""

WIDTH, HEIGHT = 1.9, 0.62


def state_machine(transitions: Iterable[Transition] | None = None, *, title: str = "") -> Figure:
    """Draw transitions with their labels, and the statuses they connect.

    The default is every change of status that LCM commands. :func:`lcm.diagram` returns the whole table as text.
    """
    edges = [edge for edge in lcm.transitions() if edge.kind == "commanded"] if transitions is None else transitions
    edges = list(edges)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(13, 6))
        axes.set(xlim=(-1.1, 14.9), ylim=(0, 6.9), aspect="equal", title=title)
        axes.axis("off")
        joined = {edge.from_status for edge in edges} | {edge.to_status for edge in edges}
        boxes = {status: _box(axes, status) for status in STATUSES if status in joined}
        for edge in edges:
            _draw(axes, edge, boxes)
    return figure


def _box(axes: Axes, status: str) -> FancyBboxPatch:
    (x, y), shade = PLACES[status], color(status)
    corner, shape = (x - WIDTH / 2, y - HEIGHT / 2), "round,pad=0,rounding_size=0.2"
    box = FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=shape, facecolor=shade, edgecolor=SOFT, linewidth=0.8)
    axes.add_patch(box).set_zorder(4)
    axes.text(x, y, status, ha="center", va="center_baseline", color=ink(shade), zorder=5, fontsize=10.5)
    return box


def _draw(axes: Axes, edge: Transition, boxes: dict[str, FancyBboxPatch]) -> None:
    bend, share = ROUTES.get((edge.from_status, edge.to_status), (0.0, 0.5))
    start, end = PLACES[edge.from_status], PLACES[edge.to_status]
    arrow = FancyArrowPatch(
        start,
        end,
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-|>,head_length=5,head_width=2.6",
        color=SOFT,
        linewidth=1.1,
        patchA=boxes[edge.from_status],
        patchB=boxes[edge.to_status],
        shrinkA=2,
        shrinkB=3,
    )
    axes.add_patch(arrow).set_zorder(2)
    x, y = _along(start, end, bend, share)
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
    axes.text(x, y, edge.when, ha="center", va="center", fontsize=8.5, color=SOFT, bbox=paper, zorder=3)


def _along(start: Point, end: Point, bend: float, share: float) -> Point:
    """Return a point on matplotlib's curve ``arc3``."""
    (x0, y0), (x1, y1) = start, end
    x, y = (x0 + x1) / 2 + bend * (y1 - y0), (y0 + y1) / 2 - bend * (x1 - x0)
    before, middle, after = (1 - share) ** 2, 2 * share * (1 - share), share**2
    return before * x0 + middle * x + after * x1, before * y0 + middle * y + after * y1
