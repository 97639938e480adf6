"""Style of all plots: fonts, grays, axes and legends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
from lcm.palette import DARK, color
from matplotlib.figure import Figure
from matplotlib.patches import Patch

__all__ = ["FAINT", "INK", "SOFT", "key"]

INK = DARK
SOFT = "#5b6170"
FAINT = "#e4e6eb"

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": SOFT,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlepad": 10,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "grid.color": FAINT,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "hatch.linewidth": 0.6,
    }
)


def key(figure: Figure, words: Iterable[str] | Mapping[str, str], *, columns: int = 7, signs: str = "") -> None:
    """Add a legend below the figure, with the palette's colors or the given ones, and a title about the signs."""
    colors = words if isinstance(words, Mapping) else {str(word): color(word) for word in words}
    patches = [Patch(facecolor=shade, edgecolor=SOFT, linewidth=0.5, label=word) for word, shade in colors.items()]
    figure.legend(
        handles=patches,
        loc="outside lower left",
        ncols=min(columns, len(patches)),
        title=signs or None,
        alignment="left",
        handlelength=1.2,
        columnspacing=1.6,
    )
