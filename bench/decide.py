"""Cost of a decision from Python, next to the same decisions in plain Python."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import lcm
import plain_python
from fleet import NOW, fleet
from report import Bench, Row, better

TURNS = 5


def costs(works: Sequence[Callable[[], object]], per: int, rounds: int) -> list[list[float]]:
    """Microseconds of processor time per item and turn, for each work.

    Works take turns, so that a slow phase of the machine affects all of them. A turn is the best of its rounds: other
    processes can only make a round slower.
    """
    turns: list[list[float]] = [[] for _ in works]
    for _ in range(TURNS):
        for work, taken in zip(works, turns, strict=True):
            best = float("inf")
            for _ in range(max(1, rounds // TURNS)):
                began = time.process_time()
                work()
                best = min(best, time.process_time() - began)
            taken.append(best / per * 1e6)
    return turns


FROM_DICTS = "the same decisions in plain Python, from the same dicts"
TYPED = "the same decisions in plain Python, from parsed objects"


def run(quick: bool) -> list[Row]:
    if quick:
        return rows(2_000, 5)
    return rows(1_000, 400) + rows(10_000, 60, "the records exceed the processor caches, so both sides wait for memory")


def rows(size: int, rounds: int, note: str = "") -> list[Row]:
    records, states = fleet(size)
    # As parsed from a response: keys are shared within it, and are no literals of this program.
    records = json.loads(json.dumps(records))
    pairs = list(zip(records, states, strict=True))
    workers = [lcm.Worker.from_dict(record) for record in records]
    parsed = [plain_python.Worker.from_record(record) for record in records]
    compare(size, lcm.decide_many(records, states, now=NOW), pairs)
    compare(size, lcm.decide_many(workers, states, now=NOW), pairs)

    observed = {state: lcm.Observation(ec2=lcm.Ec2State(state)) for state in states}
    plain, typed, many_dicts, many_workers, one_by_one = costs(
        [
            lambda: [plain_python.decide(record, state, NOW) for record, state in pairs],
            lambda: [
                plain_python.decide_typed(worker, state, NOW) for worker, state in zip(parsed, states, strict=True)
            ],
            lambda: lcm.decide_many(records, states, now=NOW),
            lambda: lcm.decide_many(workers, states, now=NOW),
            lambda: [
                lcm.decide(worker, observed[state], now=NOW) for worker, state in zip(workers, states, strict=True)
            ],
        ],
        size,
        rounds,
    )
    many = f"a mixed fleet of {size:,}, per worker"
    one = f"`lcm.decide` on `lcm.Worker`, per call, over {size:,} workers"
    return [
        better(
            f"`lcm.decide_many` on `lcm.Worker`, {many}", "µs", many_workers, plain, FROM_DICTS, at_least=5, note=note
        ),
        better(f"`lcm.decide_many` on dicts, {many}", "µs", many_dicts, plain, FROM_DICTS, at_least=2, note=note),
        better(one, "µs", one_by_one, typed, TYPED, at_least=1),
    ]


def compare(size: int, ours: Sequence[lcm.Decision], pairs: Sequence[tuple[dict[str, object], str]]) -> None:
    """Fails unless both sides decide the same."""
    assert len(ours) == size
    for (record, state), mine in zip(pairs, ours, strict=True):
        plain = plain_python.decide(record, state, NOW)
        found = (mine.outcome.value, mine.to_status.value, mine.reason.code.value)
        same = found == (plain.outcome, plain.target.value, plain.reason)
        assert same, f"the decisions differ: {mine} and {plain}"


BENCH = Bench("decide", "decisions from Python, one by one and for a fleet", run)
