"""The start-up sweep of a parked fleet, over real sockets to a fake cloud in a process of its own."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, replace
from math import ceil

import ours
from processes import peer
from report import Bench, Row, better
from worlds import DRIFT_IN, cloud_of, parked

LIBRARIES = ("boto3", "aiobotocore")
CONCURRENCIES = (5, 10)
# EC2 describes so many in one call.
AT_ONCE = 1000


@dataclass(frozen=True)
class Swept:
    """A sweep, and what came of it."""

    wall: float
    """Seconds that it took."""
    cpu: float
    """Seconds of processor time of the controller."""
    calls: int
    """EC2 calls."""
    records: dict[str, str]
    """What the records then say."""


def of_ours(size: int, times: int) -> Swept:
    """A sweep by LCM: the median of several."""
    all_of_them = [swept_once(size) for _ in range(times)]
    wall = statistics.median(one.wall for one in all_of_them)
    return replace(all_of_them[-1], wall=wall, cpu=statistics.median(one.cpu for one in all_of_them))


def swept_once(size: int) -> Swept:
    with cloud_of(parked(size)) as cloud:
        took = ours.sweep(cloud, size)
        assert took.looked_at == size, f"{took.looked_at} of {size} were looked at"
        return Swept(took.wall, took.cpu, cloud.count(service="ec2"), cloud.statuses())


def of_theirs(size: int, library: str, concurrency: int, at_most: int | None) -> Swept:
    """The same, of the controller in Python; of a sample alone the time is reckoned up to the whole."""
    with cloud_of(parked(size)) as cloud:
        sample: list[str | int] = ["--at-most", at_most] if at_most else []
        told = peer("seeds_controller.py", "sweep", library, concurrency, *sample, env=cloud.env)
        share = size / told["looked_at"]
        calls = round(cloud.count(service="ec2") * share)
        return Swept(told["wall"] * share, told["cpu"] * share, calls, cloud.statuses())


def measure(size: int, times: int, at_most: int | None) -> list[Row]:
    mine = of_ours(size, times)
    rows, their_calls = [], 0
    for library in LIBRARIES:
        swept = {}
        for concurrency in CONCURRENCIES:
            print(f"      {size:,} workers, {library}, {concurrency} at a time", file=sys.stderr, flush=True)
            swept[concurrency] = its = of_theirs(size, library, concurrency, at_most)
            same = at_most is not None or its.records == mine.records
            assert same, f"the two do not leave the same records: {difference(mine.records, its.records)}"
            their_calls = its.calls
        best = min(swept, key=lambda concurrency: swept[concurrency].wall)
        told = ", ".join(f"{concurrency} at a time {its.wall:.3g} s" for concurrency, its in swept.items())
        cpu = f"processor time {mine.cpu:.3g} s and {swept[best].cpu:.3g} s, {swept[best].cpu / mine.cpu:.0f} times"
        sampled = f"; reckoned up from {at_most:,} of them" if at_most else ""
        what = f"start-up sweep of {size:,} workers, next to {library}"
        who = f"asyncio, {library}, {best} at a time"
        rows.append(better(what, "s", mine.wall, swept[best].wall, who, at_least=20, note=f"{told}; {cpu}{sampled}"))
    need = ceil(size / AT_ONCE)
    rows.append(
        Row(
            f"EC2 calls for a sweep of {size:,}",
            "calls",
            mine.calls,
            their_calls,
            "asyncio, one describe for each",
            their_calls / mine.calls,
            f"≤ {need}",
            mine.calls <= need,
            f"a parked fleet, of which one in {DRIFT_IN} is not as its record says and gets written",
        )
    )
    return rows


def difference(ours: dict[str, str], theirs: dict[str, str]) -> list[tuple[str, str, str]]:
    """Some of the workers that ended differently."""
    return [(id, status, theirs[id]) for id, status in ours.items() if theirs[id] != status][:5]


def run(quick: bool) -> list[Row]:
    if quick:
        return measure(1_000, 3, 300)
    return measure(1_000, 7, None) + measure(10_000, 3, None)


BENCH = Bench("sweep", "the start-up sweep, next to a controller in Python with boto3 and aiobotocore", run)
