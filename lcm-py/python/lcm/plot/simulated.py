"""Draws simulations: the statuses of each worker over time, and the figures of policies side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from lcm import Comparison, Figures, History
from lcm.palette import color
from lcm.plot.span import Span
from lcm.plot.style import INK, STYLE

__all__ = ["counts", "figures", "spans"]

PANELS = {
    "instance_hours": "instance hours",
    "mean_delay": "mean delay of sessions, s",
    "mean_time_to_running": "mean time to running, s",
    "cut_short": "sessions cut short",
    "given_up": "sessions given up",
}
"""Figures that are drawn, with their titles."""
COLUMNS = 3


def spans(history: History, *, workers: Iterable[str] | None = None) -> dict[str, list[Span]]:
    """Return the statuses of each worker over time, in hours since the start.

    ``workers`` are the ids of those to return, by default all.
    """
    chosen = history.workers if workers is None else list(workers)
    notes = {worker: [(0.0, str(history.status(worker, history.started_at)))] for worker in chosen}
    for row in history.rows():
        if row["to_status"] != row["from_status"] and row["worker_id"] in notes:
            notes[row["worker_id"]].append((_hours(history, row["at"]), row["to_status"]))
    ends = {worker: [*(start for start, _ in noted[1:]), history.hours] for worker, noted in notes.items()}
    return {
        worker: [Span(start, end, word) for (start, word), end in zip(noted, ends[worker], strict=True) if end > start]
        for worker, noted in notes.items()
    }


def counts(history: History) -> list[tuple[float, Counter[str]]]:
    """Return the number of workers by status after each change, with its time in hours since the start."""
    count = Counter(str(history.status(worker, history.started_at)) for worker in history.workers)
    seen = [(0.0, count.copy())]
    for row in history.rows():
        if row["to_status"] != row["from_status"]:
            count[row["from_status"]] -= 1
            count[row["to_status"]] += 1
            seen.append((_hours(history, row["at"]), count.copy()))
    return [*seen, (history.hours, count.copy())]


def figures(shown: History | Comparison, *, title: str = "") -> Figure:
    """Draw the figures of a simulation, or those of each policy of a comparison side by side.

    >>> import lcm
    >>> from lcm import plot
    >>> thrifty = lcm.Policy(scale_down=lcm.ScaleDownPolicy(enabled=True))
    >>> figure = plot.figures(lcm.compare({"today": lcm.Policy(), "thrifty": thrifty}, 5))
    """
    columns: Mapping[str, Figures] = shown.figures if isinstance(shown, Comparison) else {"": shown.figures}
    rows = -(-len(PANELS) // COLUMNS)
    with plt.rc_context(STYLE):
        size = (13, 0.6 + rows * (0.9 + 0.3 * len(columns)))
        figure, grid = plt.subplots(rows, COLUMNS, figsize=size, sharey=True, squeeze=False)
        panels = grid.flatten()
        for axes, (field, name) in zip(panels, PANELS.items(), strict=False):
            values = [getattr(row, field) or 0 for row in columns.values()]
            bars = axes.barh(list(columns), values, color=color("starting"), height=0.62)
            axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, color=INK, fontsize=8.5)
            axes.set_title(name, fontsize=9.5)
            axes.margins(x=0.18)
            axes.tick_params(axis="y", length=0, labelcolor=INK)
            axes.xaxis.set_visible(False)
            axes.spines[["left", "bottom"]].set_visible(False)
            axes.set_ylim(len(columns) - 0.5, -0.5)
        for axes in panels[len(PANELS) :]:
            axes.set_axis_off()
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    return figure


def _hours(history: History, at: datetime) -> float:
    return (at - history.started_at).total_seconds() / 3600
