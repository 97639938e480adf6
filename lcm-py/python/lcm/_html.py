"""How a decision looks in a notebook. Everything that comes from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from lcm.palette import colour, ink

if TYPE_CHECKING:
    from lcm.outcome import Effect, ReconcileResult
    from lcm.results import Decision

SIGNS = {"planned": "○", "done": "✓", "launched": "✓", "failed": "✗", "not_tried": "·"}


def card(shown: Decision | ReconcileResult, ending: str) -> str:
    """A worker, where it goes, why, and what is done for it."""
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


def line(effect: Effect) -> str:
    """One action and how it went."""
    text = f"{SIGNS.get(str(effect.result), '?')} {escape(effect.text)}"
    if effect.ec2_instance_id:
        text += f" → {escape(effect.ec2_instance_id)}"
    if effect.error is not None:
        text += f' <span style="color:{colour("failed")}">{escape(str(effect.error))}</span>'
    return text
