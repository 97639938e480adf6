"""Time of a simulated fleet: a large one for a month, and one of a notebook's sliders."""

from __future__ import annotations

import time
from typing import Any

import lcm
from report import Bench, Row, Sample

POLICY = lcm.Policy(scale_down=lcm.ScaleDownPolicy(enabled=True, min_workers=5))


def row(what: str, goal: float, turns: int, **arguments: Any) -> Row:
    """A row with an absolute goal in seconds."""
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        lcm.simulate(policy=POLICY, seed=7, **arguments)
        times.append(time.perf_counter() - began)
    ours = Sample.from_turns(times)
    history = lcm.simulate(policy=POLICY, seed=7, **arguments)
    assert history.figures.served > 0
    note = f"{history.figures.reconciles:,} reconciles, {history.figures.requested:,} sessions; inputs {history.digest}"
    return Row(what, "s", ours, None, "a goal", None, f"≤ {goal:g} s", ours.median <= goal, note)


def run(quick: bool) -> list[Row]:
    """Simulates on one core."""
    days = 3 if quick else 30
    events = {"sessions_per_hour": 400, "fault_rate": 0.01}
    slider = {"sessions_per_hour": 10, "duration": {"exponential": 5400}, "lead": 7200, "fault_rate": 0.01}
    return [
        row(f"simulation of 1,000 workers for {days} days", 5, 3, fleet=1000, events=events, hours=24 * days),
        row(
            "simulation of 20 workers for 3 days, with sessions booked ahead", 0.5, 5, fleet=20, events=slider, hours=72
        ),
    ]


BENCH = Bench("simulate", "a simulated fleet, on one core", run)
