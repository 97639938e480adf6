"""Colors of statuses, outcomes and conclusions, for notebooks and plots.

Any two statuses are distinguishable with protanopia, deuteranopia and tritanopia; a test measures the distances.

>>> color("running"), ink(color("running")), ink(color("draining"))
('#107665', '#ffffff', '#16181d')
"""

from __future__ import annotations

__all__ = ["STATUSES", "color", "ink"]

DARK = "#16181d"
LIGHT = "#ffffff"

STATUSES = {
    "pending": "#e6e9ee",
    "provisioning": "#6ad2fd",
    "starting": "#152f99",
    "running": "#107665",
    "draining": "#ffd60f",
    "stopping": "#d58503",
    "stopped": "#9397a1",
    "terminating": "#522418",
    "terminated": "#11121a",
    "failed": "#b63b16",
    "unknown": "#b756e8",
}
"""Color of each worker status."""

_LIKE = {
    "shutting-down": "terminating",
    "success": "running",
    "requeue": "starting",
    "retry": "failed",
    "skip": "stopped",
    "orphan": "terminated",
    "alive": "running",
    "young": "draining",
    "protected": "starting",
    "frozen": "provisioning",
    "deferred": "stopping",
}


def color(word: str) -> str:
    """Return the color of a status, an outcome or a conclusion. Any other word has the color of ``stopped``."""
    return STATUSES.get(_LIKE.get(str(word), str(word)), STATUSES["stopped"])


def ink(background: str) -> str:
    """Return the text color, dark or light, with the higher contrast on a background such as ``#107665``."""
    light = _luminance(background)
    on_dark, on_light = (light + 0.05) / (_luminance(DARK) + 0.05), 1.05 / (light + 0.05)
    return DARK if on_dark > on_light else LIGHT


def _luminance(color: str) -> float:
    red, green, blue = (_linear(int(color[place : place + 2], 16) / 255) for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
