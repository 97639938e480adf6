"""Rows measured in Rust: decisions, the controller, the watch, the fake etcd and fail-over."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import Any

import plain_python
from decide import costs
from fleet import NOW, fleet
from report import Bench, Row, Sample, better, figure
from rust_side import bench, measure


def lifecycle(quick: bool) -> list[Row]:
    """Decides for the same fleet from the same JSON in Rust and in Python; the decisions must agree."""
    size, rounds = (2_000, 5) if quick else (10_000, 15)
    records, states = fleet(size)
    records = json.loads(json.dumps(records))
    given = {"now": NOW.isoformat(), "records": records, "states": states}
    [found] = bench("decide", quick=quick, given=given)
    workers = [plain_python.Worker.from_record(record) for record in records]
    plain = [plain_python.decide_typed(worker, state, NOW) for worker, state in zip(workers, states, strict=True)]
    for mine, theirs in zip(found["decisions"], plain, strict=True):
        same = mine == [theirs.outcome, theirs.target.value, theirs.reason]
        assert same, f"the decisions differ: {mine} and {theirs}"
    typed, dicts = list(zip(workers, states, strict=True)), list(zip(records, states, strict=True))
    peers = costs(
        [
            lambda: [plain_python.decide_typed(worker, state, NOW) for worker, state in typed],
            lambda: [plain_python.decide(record, state, NOW) for record, state in dicts],
        ],
        size,
        rounds,
    )
    return [
        better(
            f"`decide` in Rust, a mixed fleet of {size:,}, per worker, next to Python {what}",
            "ns",
            found["processor_ns"],
            [microseconds * 1000 for microseconds in turns],
            f"the same decisions in plain Python, from {what}",
            at_least=10,
        )
        for what, turns in zip(("objects", "dicts"), peers, strict=True)
    ]


def controller(quick: bool) -> list[Row]:
    by_size: dict[int, dict[str, dict[str, Any]]] = {}
    for line in bench("controller", quick=quick):
        by_size.setdefault(line["size"], {})[line["who"]] = line
    rows = []
    for size, found in by_size.items():
        rates = {who: [1e9 / turn for turn in line["processor_ns"]] for who, line in found.items()}
        medians = {who: statistics.median(turns) for who, turns in rates.items()}
        peer = max("kube, limited", "kube, unlimited", key=lambda who: medians[who])
        rows.append(
            better(
                f"controller, no-op reconciles per second of one core, {size:,} resources",
                "/s",
                rates["listed"],
                rates[peer],
                "kube-runtime's applier",
                at_least=2,
                note=(
                    f"{medians['changed']:,.0f}/s ({medians['changed'] / medians[peer]:.1f} times) when each resource "
                    f"is reported as changed and fetched. kube-runtime: {medians['kube, limited']:,.0f}/s with ten "
                    f"concurrent reconciles as in LCM, {medians['kube, unlimited']:,.0f}/s without a limit; the "
                    "faster one counts"
                ),
            )
        )
    return rows


def memory(quick: bool) -> list[Row]:
    size = 100_000

    def take(controller: str, timers: str) -> dict[str, Any]:
        [found] = measure("lcm-bench-memory", controller, "--size", str(size), "--timers", timers)
        return found

    ours, theirs = take("lcm", "set"), take("kube", "set")
    note = (
        "every resource has a timer of an hour; peak of the process while listing: "
        f"{figure(ours['peak'])} and {figure(theirs['peak'])} bytes. kube-runtime caches the objects, LCM fetches a "
        "record when it reconciles it"
    )
    if not quick:
        our_rest, their_rest = take("lcm", "none"), take("kube", "none")
        note = f"without timers {figure(our_rest['bytes'])} and {figure(their_rest['bytes'])} bytes; {note}"
    return [
        Row(
            f"memory per tracked resource, {size:,} of them",
            "bytes",
            Sample.exact(ours["bytes"]),
            Sample.exact(theirs["bytes"]),
            "kube-runtime's reflector and applier",
            theirs["bytes"] / ours["bytes"],
            "≤ 1 KB, and less",
            ours["bytes"] <= 1024 and ours["bytes"] < theirs["bytes"],
            note,
        )
    ]


def recording(quick: bool) -> list[Row]:
    found = {line["who"]: line for line in bench("recording", quick=quick)}
    off = found["off"]["processor_ns"]
    rows = []
    for who, what in (("changes", "changes only"), ("sample", "and one in a hundred of the others")):
        ours = found[who]["processor_ns"]
        more = statistics.median(ours) / statistics.median(off) - 1
        rows.append(
            Row(
                f"no-op reconcile in memory while recording {what}", "ns", Sample.from_turns(ours),
                Sample.from_turns(off), "the same without a recording", 1 / (1 + more), "≤ 5 % more", more <= 0.05,
                f"{more * 100:.1f} % more processor time, all threads together",
            )
        )  # fmt: skip
    rates = [1e9 / turn for turn in found["replay"]["processor_ns"]]
    replayed = Sample.from_turns(rates)
    rows.append(
        Row(
            "decisions replayed per second of one core, from the file of a day", "/s", replayed, None, "none", None,
            "≥ 500,000", replayed.median >= 500_000,
            f"{found['replay']['size']:,} recorded reconciles of 500 workers: changes, one in a hundred of the others",
        )
    )  # fmt: skip
    return rows


def watch(quick: bool) -> list[Row]:
    found = [one for _ in range(1 if quick else 5) for one in bench("watch", quick=quick)]
    ours, etcd = ([one[who]["p99"] for one in found] for who in ("ours", "etcd"))
    more = Sample.from_turns([mine - its for mine, its in zip(ours, etcd, strict=True)])
    writes = sum(one["writes"] for one in found)
    return [
        Row(
            f"watch event to reconcile start at p99, {found[0]['size']:,} workers",
            "ms",
            Sample.from_turns(ours),
            Sample.from_turns(etcd),
            "the etcd client's own watch, same writes",
            None,
            "≤ 2 ms more",
            more.median <= 2,
            f"{more.median:.2f} ms more at p99 ({more.low:.2f} … {more.high:.2f}) over {writes:,} writes",
        )
    ]


CALLS = {
    "put": "put",
    "get": "range of a key",
    "list": "range of 100 keys",
    "create": "txn that creates a key",
    "event": "put to the last watcher's event",
}


def etcd(quick: bool) -> list[Row]:
    """One row per kind of call, at the number of clients with the lowest ratio."""
    found = bench("etcd", quick=quick)
    return [etcd_row(what, [line for line in found if line["call"] == call]) for call, what in CALLS.items()]


def etcd_row(what: str, lines: Iterable[dict[str, Any]]) -> Row:
    by_clients: dict[int, dict[str, dict[str, Any]]] = {}
    for line in lines:
        by_clients.setdefault(line["clients"], {})[line["server"]] = line

    def median(line: dict[str, Any], name: str) -> float:
        return float(statistics.median(line[name]))

    ratios = {n: median(both["fake"], "rate") / median(both["real"], "rate") for n, both in by_clients.items()}
    least = min(ratios, key=lambda clients: ratios[clients])

    def each(name: str) -> str:
        pairs = [(median(both["fake"], name), median(both["real"], name)) for both in by_clients.values()]
        return ", ".join(f"{fake:.3g} and {real:.3g}" for fake, real in pairs)

    numbers = "/".join(str(clients) for clients in by_clients)
    return better(
        f"fake etcd, {what}, {least} client{'s' if least > 1 else ''}",
        "/s",
        by_clients[least]["fake"]["rate"],
        by_clients[least]["real"]["rate"],
        "real etcd on a memory disk",
        at_least=1,
        note=(
            f"ratio with {numbers} clients: {', '.join(f'{ratio:.2f}' for ratio in ratios.values())}; "
            f"p99 {each('p99')} ms; processor time of the server per call {each('processor_us')} µs"
        ),
    )


def failover(quick: bool) -> list[Row]:
    rows = []
    for found in bench("failover", quick=quick):
        ttl, name = found["ttl"], {"fake": "the fake etcd", "real": "a real etcd"}[found["server"]]
        for event, goal, limit in (("crash", "≤ TTL + 1 s", ttl + 1), ("stop", "≤ 0.2 s", 0.2)):
            took = Sample.from_turns(found[f"after_{event}"])
            after = "a crash" if event == "crash" else "a clean stop"
            rows.append(
                Row(
                    f"fail-over after {after}, on {name}", "s", took, Sample.exact(ttl), "the TTL of the lease", None,
                    goal, took.high <= limit, f"the slowest of {took.turns} counts",
                )
            )  # fmt: skip
    return rows


BENCHES = [
    Bench("lifecycle", "decisions in Rust, next to plain Python", lifecycle),
    Bench("controller", "no-op reconciles, next to kube-runtime", controller),
    Bench("recording", "cost of a recording of a no-op sweep, and of a replay", recording),
    Bench("memory", "memory per tracked resource, next to kube-runtime", memory),
    Bench("watch", "change to reconcile, next to the etcd client's watch", watch),
    Bench("etcd", "the fake etcd, next to a real one", etcd),
    Bench("failover", "time to the next leader", failover),
]
