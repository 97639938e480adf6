"""Draws boards with a tile per row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lcm.palette import color, ink
from lcm.plot.style import INK, SOFT

__all__ = ["Tile", "board"]


class Tile(NamedTuple):
    """Appearance of one tile."""

    color: str
    """Background color."""
    mark: str = ""
    """Text on the tile."""
    hatch: str = ""
    """Hatch pattern of matplotlib."""


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
    """Draw a board of tiles.

    ``size`` is the font size of the marks, ``tilt`` the angle of the column labels; ``badges`` colors the row labels.
    """
    for (row, column), tile in tiles.items():
        x, y = columns.index(column), rows.index(row)
        axes.add_patch(
            Rectangle((x, y), 1, 1, facecolor=tile.color, edgecolor="white", linewidth=1.5, hatch=tile.hatch)
        )
        if tile.mark:
            axes.text(
                x + 0.5, y + 0.5, tile.mark, ha="center", va="center", color=ink(tile.color), fontsize=size, zorder=3
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
            shade = color(label.get_text())
            label.set_bbox({"facecolor": shade, "edgecolor": SOFT, "linewidth": 0.5, "boxstyle": "round,pad=0.25"})
            label.set_color(ink(shade))
