"""The fake EC2 next to moto's server: the same request bytes from the same client.

The client is a raw socket with prepared bytes, so its own cost is microseconds and equal for both. It sends one request
at a time, so client and server alternate on one core. Processor time is the server process's.
"""

from __future__ import annotations

import re
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from processes import IN_PYTHON, FakeCloud, Server, fake_cloud, moto, native, on_one_core
from report import Bench, Row, better, figure

SCOPE = "Credential=fake/20260101/us-east-1/ec2/aws4_request"
TAGS = "".join(
    f"&TagSpecification.1.Tag.{n}.Key=key-{n}&TagSpecification.1.Tag.{n}.Value=value-{n}" for n in range(1, 4)
)
SIZES = (3, 100, 1_000)
# Number of instances that match the tag filter; launched first.
BLUE = 3
PEER = "moto server"
DESCRIBE = "Action=DescribeInstances"
# End of a chunked response.
LAST_CHUNK = b"\r\n0\r\n\r\n"
SEQUENTIAL = (
    "one client, sequential requests, client and server pinned to one core for both fakes: waking a second core costs "
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


def run(quick: bool) -> list[Row]:
    turns, ours_for, theirs_for = (2, 0.1, 0.2) if quick else (5, 0.5, 1.0)
    rows: list[Row] = []
    # Builds the program, which is not part of its start.
    native()
    mine, its = start_up(start_ours, 2 * turns), start_up(moto, turns)
    by_python = start_up(start_through_python, turns)
    with (
        start_ours() as fake,
        moto() as other,
        on_one_core(fake, other),
        Caller(fake) as ours,
        Caller(other) as theirs,
    ):

        def compare(what: str, mine: str, same: str) -> None:
            print(f"      {what}", file=sys.stderr, flush=True)
            pairs = [(ours.cost(mine, ours_for), theirs.cost(same, theirs_for)) for _ in range(turns)]
            rate, their_rate = (statistics.median(pair[side].rate for pair in pairs) for side in (0, 1))
            rows.append(
                better(
                    f"fake EC2: {what}, processor time",
                    "ms",
                    [a.cpu for a, _ in pairs],
                    [b.cpu for _, b in pairs],
                    PEER,
                    at_least=100,
                    note=f"{figure(rate)}/s and {figure(their_rate)}/s, {SEQUENTIAL}",
                )
            )

        for size in SIZES:
            ours.grow(size)
            theirs.grow(size)
            # moto's instances run at once; these need a minute of simulated time.
            fake.advance(60)
            compare(f"DescribeInstances, all {size:,}", DESCRIBE, DESCRIBE)
        one = f"{DESCRIBE}&InstanceId.1="
        compare("DescribeInstances, one by id of 1,000", one + ours.latest, one + theirs.latest)
        blue = f"{DESCRIBE}&Filter.1.Name=tag:team&Filter.1.Value.1=blue"
        compare(f"DescribeInstances, {BLUE} by tag of 1,000", blue, blue)
        held = fake.memory() / 1e6, other.memory() / 1e6
        compare("RunInstances", ours.launch(1, "green"), theirs.launch(1, "green"))
    rows.append(
        better(
            "fake EC2: process start to first response",
            "ms",
            mine[0],
            its[0],
            PEER,
            at_least=100,
            note=(
                f"the program `fake-cloud`; `python -m lcm.fake_cloud` takes {statistics.median(by_python[0]):.3g} ms. "
                f"Resident memory at start {mine[1]:.3g} MB and {its[1]:.3g} MB, with 1,000 instances {held[0]:.3g} MB "
                f"and {held[1]:.3g} MB"
            ),
        )
    )
    return rows


def start_ours() -> AbstractContextManager[FakeCloud]:
    """The fake cloud with a manual clock, so that only requests cause work."""
    return fake_cloud("--clock", "manual")


def start_through_python() -> AbstractContextManager[FakeCloud]:
    """The same program started as a Python module."""
    return fake_cloud("--clock", "manual", program=IN_PYTHON)


BENCH = Bench("fake-ec2", "the fake EC2 and moto's server, request by request", run)
