"""What a decision costs from Python, next to the same decisions in plain Python."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import lcm
import plain_python
from fleet import NOW, fleet
from report import Bench, Row

TURNS = 5


def costs(works: Sequence[Callable[[], object]], per: int, rounds: int) -> list[float]:
    """Microseconds of processor time for each item, in the best of several rounds.

    They take turns, of several rounds each: what a neighbour on the machine slows down, it slows down for all of them,
    and each finds in the caches what its own round before has left there.
    """
    best = [float("inf")] * len(works)
    for _ in range(TURNS):
        for place, work in enumerate(works):
            for _ in range(rounds // TURNS):
                began = time.process_time()
                work()
                best[place] = min(best[place], time.process_time() - began)
    return [seconds / per * 1e6 for seconds in best]


PEER = "the same decisions in plain Python, from the same dicts"


def run(quick: bool) -> list[Row]:
    if quick:
        return rows(2_000, 5)
    waiting = "the records are more than the caches hold, so that both wait for memory"
    return rows(1_000, 400) + rows(10_000, 60, waiting)


def rows(size: int, rounds: int, note: str = "") -> list[Row]:
    records, states = fleet(size)
    # As they come from the control plane: keys are shared within an answer, and are no literals of this program.
    records = json.loads(json.dumps(records))
    pairs = list(zip(records, states, strict=True))

    ours = lcm.decide_many(records, states, now=NOW)
    for (record, state), mine in zip(pairs, ours, strict=True):
        plain = plain_python.decide(record, state, NOW)
        found = (mine.outcome.value, mine.target.value, mine.reason.code.value)
        same = found == (plain.outcome, plain.target.value, plain.reason)
        assert same, f"the two do not decide the same: {mine} and {plain}"

    seen = {state: lcm.Observation(ec2=state) for state in states}
    by_hand, at_once, one_by_one = costs(
        [
            lambda: [plain_python.decide(record, state, NOW) for record, state in pairs],
            lambda: lcm.decide_many(records, states, now=NOW),
            lambda: [lcm.decide(record, seen[state], now=NOW) for record, state in pairs],
        ],
        size,
        rounds,
    )
    return [
        Row(
            f"`lcm.decide_many`, a mixed fleet of {size:,}, per worker",
            "µs",
            at_once,
            by_hand,
            PEER,
            by_hand / at_once,
            "≥ 5",
            by_hand / at_once >= 5,
            note,
        ),
        Row(
            f"`lcm.decide`, per call, over {size:,} workers",
            "µs",
            one_by_one,
            by_hand,
            PEER,
            by_hand / one_by_one,
            "≤ 10 µs",
            one_by_one <= 10,
        ),
    ]


BENCH = Bench("decide", "decisions from Python, one by one and for a fleet", run)
