"""Rows of a benchmark, and the pages they are written to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


@dataclass(frozen=True)
class Sample:
    """One figure measured in several turns."""

    median: float
    """The figure that is compared."""
    low: float
    """The smallest turn."""
    high: float
    """The largest turn."""
    turns: int
    """The number of turns."""

    @classmethod
    def from_turns(cls, values: Sequence[float]) -> Sample:
        """Summarizes the turns; at least one is required."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def exact(cls, value: float) -> Sample:
        """A count or a constant, which has no spread."""
        return cls(value, value, value, 1)


@dataclass(frozen=True)
class Row:
    """One comparison, made in one run on one machine."""

    what: str
    """The operation that was measured."""
    unit: str
    """Unit of both figures; smaller is better unless the unit is a rate."""
    ours: Sample
    """LCM's figure."""
    theirs: Sample | None
    """The figure of the alternative; none where the goal is absolute."""
    peer: str
    """Name of the alternative."""
    ratio: float | None
    """Ratio of the medians, above 1 where LCM is better."""
    goal: str
    """The goal in words; a ratio reads ``≥ 20``."""
    met: bool
    """Whether the goal is met."""
    note: str = ""
    """Methodology, or the reason why the goal is missed."""


@dataclass(frozen=True)
class Bench:
    """A named benchmark of the run."""

    name: str
    about: str
    run: Callable[[bool], list[Row]]
    """Measures and returns rows; ``True`` selects the quick variant with fewer turns."""


def better(
    what: str, unit: str, ours: Sequence[float], theirs: Sequence[float], peer: str, *, at_least: float, note: str = ""
) -> Row:
    """A row whose goal is a ratio: ours is at least ``at_least`` times smaller, or larger if the unit is a rate."""
    mine, its = Sample.from_turns(ours), Sample.from_turns(theirs)
    ratio = mine.median / its.median if unit == "/s" else its.median / mine.median
    return Row(what, unit, mine, its, peer, ratio, f"≥ {at_least:g}", ratio >= at_least, note)


def figure(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def shown(sample: Sample | None, unit: str) -> str:
    """The median with its unit, and the spread if there is one."""
    if sample is None:
        return "none"
    spread = "" if sample.low == sample.high else f" ({figure(sample.low)} … {figure(sample.high)})"
    return f"{figure(sample.median)} {unit}{spread}"


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, followed by their notes."""
    lines = [
        "| operation | LCM | alternative | measured against | ratio | goal | |",
        "|---|--:|--:|---|--:|---|---|",
    ]
    for row in rows:
        met = "met" if row.met else "**missed**"
        ours, theirs = shown(row.ours, row.unit), shown(row.theirs, row.unit)
        lines.append(f"| {row.what} | {ours} | {theirs} | {row.peer} | {figure(row.ratio)} | {row.goal} | {met} |")
    notes = [f"- {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def page(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """The page of results, ``docs/benchmarks.md``."""
    met = sum(row.met for row in rows)
    machine = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    return (
        f"# Benchmarks\n\n"
        f"{met} of {len(rows)} goals are met. All rows come from one run of `make bench` on one machine; absolute "
        f"times depend on the machine, ratios hardly do. Figures are medians with the smallest and the largest turn in "
        f"parentheses. [performance.md](performance.md) describes the code behind the rows.\n\n{machine}\n\n"
        f"![Ratios on a logarithmic axis, with the goals](benchmarks.svg)\n\n{table(rows)}"
    )


def write(rows: Sequence[Row], facts: dict[str, Any], data: Path = HERE, docs: Path = DOCS) -> None:
    """Writes ``bench/results.json``, ``docs/benchmarks.md`` and ``docs/benchmarks.svg``."""
    # matplotlib takes a second to import, which a run of one benchmark does not need.
    from plot import draw

    kept = {"about": facts, "rows": [asdict(row) for row in rows]}
    (data / "results.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (docs / "benchmarks.md").write_text(page(rows, facts), encoding="utf-8")
    draw(rows, docs / "benchmarks.svg")
