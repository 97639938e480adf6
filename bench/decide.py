"""What a decision costs from Python, next to the same decisions in plain Python."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import lcm
import plain_python
from fleet import NOW, fleet

SIZE = 10_000
ROUNDS = 15


def cost(work: Callable[[], object], per: int) -> float:
    """Seconds of processor time for each item, in the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best / per


def main() -> None:
    records, states = fleet(SIZE)
    # As they come from the control plane: keys shared within an answer, not literals of this program.
    records = json.loads(json.dumps(records))
    ours = lcm.decide_many(records, states, now=NOW)
    theirs = [plain_python.decide(record, state, NOW) for record, state in zip(records, states, strict=True)]
    for mine, plain in zip(ours, theirs, strict=True):
        assert (mine.kind, mine.target, mine.reason.code) == (plain.outcome, plain.target, plain.reason), (mine, plain)

    seen = [lcm.Observation(ec2=state) for state in states]
    rows = {
        "plain Python": cost(
            lambda: [plain_python.decide(record, state, NOW) for record, state in zip(records, states, strict=True)],
            SIZE,
        ),
        "lcm.decide_many": cost(lambda: lcm.decide_many(records, states, now=NOW), SIZE),
        "lcm.decide_many, observations": cost(lambda: lcm.decide_many(records, seen, now=NOW), SIZE),
        "lcm.decide": cost(lambda: [lcm.decide(r, o, now=NOW) for r, o in zip(records, seen, strict=True)], SIZE),
    }
    plain = rows["plain Python"]
    for name, seconds in rows.items():
        print(f"{name:32} {seconds * 1e6:8.3f} µs  {plain / seconds:6.2f} x")


if __name__ == "__main__":
    main()
