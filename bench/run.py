"""Benchmarks LCM against the alternatives: `make bench`, or a selection with `make bench ARGS="sweep"`.

A benchmark is a module beside this one with a ``BENCH``: a name, one line of description, and a function that returns
rows (see ``report.py``). It is registered in ``BENCHES``. Progress goes to stderr. Python alternatives are pinned in
``requirements.txt``; others are programs that the benchmark starts.
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
import simulate
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
    simulate.BENCH,
]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; an unknown benchmark is an error that lists the known ones."""
    names = [bench.name for bench in BENCHES]
    listed = "\n".join(f"  {bench.name:12} {bench.about}" for bench in BENCHES)
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benches", nargs="*", metavar="BENCH", help="benchmarks to run; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer turns and smaller fleets; writes no files")
    options = parser.parse_args(argv)
    unknown = [name for name in options.benches if name not in names]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; accepted: {', '.join(names)}")
    return options


def measure(benches: Sequence[Bench], *, quick: bool) -> tuple[list[Row], list[str]]:
    """Runs the benchmarks; returns their rows and the names of those that failed. A failure does not stop the run."""
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
            missed = sum(not row.met for row in found)
            summary = f"{len(found)} rows, {missed} missed" if missed else f"{len(found)} rows"
            print(f"      {summary}; took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rows, failed


def main() -> int:
    options = arguments()
    selected = [bench for bench in BENCHES if not options.benches or bench.name in options.benches]
    rows, failed = measure(selected, quick=options.quick)
    print(table(rows))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    if not options.benches and not options.quick:
        write(rows, facts())
        print("written: bench/results.json, docs/benchmarks.md, docs/benchmarks.svg", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
