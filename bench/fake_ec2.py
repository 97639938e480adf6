"""The fake EC2 next to moto's server, ministack and fakecloud: the same request bytes from the same client.

fakecloud is measured where its program is on the PATH.

The client is a raw socket with prepared bytes, so its own cost is microseconds and equal for both. It sends one request
at a time, so client and server alternate on one core. Processor time is the server process's.
"""

from __future__ import annotations

import re
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Self

from processes import (
    FAKECLOUD,
    IN_PYTHON,
    PATIENCE,
    FakeCloud,
    Server,
    fake_cloud,
    fakecloud,
    ministack,
    most_sockets,
    moto,
    native,
    on_one_core,
)
from report import Bench, Row, Sample, better, figure

SCOPE = "Credential=fake/20260101/us-east-1/ec2/aws4_request"
TAGS = "".join(
    f"&TagSpecification.1.Tag.{n}.Key=key-{n}&TagSpecification.1.Tag.{n}.Value=value-{n}" for n in range(1, 4)
)
SIZES = (3, 100, 1_000)
# Number of instances that match the tag filter; launched first.
BLUE = 3
# Goal for the resident memory with the largest number of instances, in MB.
MEMORY = 20
DESCRIBE = "Action=DescribeInstances"
# End of a chunked response.
LAST_CHUNK = b"\r\n0\r\n\r\n"
SEQUENTIAL = (
    "one client, sequential requests, client and servers pinned to one core: waking a second core costs "
    "more than a short request"
)


@dataclass(frozen=True)
class Cost:
    """Cost of a request."""

    cpu: float
    """Processor time of the server in milliseconds."""
    rate: float
    """Sequential requests per second on one connection."""


class Caller:
    """A client with one connection, reopened when the server closes it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.socket: socket.socket | None = None
        self.memory = bytearray(1 << 20)
        self.view = memoryview(self.memory)
        self.image = ""
        self.latest = ""
        self.launched = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def request(self, body: str) -> bytes:
        """Serializes a request."""
        text = f"{body}&Version=2016-11-15"
        head = [
            "POST / HTTP/1.1",
            f"host: {self.server.host}:{self.server.port}",
            f"authorization: AWS4-HMAC-SHA256 {SCOPE}, SignedHeaders=host, Signature=0",
            "content-type: application/x-www-form-urlencoded; charset=utf-8",
            f"content-length: {len(text)}",
        ]
        return "\r\n".join([*head, "", text]).encode()

    def send(self, request: bytes) -> bytes:
        """Sends a request and returns the response body."""
        parts: list[bytes] = []
        self._exchange(request, parts.append)
        return b"".join(parts)

    def _exchange(self, request: bytes, keep: Callable[[bytes], None] | None = None) -> None:
        """Sends a request and reads the whole response into a reused buffer."""
        if self.socket is None:
            self.socket = socket.create_connection((self.server.host, self.server.port), timeout=120)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(request)
        received = self._more(0)
        while (end := self.memory.find(b"\r\n\r\n", 0, received)) < 0:
            received += self._more(received)
        head = self.memory[:end].lower()
        refused = b" 200 " not in head[:16]
        begin = end + 4
        missing: int | None = None
        if b"content-length:" in head:
            missing = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]) - (received - begin)
        while True:
            if keep is not None:
                keep(bytes(self.memory[begin:received]))
            if missing <= 0 if missing is not None else self.memory.endswith(LAST_CHUNK, 0, received):
                break
            # Keeps the last bytes: the final chunk may arrive in two pieces.
            begin = min(received, len(LAST_CHUNK))
            self.memory[:begin] = self.memory[received - begin : received]
            more = self._more(begin)
            received = begin + more
            missing = None if missing is None else missing - more
        if refused:
            raise RuntimeError(f"refused: {head!r}")
        if b"connection: close" in head:
            self.close()

    def _more(self, place: int) -> int:
        assert self.socket is not None
        more = self.socket.recv_into(self.view[place:])
        if not more:
            raise RuntimeError("the server closed the connection")
        return more

    def request_once(self, body: str) -> bytes:
        """Sends one request on a fresh connection; an idle one may have been closed."""
        self.close()
        return self.send(self.request(body))

    def grow(self, count: int) -> None:
        """Launches instances until ``count`` exist."""
        while self.launched < count:
            blue = self.launched < BLUE
            batch = min(1000, count - self.launched, BLUE - self.launched if blue else 1000)
            found = re.search(
                rb"<instanceId>([^<]+)", self.request_once(self.launch(batch, "blue" if blue else "green"))
            )
            assert found
            self.latest = found[1].decode()
            self.launched += batch

    def launch(self, count: int, team: str) -> str:
        if not self.image:
            found = re.search(rb"<imageId>([^<]+)", self.request_once("Action=DescribeImages"))
            assert found
            self.image = found[1].decode()
        tags = f"&TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.4.Key=team{TAGS}"
        return (
            f"Action=RunInstances&ImageId={self.image}&MinCount={count}&MaxCount={count}"
            f"{tags}&TagSpecification.1.Tag.4.Value={team}"
        )

    def cost(self, body: str, seconds: float) -> Cost:
        """Repeats a request for about ``seconds``. The first one is not counted unless it takes that long alone."""
        self.close()
        request = self.request(body)
        first = self._repeat(request, 0.0)
        return first if 1 / first.rate >= seconds else self._repeat(request, seconds)

    def _repeat(self, request: bytes, seconds: float) -> Cost:
        sent, spent, began = 0, self.server.cpu(), time.monotonic()
        while sent == 0 or time.monotonic() - began < seconds:
            self._exchange(request)
            sent += 1
        wall, cpu = time.monotonic() - began, self.server.cpu() - spent
        return Cost(cpu / sent * 1000, sent / wall)


def start_up(start: Callable[[], AbstractContextManager[Server]], turns: int) -> tuple[list[float], float]:
    """Milliseconds from process start to the first response of each turn, and the median resident memory in MB."""
    waits, sizes = [], []
    for _ in range(turns):
        began = time.monotonic()
        with start() as server, Caller(server) as caller:
            caller.request_once(DESCRIBE)
            waits.append((time.monotonic() - began) * 1000)
            sizes.append(server.memory() / 1e6)
    return waits, statistics.median(sizes)


@dataclass(frozen=True)
class Peer:
    """Another fake of EC2."""

    name: str
    start: Callable[[], AbstractContextManager[Server]]
    at_least: float
    """Goal of every ratio."""


def peers() -> list[Peer]:
    """The other fakes on this machine."""
    found = [Peer("moto server", moto, 100), Peer("ministack", ministack, 10)]
    return [*found, Peer("fakecloud", fakecloud, 1)] if FAKECLOUD else found


def run(quick: bool) -> list[Row]:
    turns, ours_for, theirs_for = (2, 0.1, 0.2) if quick else (5, 0.5, 1.0)
    # Builds the program, which is not part of its start.
    native()
    others = peers()
    mine, by_python = start_up(start_ours, 2 * turns), start_up(start_through_python, turns)
    starts = [start_up(peer.start, turns) for peer in others]
    with ExitStack() as stack:
        fake = stack.enter_context(start_ours())
        servers = [stack.enter_context(peer.start()) for peer in others]
        stack.enter_context(on_one_core(fake, *servers))
        ours = stack.enter_context(Caller(fake))
        callers = [stack.enter_context(Caller(server)) for server in servers]
        found: list[list[Row]] = []

        def compare(what: str, body: Callable[[Caller], str]) -> None:
            print(f"      {what}", file=sys.stderr, flush=True)
            costs = [
                (ours.cost(body(ours), ours_for), [caller.cost(body(caller), theirs_for) for caller in callers])
                for _ in range(turns)
            ]
            rows = []
            for place, peer in enumerate(others):
                pairs = [(mine, its[place]) for mine, its in costs]
                rate, their_rate = (statistics.median(pair[side].rate for pair in pairs) for side in (0, 1))
                rows.append(
                    better(
                        f"fake EC2: {what}, processor time, next to {peer.name}",
                        "ms",
                        [a.cpu for a, _ in pairs],
                        [b.cpu for _, b in pairs],
                        peer.name,
                        at_least=peer.at_least,
                        note=f"{figure(rate)}/s and {figure(their_rate)}/s, {SEQUENTIAL}",
                    )
                )
            found.append(rows)

        for size in SIZES:
            for caller in (ours, *callers):
                caller.grow(size)
            compare(f"DescribeInstances, all {size:,}", lambda _: DESCRIBE)
        compare("DescribeInstances, one by id of 1,000", lambda caller: f"{DESCRIBE}&InstanceId.1={caller.latest}")
        blue = f"{DESCRIBE}&Filter.1.Name=tag:team&Filter.1.Value.1=blue"
        compare(f"DescribeInstances, {BLUE} by tag of 1,000", lambda _: blue)
        held = [server.memory() / 1e6 for server in (fake, *servers)]
        check_cmls(fake, SIZES[-1])
        compare("RunInstances", lambda caller: caller.launch(1, "green"))
    found.append(
        [
            better(
                f"fake EC2: process start to first response, next to {peer.name}",
                "ms",
                mine[0],
                its[0],
                peer.name,
                at_least=peer.at_least,
                note=(
                    "the program `fake-cloud` with all services; `python -m lcm.fake_cloud` takes "
                    f"{statistics.median(by_python[0]):.3g} ms. Resident memory at start {mine[1]:.3g} MB and "
                    f"{its[1]:.3g} MB"
                ),
            )
            for peer, its in zip(others, starts, strict=True)
        ]
    )
    by_peer = [row for rows in zip(*found, strict=True) for row in rows]
    return [*by_peer, *memory_rows(others, held)]


def memory_rows(others: Sequence[Peer], held: Sequence[float]) -> list[Row]:
    """Resident memory with 1,000 running instances, ours first in ``held``."""
    mine, *theirs = held
    return [
        Row(
            f"fake EC2: resident memory with {SIZES[-1]:,} running instances, next to {peer.name}",
            "MB",
            Sample.exact(mine),
            Sample.exact(its),
            peer.name,
            its / mine,
            f"≤ {MEMORY} MB",
            mine <= MEMORY,
            "all services, and the CML of every instance listens without a visitor; the other has no CML",
        )
        for peer, its in zip(others, theirs, strict=True)
    ]


def check_cmls(fake: FakeCloud, count: int) -> None:
    """Wait until the CML servers of all instances listen. It reads the world, so memory is measured before."""
    deadline = time.monotonic() + PATIENCE
    while (listening := fake.listening()) != count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the CML servers of {listening} instances listen, expected {count}")
        time.sleep(0.05)


def start_ours() -> AbstractContextManager[FakeCloud]:
    """The fake cloud as users run it: all services, and every instance has its CML. Instances run at once, as those of
    the other fakes do."""
    return fake_cloud("--delays", "none", cmls=most_sockets())


def start_through_python() -> AbstractContextManager[FakeCloud]:
    """The same program started as a Python module."""
    return fake_cloud("--delays", "none", cmls=most_sockets(), program=IN_PYTHON)


BENCH = Bench("fake-ec2", "the fake EC2, moto, ministack and fakecloud, request by request", run)
