"""What is measured in Rust: decisions, the controller, the watch, the fake etcd and fail-over."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import plain_python
from decide import costs
from fleet import NOW, fleet
from report import Bench, Row, figure
from rust_side import bench, measure


def core(quick: bool) -> list[Row]:
    """Both sides decide about the same fleet, from the same JSON, and have to agree."""
    size, rounds = (2_000, 5) if quick else (10_000, 15)
    records, states = fleet(size)
    records = json.loads(json.dumps(records))
    given = {"now": NOW.isoformat(), "records": records, "states": states}
    [found] = bench("decide", quick=quick, given=given)
    workers = [plain_python.Worker.of(record) for record in records]
    plain = [plain_python.decide_typed(worker, state, NOW) for worker, state in zip(workers, states, strict=True)]
    for mine, theirs in zip(found["decisions"], plain, strict=True):
        same = mine == [theirs.outcome, theirs.target.value, theirs.reason]
        assert same, f"the two do not decide the same: {mine} and {theirs}"
    typed, dicts = list(zip(workers, states, strict=True)), list(zip(records, states, strict=True))
    ours = found["processor_ns"]
    peers = costs(
        [
            lambda: [plain_python.decide_typed(worker, state, NOW) for worker, state in typed],
            lambda: [plain_python.decide(record, state, NOW) for record, state in dicts],
        ],
        size,
        rounds,
    )
    return [
        Row(
            f"`decide` in Rust, a mixed fleet of {size:,}, per worker, next to Python's {what}",
            "ns",
            ours,
            microseconds * 1000,
            f"the same decisions in plain Python, from {what}",
            microseconds * 1000 / ours,
            "≥ 10",
            ours <= 100 and microseconds * 1000 / ours >= 10,
            "and no more than 100 ns",
        )
        for what, microseconds in zip(("objects", "dicts"), peers, strict=True)
    ]


def controller(quick: bool) -> list[Row]:
    by_size: dict[int, dict[str, dict[str, Any]]] = {}
    for line in bench("controller", quick=quick):
        by_size.setdefault(line["size"], {})[line["who"]] = line
    rows = []
    for size, found in by_size.items():
        listed, told = found["listed"], found["told"]
        theirs = min(found["kube, limited"], found["kube, unlimited"], key=lambda line: float(line["processor_ns"]))
        ratio = theirs["processor_ns"] / listed["processor_ns"]
        rows.append(
            Row(
                f"controller, no-op reconciles per second of one core, {size:,} resources",
                "/s",
                1e9 / listed["processor_ns"],
                1e9 / theirs["processor_ns"],
                "kube-runtime's applier",
                ratio,
                "≥ 2",
                ratio >= 2,
                f"{1e9 / told['processor_ns']:,.0f}/s "
                f"({theirs['processor_ns'] / told['processor_ns']:.1f} times) if each is told as changed and read by "
                f"itself. {comparison(found)}",
            )
        )
    return rows


def comparison(found: dict[str, dict[str, Any]]) -> str:
    limited, unlimited = (1e9 / found[who]["processor_ns"] for who in ("kube, limited", "kube, unlimited"))
    return (
        f"kube-runtime: {limited:,.0f}/s with ten passes at once like LCM, {unlimited:,.0f}/s without a limit; "
        "the better one counts"
    )


def memory(quick: bool) -> list[Row]:
    size = 100_000

    def take(whose: str, timers: str) -> dict[str, Any]:
        [found] = measure("lcm-bench-memory", whose, "--size", str(size), "--timers", timers)
        return found

    ours, theirs = take("lcm", "set"), take("kube", "set")
    note = (
        "each is to be looked at again in an hour; "
        f"the peak of the process, while everything is listed, is {figure(ours['peak'])} to {figure(theirs['peak'])} "
        "bytes. kube-runtime keeps the objects, LCM reads a record again when it looks at it"
    )
    if not quick:
        our_rest, their_rest = take("lcm", "none"), take("kube", "none")
        note = f"without timers {figure(our_rest['bytes'])} to {figure(their_rest['bytes'])} bytes; {note}"
    return [
        Row(
            f"memory per tracked resource, {size:,} of them",
            "bytes",
            ours["bytes"],
            theirs["bytes"],
            "kube-runtime's reflector and applier",
            theirs["bytes"] / ours["bytes"],
            "≤ 1 KB, and less",
            ours["bytes"] <= 1024 and ours["bytes"] < theirs["bytes"],
            note,
        )
    ]


def watch(quick: bool) -> list[Row]:
    [found] = bench("watch", quick=quick)
    ours, etcd, over = found["ours"], found["etcd"], found["over"]
    return [
        Row(
            f"watch event to reconcile start at p99, {found['size']:,} workers",
            "ms",
            ours["p99"],
            etcd["p99"],
            "real etcd's own client, same writes",
            # What has to come after it can be no faster.
            None,
            "≤ 2 ms more",
            ours["p99"] - etcd["p99"] <= 2,
            f"{ours['p99'] - etcd['p99']:.2f} ms more at p99; p50 {ours['p50']:.2f} to {etcd['p50']:.2f} ms; write by "
            f"write {over['p50']:.2f} ms more at p50 and {over['p99']:.2f} ms at p99, over {found['writes']:,} writes",
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
    """A row for each way to call, at the number of clients where the fake is least ahead."""
    found = bench("etcd", quick=quick)
    return [etcd_row(what, [line for line in found if line["call"] == call]) for call, what in CALLS.items()]


def etcd_row(what: str, lines: Iterable[dict[str, Any]]) -> Row:
    by_clients: dict[int, dict[str, dict[str, Any]]] = {}
    for line in lines:
        by_clients.setdefault(line["clients"], {})[line["server"]] = line
    ratios = {clients: both["fake"]["rate"] / both["real"]["rate"] for clients, both in by_clients.items()}
    least = min(ratios, key=lambda clients: ratios[clients])
    fake, real = by_clients[least]["fake"], by_clients[least]["real"]
    late = [c for c, both in by_clients.items() if both["fake"]["latency"]["p99"] > both["real"]["latency"]["p99"]]

    def each(of: str) -> str:
        def read(line: dict[str, Any]) -> float:
            return float(line["latency"][of] if of in line["latency"] else line[of])

        return ", ".join(f"{read(both['fake']):.3g} to {read(both['real']):.3g}" for both in by_clients.values())

    worse = f"p99 is worse with {' and '.join(map(str, late))} clients, and should not be; " if late else ""
    numbers = "/".join(str(clients) for clients in by_clients)
    return Row(
        f"fake etcd, {what}, {least} client{'s' if least > 1 else ''}",
        "/s",
        fake["rate"],
        real["rate"],
        "real etcd on a memory disk",
        ratios[least],
        "≥ 1.5",
        ratios[least] >= 1.5 and not late,
        f"{worse}with {numbers} clients {', '.join(f'{ratio:.2f}' for ratio in ratios.values())} times; "
        f"p99 {each('p99')} ms; processor time of the server {each('processor_us')} µs",
    )


def failover(quick: bool) -> list[Row]:
    rows = []
    for found in bench("failover", quick=quick):
        ttl, name = found["ttl"], {"fake": "the fake etcd", "real": "a real etcd"}[found["server"]]
        crash, stop = max(found["after_crash"]), max(found["after_stop"])
        rounds = f"the slowest of {len(found['after_crash'])}"
        rows += [
            Row(
                f"fail-over after a crash, on {name}", "s", crash, ttl, "the TTL of the lease", None,
                "≤ TTL + 1 s", crash <= ttl + 1, rounds,
            ),
            Row(
                f"fail-over after a clean stop, on {name}", "s", stop, ttl, "the TTL of the lease", None,
                "≤ 0.2 s", stop <= 0.2, rounds,
            ),
        ]  # fmt: skip
    return rows


BENCHES = [
    Bench("core", "decisions in Rust, next to plain Python", core),
    Bench("controller", "passes of the controller, next to kube-runtime", controller),
    Bench("memory", "memory of a tracked resource, next to kube-runtime", memory),
    Bench("watch", "from a change to its reconcile, next to etcd's own watch", watch),
    Bench("etcd", "the fake etcd, next to a real one", etcd),
    Bench("failover", "how soon somebody else leads", failover),
]
