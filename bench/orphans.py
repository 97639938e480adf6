"""A pass of garbage collection: ten thousand records, of which a thousand have lost their instance."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import ours
from processes import FakeCloud, peer
from report import Bench, Row, better
from sweep import LIBRARIES
from worlds import cloud_of, orphaned

CONCURRENCY = 10
WHY = (
    "both scan alike, so what is saved is one describe for each suspect; left of ours are the reading of all instances "
    "and records, and a write for each orphan, eight at a time"
)


def check(cloud: FakeCloud, orphans: int) -> int:
    """How many EC2 calls it took to mark exactly the orphans."""
    marked = sum(status == "terminated" for status in cloud.statuses().values())
    assert marked == orphans, f"{marked} records were marked, not {orphans}"
    return cloud.count(service="ec2")


def run(quick: bool) -> list[Row]:
    size, orphans, times = (2_000, 200, 1) if quick else (10_000, 1_000, 4)
    took: list[ours.Took] = []
    theirs: dict[str, dict[str, Any]] = {}
    calls, their_calls = 0, 0
    # Before, between and after the others: the machine is not equally fast all the time.
    for library in (None, *LIBRARIES):
        if library is not None:
            print(f"      {library}", file=sys.stderr, flush=True)
            with cloud_of(orphaned(size, orphans)) as cloud:
                theirs[library] = peer("seeds_controller.py", "collect", library, CONCURRENCY, env=cloud.env)
                their_calls = check(cloud, orphans)
        for _ in range(times):
            with cloud_of(orphaned(size, orphans)) as cloud:
                took.append(ours.collect(cloud))
                calls = check(cloud, orphans)
    wall, cpu = statistics.median(one.wall for one in took), statistics.median(one.cpu for one in took)
    rows = []
    what = f"garbage collection, {size:,} records, {orphans:,} orphans"
    for library, told in theirs.items():
        who = f"asyncio, {library}, {CONCURRENCY} at a time"
        note = f"processor time {cpu:.3g} s and {told['cpu']:.3g} s, {told['cpu'] / cpu:.0f} times; {WHY}"
        rows.append(better(f"{what}, next to {library}", "s", wall, told["wall"], who, at_least=20, note=note))
    rows.append(
        Row(
            f"EC2 calls for {what}",
            "calls",
            calls,
            their_calls,
            "asyncio, one describe for each suspect",
            their_calls / calls,
            "≥ 20",
            their_calls / calls >= 20,
            "both scan a thousand instances in a call, and list the records after that",
        )
    )
    return rows


BENCH = Bench("orphans", "garbage collection, next to a controller in Python", run)
