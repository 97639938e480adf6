"""Results as HTML for notebooks. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

from lcm.palette import color, ink

if TYPE_CHECKING:
    from lcm._lcm import (
        Comparison,
        Decision,
        DiscoveryReport,
        Effect,
        Figures,
        History,
        OrphanReport,
        ReconcileResult,
        RegionReport,
        Replay,
        SweepReport,
        Verdict,
    )

SIGNS = {"planned": "○", "done": "✓", "launched": "✓", "failed": "✗", "not_tried": "·"}


def card(shown: Decision | ReconcileResult) -> str:
    """Show a worker, its statuses, the reason and the effects."""
    statuses = badge(shown.from_status)
    if shown.to_status != shown.from_status:
        statuses += f" → {badge(shown.to_status)}"
    effects = "".join(f"<li>{line(effect)}</li>" for effect in shown.effects)
    listed = f'<ol style="margin:4px 0 0 0;padding-left:20px">{effects}</ol>' if effects else ""
    when = escape(str(shown.requeue).replace("_", " "))
    if shown.after is not None:
        when = f"in {shown.after.total_seconds():g} s"
    return (
        '<div style="border-left:4px solid '
        f'{color(shown.outcome)};padding:4px 10px;margin:4px 0;line-height:1.5">'
        f"<div><b>{escape(shown.worker_id)}</b> {statuses} {badge(shown.outcome)}"
        f' <span style="opacity:.7">requeue: {when}</span></div>'
        f"<div>{escape(shown.reason.sentence)} <code>{escape(str(shown.reason.code))}</code></div>{listed}</div>"
    )


def badge(word: str) -> str:
    """Show a word on its color."""
    background = color(word)
    style = f"background:{background};color:{ink(background)};border-radius:4px;padding:1px 6px"
    return f'<span style="{style}">{escape(str(word))}</span>'


def line(effect: Effect) -> str:
    """Show one effect and its result."""
    text = f"{SIGNS.get(str(effect.result), '?')} {escape(effect.text)}"
    if effect.ec2_instance_id:
        text += f" → {escape(effect.ec2_instance_id)}"
    if effect.error is not None:
        text += f' <span style="color:{color("failed")}">{escape(str(effect.error))}</span>'
    return text


def discovery_report(report: DiscoveryReport) -> str:
    """Show a run of discovery, region by region."""
    title = "<b>discovery</b>" + (f" {badge('dry run')}" if report.dry_run else "")
    why = "" if report.error is None else f"<div>{_wrong(f'Nothing was done: {report.error}')}</div>"
    shown = "".join(f'<div style="margin-top:6px">{_region(region)}</div>' for region in report.regions)
    return _box("failed" if report.error is not None else "success", f"<div>{title}</div>{why}{shown}")


def region_report(report: RegionReport) -> str:
    """Show a run of discovery over one region."""
    return _box("failed" if report.notes else "success", _region(report))


def orphan_report(report: OrphanReport) -> str:
    """Show the verdicts about a region."""
    unverified = ""
    if report.unverified:
        unverified = f"<div>not verified yet: {escape(', '.join(report.unverified))}</div>"
    text = f"<div><b>{escape(report.region)}</b> orphans: {len(report.orphans)}</div>{unverified}"
    return _box("failed" if report.is_frozen else "success", text + _verdicts(report.verdicts))


def sweep_report(report: SweepReport) -> str:
    """Show a sweep."""
    outcomes = " ".join(f"{badge(kind)} {passes}" for kind, passes in report.outcomes.items())
    names = ", ".join(report.unfinished)
    late = f"<div>{_wrong(f'unfinished: {names}')}</div>" if names else ""
    text = f"{report.listed - len(report.unfinished)} of {report.listed} in {report.took.total_seconds():.3g} s"
    return _box("retry" if late else "success", f"<div><b>sweep</b> {text} {outcomes}</div>{late}")


def replay(report: Replay) -> str:
    """Show the decisions that differ, at most 50 of them."""
    rows = "".join(
        f"<tr><td>{escape(f'{found.at:%Y-%m-%d %H:%M:%S}')}</td><td>{escape(found.worker_id)}</td>"
        f"<td>{badge(found.recorded_status)} → {badge(found.replayed_status)}</td>"
        f'<td style="text-align:left">{escape(found.text.split(": ", 1)[1])}</td></tr>'
        for found in report.differences[:50]
    )
    more = f"<div>and {len(report.differences) - 50} more</div>" if len(report.differences) > 50 else ""
    table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    return _box(
        "success" if report.is_same else "failed", f"<div><b>replay</b> {escape(str(report))}</div>{table}{more}"
    )


FIGURES = {
    "requested": "sessions requested",
    "served": "served",
    "delayed": "delayed",
    "lost": "lost",
    "cut_short": "cut short",
    "mean_delay": "mean delay, s",
    "instance_hours": "instance hours",
    "cost": "cost",
    "mean_time_to_running": "mean time to running, s",
}


def comparison(compared: Comparison) -> str:
    """Show the figures of each policy side by side."""
    note = f"{compared.hours:g} h, seed {compared.seed}, version {compared.version}, inputs {compared.digest}"
    return _box("success", f"<div><b>comparison</b> {escape(note)}</div>{_figures(compared.figures)}")


def history(shown: History) -> str:
    """Show the figures of a simulation."""
    repeated = f"seed {shown.seed}, version {shown.version}, inputs {shown.digest}"
    note = f"{len(shown.workers)} workers, {shown.hours:g} h, {repeated}"
    return _box("success", f"<div><b>simulation</b> {escape(note)}</div>{_figures({'': shown.figures})}")


def _figures(columns: Mapping[str, Figures]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(
        f'<tr><td style="text-align:left">{title}</td>'
        + "".join(f"<td>{_number(getattr(figures, field))}</td>" for figures in columns.values())
        + "</tr>"
        for field, title in FIGURES.items()
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _region(report: RegionReport) -> str:
    notes = "".join(f"<div>{_wrong(note)}</div>" for note in report.notes)
    summary = f"<div><b>{escape(report.region)}</b> {escape(report.summary)}</div>"
    return f"{summary}{notes}{_verdicts(report.verdicts)}"


def _verdicts(verdicts: Iterable[Verdict]) -> str:
    rows = "".join(
        f"<tr><td>{escape(verdict.worker_id)}</td><td><code>{escape(verdict.ec2_instance_id)}</code></td>"
        f"<td>{badge(verdict.conclusion)}</td>"
        f'<td style="text-align:left">{escape(verdict.why)}</td></tr>'
        for verdict in verdicts
    )
    return f"<table><tbody>{rows}</tbody></table>" if rows else ""


def _box(outcome: str, text: str) -> str:
    style = f"border-left:4px solid {color(outcome)};padding:4px 10px;margin:4px 0;line-height:1.5"
    return f'<div style="{style}">{text}</div>'


def _wrong(text: str) -> str:
    return f'<span style="color:{color("failed")}">{escape(text)}</span>'
