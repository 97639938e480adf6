"""How a decision looks in a notebook. Everything that comes from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lcm.results import Action, Decision, Outcome

# Dark enough for white text on each.
COLOURS = {
    "pending": "#6b7280",
    "provisioning": "#1d4ed8",
    "starting": "#0369a1",
    "running": "#15803d",
    "draining": "#a16207",
    "stopping": "#b45309",
    "stopped": "#475569",
    "terminating": "#9a3412",
    "terminated": "#1f2937",
    "failed": "#b91c1c",
    "unknown": "#7e22ce",
    "success": "#15803d",
    "requeue": "#1d4ed8",
    "retry": "#b91c1c",
    "skip": "#475569",
}

SIGNS = {"planned": "○", "done": "✓", "launched": "✓", "failed": "✗", "not_tried": "·"}


def card(shown: Decision | Outcome, ending: str) -> str:
    """A worker, where it goes, why, and what is done for it."""
    statuses = badge(shown.source)
    if shown.target != shown.source:
        statuses += f" → {badge(shown.target)}"
    actions = "".join(f"<li>{line(action)}</li>" for action in shown.actions)
    listed = f'<ol style="margin:4px 0 0 0;padding-left:20px">{actions}</ol>' if actions else ""
    when = escape(str(shown.look_again).replace("_", " "))
    if shown.after is not None:
        when = f"in {shown.after.total_seconds():g} s"
    return (
        '<div style="border-left:4px solid '
        f'{COLOURS.get(str(ending), "#6b7280")};padding:4px 10px;margin:4px 0;line-height:1.5">'
        f"<div><b>{escape(shown.worker_id)}</b> {statuses} {badge(ending)}"
        f' <span style="opacity:.7">look again: {when}</span></div>'
        f"<div>{escape(shown.reason.sentence)} <code>{escape(str(shown.reason.code))}</code></div>{listed}</div>"
    )


def badge(word: str, colour: str | None = None) -> str:
    """A word on its colour."""
    colour = colour or COLOURS.get(str(word), "#6b7280")
    style = f"background:{colour};color:#fff;border-radius:4px;padding:1px 6px"
    return f'<span style="{style}">{escape(str(word))}</span>'


def line(action: Action) -> str:
    """One action and how it went."""
    text = f"{SIGNS.get(str(action.result), '?')} {escape(action.text)}"
    if action.instance_id:
        text += f" → {escape(action.instance_id)}"
    if action.error is not None:
        text += f' <span style="color:#b91c1c">{escape(str(action.error))}</span>'
    return text
