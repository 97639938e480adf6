"""Style of the plots: fonts, grays, axes, legends and alternative texts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from io import BytesIO
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lcm.palette import DARK, color

__all__ = ["FAINT", "INK", "SOFT", "STYLE", "key", "show", "use_style"]

INK = DARK
SOFT = "#5b6170"
FAINT = "#e4e6eb"

STYLE: dict[Any, Any] = {
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
"""Parameters of matplotlib with which all plots of this package are drawn."""


def use_style() -> None:
    """Draw all later plots of this process in the style of LCM, as the notebooks do."""
    plt.rcParams.update(STYLE)


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


def show(figure: Figure, alt: str) -> None:
    """Show a figure in a notebook, with a text for readers who do not see it. Exported pages keep the text."""
    from IPython.display import display

    picture = BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    # Otherwise the notebook would show it again at the end of the cell.
    plt.close(figure)
    # As HTML, because the template of nbconvert has no texts for pictures.
    source = f"data:image/png;base64,{b64encode(picture.getvalue()).decode()}"
    html = f'<img alt="{escape(alt)}" style="max-width:100%;height:auto" src="{source}">'
    display({"text/html": html, "text/plain": alt}, raw=True)  # type: ignore[no-untyped-call]
