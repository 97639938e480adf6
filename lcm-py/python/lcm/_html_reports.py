"""How reports about many workers look in a notebook. Everything that comes from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from lcm._html import badge
from lcm.palette import colour

if TYPE_CHECKING:
    from lcm.orphans import DiscoveryReport, RegionReport
    from lcm.results import OrphanReport, Verdict
    from lcm.sweep import SweepReport


def discovery(report: DiscoveryReport) -> str:
    """A pass of discovery, region by region."""
    title = "<b>discovery</b>" + (f" {badge('dry run')}" if report.dry_run else "")
    why = "" if report.error is None else f"<div>{_wrong(f'Nothing was done: {report.error}')}</div>"
    shown = "".join(f'<div style="margin-top:6px">{_region(region)}</div>' for region in report.regions)
    return _box("failed" if report.error is not None else "success", f"<div>{title}</div>{why}{shown}")


def region(report: RegionReport) -> str:
    """A pass of discovery over one region."""
    return _box("failed" if report.notes else "success", _region(report))


def orphans(report: OrphanReport) -> str:
    """What garbage collection concludes about a region."""
    unverified = ""
    if report.unverified:
        unverified = f"<div>not asked about yet: {escape(', '.join(report.unverified))}</div>"
    text = f"<div><b>{escape(report.region)}</b> orphans: {len(report.orphans)}</div>{unverified}"
    return _box("failed" if report.is_frozen else "success", text + _verdicts(report.verdicts))


def sweep(report: SweepReport) -> str:
    """A look at everything."""
    outcomes = " ".join(f"{badge(kind)} {passes}" for kind, passes in report.outcomes.items())
    names = ", ".join(report.unfinished)
    late = f"<div>{_wrong(f'not in time: {names}')}</div>" if names else ""
    text = f"{report.listed - len(report.unfinished)} of {report.listed} in {report.took.total_seconds():.3g} s"
    return _box("retry" if late else "success", f"<div><b>sweep</b> {text} {outcomes}</div>{late}")


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


def _box(ending: str, text: str) -> str:
    style = f"border-left:4px solid {colour(ending)};padding:4px 10px;margin:4px 0;line-height:1.5"
    return f'<div style="{style}">{text}</div>'


def _wrong(text: str) -> str:
    return f'<span style="color:{colour("failed")}">{escape(text)}</span>'
