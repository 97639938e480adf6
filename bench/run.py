"""Measures LCM next to what one would use instead: `make bench`, or some of it with `make bench ARGS="sweep"`.

A bench is a module beside this one with a ``BENCH``: its name, a line about it, and a function that measures and gives
rows (see ``report.py``). It is added by its line in ``BENCHES``. What it prints to stderr shows as progress; what it is
measured next to goes into ``requirements.txt`` here, or is a program of its own that the function starts.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

import cold_start
import decide
import fake_ec2
import growth
import orphans
import rust_rows
import sweep
from machine import facts
from report import Bench, Row, table, write

BENCHES: list[Bench] = [
    decide.BENCH,
    *rust_rows.BENCHES,
    sweep.BENCH,
    orphans.BENCH,
    growth.BENCH,
    cold_start.BENCH,
    fake_ec2.BENCH,
]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What is asked for."""
    names = [bench.name for bench in BENCHES]
    listed = "\n".join(f"  {bench.name:12} {bench.about}" for bench in BENCHES)
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog=f"benches:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benches", nargs="*", metavar="BENCH", help="which ones; all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="less of each, for a first impression; nothing is written")
    asked = parser.parse_args(words)
    unknown = [name for name in asked.benches if name not in names]
    if unknown:
        parser.error(f"there is no bench {', '.join(unknown)}; accepted: {', '.join(names)}")
    return asked


def measure(benches: Sequence[Bench], *, quick: bool) -> tuple[list[Row], list[str]]:
    """The rows of all of them, and the names of those that failed: one does not stop the others."""
    rows: list[Row] = []
    failed = []
    for place, bench in enumerate(benches, 1):
        print(f"[{place}/{len(benches)}] {bench.name}: {bench.about} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            found = bench.run(quick)
        except Exception:
            traceback.print_exc()
            failed.append(bench.name)
        else:
            rows += found
            short = sum(not row.met for row in found)
            took = f"{len(found)} rows, {short} short of the goal" if short else f"{len(found)} rows"
            print(f"      {took}; took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rows, failed


def main() -> int:
    asked = arguments()
    wanted = [bench for bench in BENCHES if not asked.benches or bench.name in asked.benches]
    rows, failed = measure(wanted, quick=asked.quick)
    print(table(rows))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    if not asked.benches and not asked.quick:
        write(rows, facts())
        print("written: bench/results.json, .md and .svg, and their place in the README", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
