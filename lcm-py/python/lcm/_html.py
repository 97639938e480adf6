"""How a decision looks in a notebook. Everything that comes from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from lcm.palette import colour, ink

if TYPE_CHECKING:
    from lcm.outcome import Action, Outcome
    from lcm.results import Decision

SIGNS = {"planned": "○", "done": "✓", "launched": "✓", "failed": "✗", "not_tried": "·"}


def card(shown: Decision | Outcome, ending: str) -> str:
    """A worker, where it goes, why, and what is done for it."""
    statuses = badge(shown.source)
    if shown.target != shown.source:
        statuses += f" → {badge(shown.target)}"
    actions = "".join(f"<li>{line(action)}</li>" for action in shown.actions)
    listed = f'<ol style="margin:4px 0 0 0;padding-left:20px">{actions}</ol>' if actions else ""
    when = escape(str(shown.requeue).replace("_", " "))
    if shown.after is not None:
        when = f"in {shown.after.total_seconds():g} s"
    return (
        '<div style="border-left:4px solid '
        f'{colour(ending)};padding:4px 10px;margin:4px 0;line-height:1.5">'
        f"<div><b>{escape(shown.worker_id)}</b> {statuses} {badge(ending)}"
        f' <span style="opacity:.7">look again: {when}</span></div>'
        f"<div>{escape(shown.reason.sentence)} <code>{escape(str(shown.reason.code))}</code></div>{listed}</div>"
    )


def badge(word: str) -> str:
    """A word on its colour."""
    background = colour(word)
    style = f"background:{background};color:{ink(background)};border-radius:4px;padding:1px 6px"
    return f'<span style="{style}">{escape(str(word))}</span>'


def line(action: Action) -> str:
    """One action and how it went."""
    text = f"{SIGNS.get(str(action.result), '?')} {escape(action.text)}"
    if action.instance_id:
        text += f" → {escape(action.instance_id)}"
    if action.error is not None:
        text += f' <span style="color:{colour("failed")}">{escape(str(action.error))}</span>'
    return text
