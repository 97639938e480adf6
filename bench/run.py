"""Measures LCM next to what one would use instead: `make bench`, or some of it with `make bench ARGS="decide"`."""

from __future__ import annotations

import argparse
import sys
import time

import decide
import rust_rows
from report import Bench, Row, table, write

BENCHES: list[Bench] = [decide.BENCH, *rust_rows.BENCHES]


def main() -> int:
    names = [bench.name for bench in BENCHES]
    listed = "\n".join(f"  {bench.name:12} {bench.about}" for bench in BENCHES)
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"benches:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benches", nargs="*", metavar="BENCH", help="which ones; all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="less of each, for a first impression")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.benches if name not in names]
    if unknown:
        parser.error(f"there is no bench {', '.join(unknown)}; accepted: {', '.join(names)}")
    wanted = [bench for bench in BENCHES if not arguments.benches or bench.name in arguments.benches]
    rows: list[Row] = []
    for place, bench in enumerate(wanted, 1):
        print(f"[{place}/{len(wanted)}] {bench.about} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        rows += bench.run(arguments.quick)
        print(f"      took {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(table(rows))
    if not arguments.benches:
        write(rows, quick=arguments.quick)
    short = [row.what for row in rows if not row.met]
    if short:
        print(f"short of the goal: {', '.join(short)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
