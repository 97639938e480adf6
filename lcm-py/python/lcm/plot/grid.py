"""Draws the decision for every situation of a worker as SVG. Each tile shows its reason when the pointer is on it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any

import lcm
from lcm import Decision, Policy
from lcm.palette import DARK, LIGHT, STATUSES, color, ink

__all__ = ["DecisionGrid", "decision_grid"]

Situation = tuple[str | None, str, str]
"""Desired status, status and response of EC2."""

SIGNS = {"launch_instance": "+", "start_instance": "▲", "stop_instance": "■", "terminate_instance": "✕"}
"""Signs of the effects that change EC2."""
STAYS = {"success": LIGHT, "skip": LIGHT, "requeue": "#cfe0f4", "retry": "#f6dcd5"}
"""Colors of the decisions that keep the status."""
TILE, LEFT, TOP, GAP, LEGEND = 27, 92, 118, 26, 84
FONT = "font-family:system-ui,sans-serif"
CSS = ".tile{stroke:#ffffff;stroke-width:1.5}.tile:hover{stroke:#16181d;stroke-width:2.5}"


class DecisionGrid:
    """Decisions by situation, drawn with a panel per desired status. Notebooks show it; :meth:`save` writes a file."""

    def __init__(self, decisions: Mapping[Situation, Decision], *, title: str = "") -> None:
        self.decisions: dict[Situation, Decision] = dict(decisions)
        """Decisions by desired status, status and response of EC2."""
        self.title = title
        """Heading of the drawing."""

    def svg(self) -> str:
        """Return the drawing as SVG, with a description for readers who do not see it."""
        panels = list(dict.fromkeys(desired for desired, _, _ in self.decisions))
        rows = list(dict.fromkeys(status for _, status, _ in self.decisions))
        columns = list(dict.fromkeys(response for _, _, response in self.decisions))
        wide, high = LEFT + TILE * len(columns) + GAP, TOP + TILE * len(rows) + GAP
        across = min(2, len(panels))
        width, height = wide * across + 40, 34 + high * -(-len(panels) // across) + LEGEND
        drawn = []
        for number, desired in enumerate(panels):
            x, y = wide * (number % across), 34 + high * (number // across)
            shown = {place[1:]: decision for place, decision in self.decisions.items() if place[0] == desired}
            drawn.append(f'<g transform="translate({x},{y})">{_panel(desired, rows, columns, shown)}</g>')
        legend = f'<g transform="translate(12,{height - LEGEND + 14})">{self._legend(width)}</g>'
        about = f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
        head = f'<text x="12" y="24" font-size="16" font-weight="600" fill="{DARK}">{escape(self.title)}</text>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(self.description)}" '
            f'viewBox="0 0 {width} {height}" width="{width}" style="max-width:100%;height:auto;{FONT}">'
            f'{about}<style>{CSS}</style><rect width="{width}" height="{height}" fill="{LIGHT}"/>'
            f"{head}{''.join(drawn)}{legend}</svg>"
        )

    @property
    def description(self) -> str:
        """The content of the drawing in a sentence."""
        changing = sum(decision.to_status != decision.from_status for decision in self.decisions.values())
        return f"Decisions in {len(self.decisions)} situations, {changing} of which change the status of the worker."

    def save(self, path: str | Path) -> None:
        """Write the drawing to an SVG file. A browser shows the reasons of its tiles."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.svg()

    def _legend(self, width: int) -> str:
        becoming = {decision.to_status for decision in self.decisions.values() if _changes(decision)}
        entries = {"waits": STAYS["requeue"], "retries later": STAYS["retry"], "in the desired state": STAYS["skip"]}
        entries |= {f"becomes {status}": shade for status, shade in STATUSES.items() if status in becoming}
        drawn, x, y = [], 0, 0
        for text, shade in entries.items():
            if x + 40 + 7 * len(text) > width - 24:
                x, y = 0, y + 20
            drawn.append(
                f'<rect x="{x}" y="{y}" width="14" height="14" fill="{shade}" stroke="#5b6170" stroke-width="0.5"/>'
                f'<text x="{x + 19}" y="{y + 11}" font-size="11.5" fill="{DARK}">{escape(text)}</text>'
            )
            x += 40 + 7 * len(text)
        signs = "+ launch   ▲ start   ■ stop   ✕ terminate   · nothing to do. Point at a tile for its reason."
        drawn.append(f'<text x="0" y="{y + 36}" font-size="11.5" fill="{DARK}" xml:space="preserve">{signs}</text>')
        return "".join(drawn)


def decision_grid(*, policy: Policy | None = None, title: str = "The decision in every situation") -> DecisionGrid:
    """Decide about every status, every desired status and every response of EC2, and draw the decisions.

    The workers have a template, an image and no sessions, and the account is proved. *A minute on* and *a day on* give
    the time since the launch; in the last four columns the record has no instance id, and EC2 is queried for instances
    with the worker's tag.

    >>> from lcm import plot
    >>> grid = plot.decision_grid()
    >>> print(grid.decisions["running", "stopped", "stopped"].reason)
    The instance is stopped and should run: starting it.
    >>> grid.svg()[:4], len(grid.decisions)
    ('<svg', 660)
    """
    now = datetime(2026, 2, 6, 8, tzinfo=UTC)
    minute_ago, day_ago = now - timedelta(minutes=1), now - timedelta(days=1)
    region = lcm.RegionConfig("subnet-1", security_group_ids=("sg-1",))
    policy = policy or Policy(default_region="us-east-1", regions={"us-east-1": region})
    failed = lcm.CallFailure("throttled", "Request limit exceeded.", "RequestLimitExceeded")

    def instance(state: lcm.Ec2State, public_ip: str | None = None) -> lcm.Instance:
        return lcm.Instance(state, id="i-1", launched_at=day_ago, public_ip=public_ip)

    up = instance(lcm.Ec2State.RUNNING, "203.0.113.7")
    known = {
        "pending": (minute_ago, instance(lcm.Ec2State.PENDING)),
        "running, no address": (minute_ago, instance(lcm.Ec2State.RUNNING)),
        "running": (day_ago, up),
        "stopping": (day_ago, instance(lcm.Ec2State.STOPPING)),
        "stopped": (day_ago, instance(lcm.Ec2State.STOPPED)),
        "shutting-down": (day_ago, instance(lcm.Ec2State.SHUTTING_DOWN)),
        "terminated": (day_ago, instance(lcm.Ec2State.TERMINATED)),
        "unknown state": (day_ago, instance(lcm.Ec2State.OTHER)),
        "none, a minute on": (minute_ago, lcm.ABSENT),
        "none, a day on": (day_ago, lcm.ABSENT),
        "call failed": (day_ago, failed),
    }
    tagged = {
        "one tagged": (day_ago, (up,)),
        "no tag, a minute on": (minute_ago, ()),
        "no tag, a day on": (day_ago, ()),
        "call failed ": (day_ago, failed),
    }
    rest: dict[str, Any] = {
        "template": lcm.Template("metal", "m5zn.metal"),
        "images": [lcm.Image("ami-1", "cisco-cml2.9", "2026-01-01")],
        "sessions": [],
        "account_proved": True,
    }
    places, workers, seen = [], [], []
    for desired in (None, *lcm.DesiredStatus):
        for status in lcm.WorkerStatus:
            for response, (launched, observed) in (known | tagged).items():
                recorded = None if response in tagged else "i-1"
                worker = lcm.Worker("w-1", status, desired_status=desired, template_name="metal", launched_at=launched)
                worker = worker.replace(aws_region="us-east-1", is_idle_detection_enabled=False)
                places.append((None if desired is None else str(desired), str(status), response))
                workers.append(worker.replace(ec2_instance_id=recorded))
                lookup: dict[str, Any] = {"tagged" if response in tagged else "ec2": observed}
                seen.append(lcm.Observation(**lookup, **rest))
    decisions = lcm.decide_many(workers, seen, policy=policy, now=now)
    return DecisionGrid(dict(zip(places, decisions, strict=True)), title=title)


def _changes(decision: Decision) -> bool:
    return decision.to_status != decision.from_status


def _panel(desired: str | None, rows: list[str], columns: list[str], shown: Mapping[tuple[str, str], Decision]) -> str:
    drawn = [
        f'<text x="{LEFT}" y="14" font-size="12.5" font-weight="600" fill="{DARK}">desired: {desired or "none"}</text>'
    ]
    for number, column in enumerate(columns):
        x, y = LEFT + TILE * number + 10, TOP - 6
        drawn.append(
            f'<text transform="translate({x},{y}) rotate(-45)" font-size="10.5" fill="{DARK}">{escape(column)}</text>'
        )
    for number, row in enumerate(rows):
        y, shade = TOP + TILE * number, color(row)
        drawn.append(
            f'<rect x="4" y="{y + 4}" width="{LEFT - 10}" height="{TILE - 8}" rx="4" fill="{shade}"/>'
            f'<text x="{4 + (LEFT - 10) / 2}" y="{y + TILE / 2 + 4}" font-size="11" text-anchor="middle" '
            f'fill="{ink(shade)}">{escape(row)}</text>'
        )
    for (row, column), decision in shown.items():
        drawn.append(_tile(row, column, LEFT + TILE * columns.index(column), TOP + TILE * rows.index(row), decision))
    return "".join(drawn)


def _tile(row: str, column: str, x: float, y: float, decision: Decision) -> str:
    changes = _changes(decision)
    shade = color(decision.to_status) if changes else STAYS[decision.outcome]
    names = [effect.name for effect in decision.effects if effect.name in SIGNS]
    waits = decision.outcome in ("requeue", "retry")
    sign = SIGNS[names[0]] if names else "" if changes or waits else "·"
    status = f"{row} → {decision.to_status}" if changes else f"{row}, stays"
    lines = [f"{status} (EC2: {column.strip()})", decision.reason.sentence]
    lines += [f"• {effect.text}" for effect in decision.effects]
    return (
        f'<rect class="tile" x="{x}" y="{y}" width="{TILE}" height="{TILE}" fill="{shade}">'
        f"<title>{escape(chr(10).join(lines))}</title></rect>"
        f'<text x="{x + TILE / 2}" y="{y + TILE / 2 + 5}" font-size="13" text-anchor="middle" '
        f'pointer-events="none" fill="{ink(shade)}">{sign}</text>'
    )
