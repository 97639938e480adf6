"""How the cost of a sweep grows with the fleet: twice as many workers should cost twice as much, and no more.

Of the hundred calls for 100,000 workers AWS's default rates let fifty through at once, and hold the others back:
that is the account's pace and not ours. So growth is measured with an account that may ask as often as it likes, and
what the default rates make of the largest fleet is told beside it. Each sweep has a process of its own, as in life:
after another one, a small fleet would find all its memory there, and a large one would have to ask for more.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from math import log

import ours
from report import Bench, Row
from worlds import cloud_of, parked


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The slope of cost over size on logarithmic axes, by least squares: 1 is linear, 2 is quadratic."""
    return statistics.linear_regression([log(size) for size in sizes], [log(cost) for cost in costs]).slope


# Next to AWS's defaults.
UNLIMITED = 1000.0


def once(size: int, rate: float = UNLIMITED) -> tuple[float, float, float]:
    """Seconds, seconds of processor time and EC2 calls of one sweep."""
    with cloud_of(parked(size)) as cloud:
        swept = ours.sweep_alone(cloud, size, rate)
        return swept.wall, swept.cpu, float(cloud.count(service="ec2"))


def run(quick: bool) -> list[Row]:
    sizes = [1_000, 3_000, 10_000] if quick else [1_000, 3_000, 10_000, 30_000, 100_000]
    walls: list[float] = []
    cpus: list[float] = []
    calls: list[float] = []
    for size in sizes:
        times = 1 if quick else max(3, min(9, 30_000 // size))
        print(f"      {size:,} workers", file=sys.stderr, flush=True)
        found = [once(size) for _ in range(times)]
        for column, costs in zip(zip(*found, strict=True), (walls, cpus, calls), strict=True):
            # A neighbour on the machine can make one slower, never faster.
            costs.append(min(column))
    print(f"      {sizes[-1]:,} workers at AWS's default rates", file=sys.stderr, flush=True)
    held_back, *_ = once(sizes[-1], rate=1.0)
    rows = []
    for what, unit, costs in (("time", "s", walls), ("processor time", "s", cpus), ("EC2 calls", "calls", calls)):
        slope = exponent(sizes, costs)
        last = exponent(sizes[-2:], costs[-2:])
        told = ", ".join(f"{size:,}: {cost:.3g} {unit}" for size, cost in zip(sizes, costs, strict=True))
        limited = f"; {held_back:.3g} s for {sizes[-1]:,} at AWS's default rates" if what == "time" else ""
        rows.append(
            Row(
                f"growth of a sweep's {what}, {sizes[0]:,} … {sizes[-1]:,} workers",
                "exponent",
                slope,
                1.0,
                "linear",
                None,
                "≤ 1.05",
                slope <= 1.05,
                f"{told}; exponent of the last step {last:.2f}{limited}",
            )
        )
    return rows


BENCH = Bench("growth", "how the cost of a sweep grows with the fleet", run)
