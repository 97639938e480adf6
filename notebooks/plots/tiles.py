"""Boards of tiles: what holds for every pair of a row and a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lcm.palette import colour, ink
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from plots.style import INK, SOFT

__all__ = ["Tile", "board"]


class Tile(NamedTuple):
    """How one tile looks."""

    colour: str
    """Its colour."""
    mark: str = ""
    """A sign or a word on it."""
    hatch: str = ""
    """A hatch, as matplotlib writes it."""


def board(
    axes: Axes,
    rows: Sequence[str],
    columns: Sequence[str],
    tiles: Mapping[tuple[str, str], Tile],
    *,
    size: float = 9,
    tilt: float = 40,
    badges: bool = False,
) -> None:
    """Draw a tile where a row and a column meet.

    ``size`` is that of the marks, ``tilt`` that of the columns' names; with ``badges`` the rows' names have the colours
    of their words.
    """
    for (row, column), tile in tiles.items():
        x, y = columns.index(column), rows.index(row)
        axes.add_patch(
            Rectangle((x, y), 1, 1, facecolor=tile.colour, edgecolor="white", linewidth=1.5, hatch=tile.hatch)
        )
        if tile.mark:
            axes.text(
                x + 0.5, y + 0.5, tile.mark, ha="center", va="center", color=ink(tile.colour), fontsize=size, zorder=3
            )
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    places = [place + 0.5 for place in range(max(len(rows), len(columns)))]
    lean = "left" if tilt else "center"
    axes.set_xticks(places[: len(columns)], columns, rotation=tilt, ha=lean, rotation_mode="anchor")
    axes.set_yticks(places[: len(rows)], rows)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelcolor=INK, labelsize=9)
    for side in axes.spines.values():
        side.set_visible(False)
    if badges:
        for label in axes.get_yticklabels():
            shade = colour(label.get_text())
            label.set_bbox({"facecolor": shade, "edgecolor": SOFT, "linewidth": 0.5, "boxstyle": "round,pad=0.25"})
            label.set_color(ink(shade))
