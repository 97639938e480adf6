"""Draws the ratios of all rows and their goals on a logarithmic axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import Row, figure

TIMES = "\N{MULTIPLICATION SIGN}"
# Grey that is legible on light and dark pages.
INK = "#7d8590"
MET = "#1a9e85"
SHORT = "#d9661f"


def goal_of(row: Row) -> float | None:
    """The goal as a number, if it is a ratio."""
    found = re.fullmatch(r"≥ ([\d.,]+)\W*", row.goal)
    return float(found[1].replace(",", "")) if found else None


def draw(rows: Sequence[Row], where: Path) -> None:
    """Draws every row that has a ratio, in order."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.ratio is not None and row.ratio > 0]
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "lcm",
        "font.family": "sans-serif",
        "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with pyplot.rc_context(style):
        figure_, axes = pyplot.subplots(figsize=(11, 1.2 + 0.3 * len(shown)))
        for place, row in enumerate(shown):
            assert row.ratio is not None
            axes.barh(place, row.ratio - 1, left=1, height=0.62, color=MET if row.met else SHORT)
            goal, end = goal_of(row), max(row.ratio, 1.0)
            if goal is not None:
                axes.plot([goal, goal], [place - 0.44, place + 0.44], color=INK, linewidth=2.2)
                # Keeps the label clear of the goal mark.
                end = goal if end < goal < 2 * end else end
            axes.text(end * 1.08, place, f"{figure(row.ratio)} {TIMES}", va="center", fontsize=9)
        axes.set_xscale("log")
        axes.set_xlim(
            min([0.8, *(0.8 * row.ratio for row in shown if row.ratio)]), 4 * max(row.ratio or 1 for row in shown)
        )
        axes.set_yticks(range(len(shown)), [row.what.replace("`", "") for row in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f} {TIMES}" if value >= 1 else f"{value:g} {TIMES}")
        axes.grid(axis="x", color=INK, alpha=0.25, linewidth=0.7)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_title("ratio to the alternative; the mark is the goal", fontsize=11, loc="left")
        figure_.savefig(where, transparent=True, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure_)
