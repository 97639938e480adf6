"""The start-up sweep of a parked fleet, over real sockets to a fake cloud in a separate process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import ceil

import ours
from processes import peer
from report import Bench, Row, Sample, better
from worlds import DRIFT_IN, cloud_of, parked

GOALS = {"boto3": 20, "aiobotocore": 15}
# The faster of the two settings (5 and 10) of the Python controller on every measured machine.
CONCURRENCY = 10
# Instances that one DescribeInstances call returns.
PAGE = 1000


@dataclass(frozen=True)
class Sweep:
    """Cost of one sweep, and the records it left behind."""

    wall: float
    """Wall time in seconds."""
    cpu: float
    """Processor time of the controller process in seconds."""
    calls: int
    """EC2 calls."""
    records: dict[str, str]
    """Status of each record afterwards, by worker id."""


def sweep_ours(size: int) -> Sweep:
    """One sweep by LCM."""
    with cloud_of(parked(size)) as cloud:
        took = ours.sweep(cloud, size)
        assert took.looked_at == size, f"{took.looked_at} of {size} workers were reconciled"
        return Sweep(took.wall, took.cpu, cloud.count(service="ec2"), cloud.statuses())


def sweep_theirs(size: int, library: str, at_most: int | None) -> Sweep:
    """One sweep by the Python controller; a sampled sweep is extrapolated to the whole fleet."""
    with cloud_of(parked(size)) as cloud:
        sample: list[str | int] = ["--at-most", at_most] if at_most else []
        report = peer("seeds_controller.py", "sweep", library, CONCURRENCY, *sample, env=cloud.env)
        share = size / report["looked_at"]
        calls = round(cloud.count(service="ec2") * share)
        return Sweep(report["wall"] * share, report["cpu"] * share, calls, cloud.statuses())


def measure(size: int, turns: int, at_most: int | None) -> list[Row]:
    mine: list[Sweep] = []
    theirs: dict[str, list[Sweep]] = {library: [] for library in GOALS}
    # Interleaved, so that a slow phase of the machine affects all three.
    for turn in range(1, turns + 1):
        print(f"      {size:,} workers, turn {turn} of {turns}", file=sys.stderr, flush=True)
        mine.append(sweep_ours(size))
        for library, sweeps in theirs.items():
            sweeps.append(its := sweep_theirs(size, library, at_most))
            same = at_most is not None or its.records == mine[-1].records
            assert same, f"the records differ: {difference(mine[-1].records, its.records)}"
    rows = []
    for library, sweeps in theirs.items():
        my_cpu, its_cpu = (Sample.from_turns([one.cpu for one in runs]).median for runs in (mine, sweeps))
        sampled = f"; extrapolated from {at_most:,} of them" if at_most else ""
        rows.append(
            better(
                f"start-up sweep of {size:,} workers, next to {library}",
                "s",
                [one.wall for one in mine],
                [one.wall for one in sweeps],
                f"asyncio, {library}, {CONCURRENCY} concurrent calls",
                at_least=GOALS[library],
                note=f"processor time {my_cpu:.3g} s and {its_cpu:.3g} s, ratio {its_cpu / my_cpu:.0f}{sampled}",
            )
        )
    need, calls = ceil(size / PAGE), mine[-1].calls
    their_calls = theirs["boto3"][-1].calls
    rows.append(
        Row(
            f"EC2 calls for a sweep of {size:,}",
            "calls",
            Sample.exact(calls),
            Sample.exact(their_calls),
            "asyncio, one DescribeInstances per worker",
            their_calls / calls,
            f"≤ {need}",
            calls <= need,
            f"a parked fleet in which one record of {DRIFT_IN} is out of date and gets written",
        )
    )
    return rows


def difference(ours: dict[str, str], theirs: dict[str, str]) -> list[tuple[str, str, str]]:
    """The first workers whose final status differs."""
    return [(id, status, theirs[id]) for id, status in ours.items() if theirs[id] != status][:5]


def run(quick: bool) -> list[Row]:
    if quick:
        return measure(1_000, 2, 300)
    return measure(1_000, 7, None) + measure(10_000, 5, None)


BENCH = Bench("sweep", "start-up sweep, next to a Python controller on boto3 and aiobotocore", run)
