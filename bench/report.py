"""What a bench found out, and how that is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
# Between these lines of the README are the results of the latest whole run.
BEGIN, END = "<!-- results of `make bench` -->\n", "<!-- end of results -->\n"


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
    """What it should be; a ratio as in ``≥ 20``."""
    met: bool
    """Whether it is."""
    note: str = ""
    """What else one should know; if it is short of the goal, why."""


@dataclass(frozen=True)
class Bench:
    """Something that can be measured."""

    name: str
    about: str
    run: Callable[[bool], list[Row]]
    """Measures; True asks for less than the whole thing, for a first impression."""


def better(what: str, unit: str, ours: float, theirs: float, peer: str, *, at_least: float, note: str = "") -> Row:
    """A row of something that there should be less of, and so many times less than the peer's."""
    ratio = theirs / ours
    return Row(what, unit, ours, theirs, peer, ratio, f"≥ {at_least:g}", ratio >= at_least, note)


def figure(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def shown(row: Row) -> tuple[str, str]:
    """Both figures with their unit."""
    theirs = "none" if row.theirs is None else f"{figure(row.theirs)} {row.unit}"
    return f"{figure(row.ours)} {row.unit}", theirs


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, and below it what else there is to know."""
    lines = [
        "| what | ours | theirs | next to | times better | goal | |",
        "|---|--:|--:|---|--:|---|---|",
    ]
    for row in rows:
        met = "met" if row.met else "**short**"
        ours, theirs = shown(row)
        lines.append(f"| {row.what} | {ours} | {theirs} | {row.peer} | {figure(row.ratio)} | {row.goal} | {met} |")
    notes = [f"- {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def page(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """The whole page of results."""
    met = sum(row.met for row in rows)
    told = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    return (
        f"# LCM beside what one would use instead\n\n"
        f"{met} of {len(rows)} goals are met. All of it was measured in one run of `make bench`, on one machine. "
        f"Times differ from machine to machine; ratios hold.\n\n{told}\n\n"
        f"![How many times better, on a logarithmic axis, with the goals](results.svg)\n\n{table(rows)}"
    )


def excerpt(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """What the README shows."""
    short = [row.what for row in rows if not row.met]
    lines = [
        "![How many times better, on a logarithmic axis, with the goals](bench/results.svg)",
        "",
        f"<details><summary>All {len(rows)} figures; {len(short)} are short of their goal</summary>",
        "",
        "| what | LCM | instead | times better | goal | |",
        "|---|--:|--:|--:|---|---|",
    ]
    for row in rows:
        ours, theirs = shown(row)
        met = "met" if row.met else "**short**"
        lines.append(f"| {row.what} | {ours} | {theirs} | {figure(row.ratio)} | {row.goal} | {met} |")
    return "\n".join([*lines, "", f"{facts['processor']}; {facts['Python']}.", "", "</details>", ""])


def between(text: str, new: str) -> str:
    """A text with what is between the two lines replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README lacks the line {BEGIN.strip()!r} or {END.strip()!r}")
    return f"{before}{begin}{new}{end}{after}"


def write(rows: Sequence[Row], facts: dict[str, Any], where: Path = HERE, readme: Path = README) -> None:
    """Keep the results, for people and for programs."""
    # Only here: it takes a second to import, and whoever measures one thing draws nothing.
    from plot import draw

    kept = {"about": facts, "rows": [asdict(row) for row in rows]}
    (where / "results.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (where / "results.md").write_text(page(rows, facts), encoding="utf-8")
    draw(rows, where / "results.svg")
    text = readme.read_text(encoding="utf-8")
    readme.write_text(between(text, excerpt(rows, facts)), encoding="utf-8")
