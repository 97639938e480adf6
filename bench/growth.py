"""Growth of a sweep's cost with the size of the fleet: twice as many workers should cost twice as much.

AWS's default rate limits admit a burst of fifty of the hundred calls that 100,000 workers need and delay the rest, so
growth is measured on an account without such limits; the row's note reports the largest fleet at the default limits.
Every sweep runs in a fresh process: in a reused one, small fleets would find memory already allocated.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from math import log

import ours
from report import Bench, Row, Sample
from worlds import cloud_of, parked


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The slope of cost over size on logarithmic axes, by least squares: 1 is linear, 2 is quadratic."""
    return statistics.linear_regression([log(size) for size in sizes], [log(cost) for cost in costs]).slope


# A multiple of AWS's default request rates that never delays a call.
UNLIMITED = 1000.0


def sweep_once(size: int, rate: float = UNLIMITED) -> tuple[float, float, float]:
    """Wall time in seconds, processor time in seconds and EC2 calls of one sweep."""
    with cloud_of(parked(size)) as cloud:
        swept = ours.sweep_alone(cloud, size, rate)
        return swept.wall, swept.cpu, float(cloud.count(service="ec2"))


def run(quick: bool) -> list[Row]:
    sizes, turns = ([1_000, 3_000, 10_000], 1) if quick else ([1_000, 3_000, 10_000, 30_000, 100_000], 5)
    # One list of costs per size and turn, for each of the three quantities.
    costs: tuple[list[list[float]], ...] = ([], [], [])
    for turn in range(1, turns + 1):
        print(f"      turn {turn} of {turns}", file=sys.stderr, flush=True)
        swept = [sweep_once(size) for size in sizes]
        for quantity, column in zip(costs, zip(*swept, strict=True), strict=True):
            quantity.append(list(column))
    print(f"      {sizes[-1]:,} workers at AWS's default rates", file=sys.stderr, flush=True)
    limited, *_ = sweep_once(sizes[-1], rate=1.0)
    rows = []
    for name, unit, by_turn in zip(("time", "processor time", "EC2 calls"), ("s", "s", "calls"), costs, strict=True):
        slope = Sample.from_turns([exponent(sizes, turn) for turn in by_turn])
        medians = [statistics.median(turn[place] for turn in by_turn) for place in range(len(sizes))]
        listed = ", ".join(f"{size:,}: {cost:.3g} {unit}" for size, cost in zip(sizes, medians, strict=True))
        at_default = f"; {limited:.3g} s for {sizes[-1]:,} at AWS's default rates" if name == "time" else ""
        rows.append(
            Row(
                f"growth of a sweep's {name}, {sizes[0]:,} … {sizes[-1]:,} workers",
                "exponent",
                slope,
                Sample.exact(1.0),
                "linear",
                None,
                "≤ 1.05",
                slope.median <= 1.05,
                f"medians {listed}{at_default}",
            )
        )
    return rows


BENCH = Bench("growth", "growth of a sweep's cost with the fleet", run)
