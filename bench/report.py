"""What a bench found out, and how that is told."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One comparison, made in one run on one machine."""

    what: str
    """What was done."""
    unit: str
    """What ours and theirs count; less is better, unless it is a rate."""
    ours: float
    """LCM's figure."""
    theirs: float | None
    """The figure of what a user would pick instead."""
    peer: str
    """Who that is."""
    ratio: float | None
    """How many times better ours is."""
    goal: str
    """What it should be."""
    met: bool
    """Whether it is."""
    note: str = ""
    """What else one should know."""


@dataclass(frozen=True)
class Bench:
    """Something that can be measured."""

    name: str
    about: str
    run: Callable[[bool], list[Row]]
    """Measures; True asks for less than the whole thing, for a first impression."""


def figure(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| what | ours | theirs | next to | times better | goal | |",
        "|---|--:|--:|---|--:|---|---|",
    ]
    for row in rows:
        met = "met" if row.met else "**short**"
        ours, theirs = f"{figure(row.ours)} {row.unit}", f"{figure(row.theirs)} {row.unit}" if row.theirs else "none"
        lines.append(f"| {row.what} | {ours} | {theirs} | {row.peer} | {figure(row.ratio)} | {row.goal} | {met} |")
    notes = [f"- {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def write(rows: list[Row], *, quick: bool) -> None:
    """Keep the results, for people and for programs."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"at": at, "quick": quick, "machine": platform.machine(), "python": platform.python_version()}
    kept = {"about": about, "rows": [asdict(row) for row in rows]}
    (HERE / "results.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    (HERE / "results.md").write_text(table(rows))
