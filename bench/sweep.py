"""The start-up sweep of a parked fleet, over real sockets to a fake cloud in a process of its own."""

from __future__ import annotations

import statistics
import sys
from math import ceil

import ours
from processes import peer
from report import Bench, Row, better
from worlds import DRIFT_IN, cloud_of, parked

LIBRARIES = ("boto3", "aiobotocore")
CONCURRENCIES = (5, 10)
# EC2 describes so many in one call.
AT_ONCE = 1000


def of_ours(size: int, times: int) -> tuple[float, int, dict[str, str]]:
    """Seconds for a sweep of so many, EC2 calls for it, and what the records then say."""
    walls = []
    for _ in range(times):
        with cloud_of(parked(size)) as cloud:
            took = ours.sweep(cloud, size)
            walls.append(took.wall)
            calls, found = cloud.count(service="ec2"), cloud.statuses()
            looked_at = took.looked_at
        assert looked_at == size, f"{looked_at} of {size} were looked at"
    return statistics.median(walls), calls, found


def of_theirs(size: int, library: str, concurrency: int, at_most: int | None) -> tuple[float, int, dict[str, str]]:
    """The same, of the controller in Python; of a sample alone the time is reckoned up to the whole."""
    with cloud_of(parked(size)) as cloud:
        sample: list[str | int] = ["--at-most", at_most] if at_most else []
        told = peer("seeds_controller.py", "sweep", library, concurrency, *sample, env=cloud.env)
        share = size / told["looked_at"]
        return told["wall"] * share, round(cloud.count(service="ec2") * share), cloud.statuses()


def measure(size: int, times: int, at_most: int | None) -> list[Row]:
    wall, calls, records = of_ours(size, times)
    rows = []
    for library in LIBRARIES:
        walls = {}
        for concurrency in CONCURRENCIES:
            print(f"      {size:,} workers, {library}, {concurrency} at a time", file=sys.stderr, flush=True)
            walls[concurrency], their_calls, their_records = of_theirs(size, library, concurrency, at_most)
            same = at_most is not None or their_records == records
            assert same, f"the two do not leave the same records: {difference(records, their_records)}"
        best = min(walls, key=lambda concurrency: walls[concurrency])
        told = ", ".join(f"{concurrency} at a time {seconds:.3g} s" for concurrency, seconds in walls.items())
        sampled = f"; reckoned up from {at_most:,} of them" if at_most else ""
        what = f"start-up sweep of {size:,} workers, next to {library}"
        who = f"asyncio, {library}, {best} at a time"
        rows.append(better(what, "s", wall, walls[best], who, at_least=20, note=f"{told}{sampled}"))
    need = ceil(size / AT_ONCE)
    rows.append(
        Row(
            f"EC2 calls for a sweep of {size:,}",
            "calls",
            calls,
            their_calls,
            "asyncio, one describe for each",
            their_calls / calls,
            f"≤ {need}",
            calls <= need,
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
