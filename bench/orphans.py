"""One garbage collection of 10,000 records of which 1,000 have lost their instance."""

from __future__ import annotations

import sys
from typing import Any

import ours
from processes import FakeCloud, peer
from report import Bench, Row, Sample, better
from sweep import CONCURRENCY, GOALS
from worlds import cloud_of, orphaned

AT_LEAST = 8
NOTE = (
    "both sides page through all instances and records; LCM saves one DescribeInstances per suspect and writes eight "
    "orphans concurrently"
)


def calls_for(cloud: FakeCloud, orphans: int) -> int:
    """The number of EC2 calls; fails unless exactly the orphans were marked."""
    marked = sum(status == "terminated" for status in cloud.statuses().values())
    assert marked == orphans, f"{marked} records were marked, expected {orphans}"
    return cloud.count(service="ec2")


def run(quick: bool) -> list[Row]:
    size, orphans, turns = (2_000, 200, 1) if quick else (10_000, 1_000, 5)
    mine: list[ours.Took] = []
    theirs: dict[str, list[dict[str, Any]]] = {library: [] for library in GOALS}
    calls, their_calls = 0, 0
    for turn in range(1, turns + 1):
        print(f"      turn {turn} of {turns}", file=sys.stderr, flush=True)
        with cloud_of(orphaned(size, orphans)) as cloud:
            mine.append(ours.collect(cloud))
            calls = calls_for(cloud, orphans)
        for library, reports in theirs.items():
            with cloud_of(orphaned(size, orphans)) as cloud:
                reports.append(peer("seeds_controller.py", "collect", library, CONCURRENCY, env=cloud.env))
                their_calls = calls_for(cloud, orphans)
    what = f"garbage collection, {size:,} records, {orphans:,} orphans"
    rows = []
    for library, reports in theirs.items():
        cpu = Sample.from_turns([one.cpu for one in mine]).median
        its_cpu = Sample.from_turns([report["cpu"] for report in reports]).median
        rows.append(
            better(
                f"{what}, next to {library}",
                "s",
                [one.wall for one in mine],
                [report["wall"] for report in reports],
                f"asyncio, {library}, {CONCURRENCY} concurrent calls",
                at_least=AT_LEAST,
                note=f"processor time {cpu:.3g} s and {its_cpu:.3g} s, ratio {its_cpu / cpu:.0f}; {NOTE}",
            )
        )
    rows.append(
        Row(
            f"EC2 calls for {what}",
            "calls",
            Sample.exact(calls),
            Sample.exact(their_calls),
            "asyncio, one DescribeInstances per suspect",
            their_calls / calls,
            "≥ 20",
            their_calls / calls >= 20,
            "both sides scan a thousand instances per call and list the records afterwards",
        )
    )
    return rows


BENCH = Bench("orphans", "garbage collection, next to a Python controller", run)
