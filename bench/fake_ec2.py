"""What the fake EC2 costs next to moto's server, for the same bytes from the same client.

The client is a socket and bytes that were put together before: what it costs is a few microseconds and the same for
both. It asks, and waits for the answer before it asks again, so client and server take turns on one core. Processor
time is that of the server's process.
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

from processes import IN_PYTHON, FakeCloud, Server, fake_cloud, moto, native, on_one_core, resident_of_sleep
from report import Bench, Row, better

SCOPE = "Credential=fake/20260101/us-east-1/ec2/aws4_request"
TAGS = "".join(
    f"&TagSpecification.1.Tag.{n}.Key=key-{n}&TagSpecification.1.Tag.{n}.Value=value-{n}" for n in range(1, 4)
)
SIZES = (3, 100, 1_000)
# So many are tagged as the filter wants them; they are launched before all others.
BLUE = 3
PEER = "moto server"
ABOUT = "fake EC2: "
DESCRIBE = "Action=DescribeInstances"
# An answer whose length is not told ends with this.
LAST_CHUNK = b"\r\n0\r\n\r\n"
TAKING_TURNS = (
    "one client, one request after the other, client and server on one core for both fakes: over two cores the waking "
    "of the other one, which costs more than a short request, would be measured with it"
)


@dataclass(frozen=True)
class Cost:
    """What a request costs."""

    cpu: float
    """Milliseconds of the server's processor time."""
    rate: float
    """Requests in a second, one after the other on one connection."""


class Caller:
    """Asks a server, over one connection for as long as it lets us."""

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
        """The bytes of a request."""
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
        """Sends it, and gives the body of the answer."""
        parts: list[bytes] = []
        self._exchange(request, parts.append)
        return b"".join(parts)

    def _exchange(self, request: bytes, keep: Callable[[bytes], None] | None = None) -> None:
        """Sends it, and reads the whole answer, into the same memory every time."""
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
            # What comes next is put behind the last bytes of this: the last chunk may come in two pieces.
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
            raise RuntimeError("the server hung up")
        return more

    def ask(self, body: str) -> bytes:
        """Asks once, over a connection of its own: an older one may have been idle for too long."""
        self.close()
        return self.send(self.request(body))

    def grow(self, count: int) -> None:
        """Launches until there are so many."""
        while self.launched < count:
            blue = self.launched < BLUE
            batch = min(1000, count - self.launched, BLUE - self.launched if blue else 1000)
            found = re.search(rb"<instanceId>([^<]+)", self.ask(self.launch(batch, "blue" if blue else "green")))
            assert found
            self.latest = found[1].decode()
            self.launched += batch

    def launch(self, count: int, team: str) -> str:
        if not self.image:
            found = re.search(rb"<imageId>([^<]+)", self.ask("Action=DescribeImages"))
            assert found
            self.image = found[1].decode()
        tags = f"&TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.4.Key=team{TAGS}"
        return (
            f"Action=RunInstances&ImageId={self.image}&MinCount={count}&MaxCount={count}"
            f"{tags}&TagSpecification.1.Tag.4.Value={team}"
        )

    def cost(self, body: str, seconds: float) -> Cost:
        """Asks again and again for about so long. The first time does not count, unless it takes that long alone."""
        self.close()
        request = self.request(body)
        first = self._repeat(request, 0.0)
        return first if 1 / first.rate >= seconds else self._repeat(request, seconds)

    def _repeat(self, request: bytes, seconds: float) -> Cost:
        asked, spent, began = 0, self.server.cpu(), time.monotonic()
        while asked == 0 or time.monotonic() - began < seconds:
            self._exchange(request)
            asked += 1
        wall, cpu = time.monotonic() - began, self.server.cpu() - spent
        return Cost(cpu / asked * 1000, asked / wall)


def start_up(start: Callable[[], AbstractContextManager[Server]], times: int) -> tuple[float, float]:
    """Milliseconds from a process to its first answer, and megabytes that it then holds: medians."""
    waits, sizes = [], []
    for _ in range(times):
        began = time.monotonic()
        with start() as server, Caller(server) as caller:
            caller.ask(DESCRIBE)
            waits.append((time.monotonic() - began) * 1000)
            sizes.append(server.memory() / 1e6)
    return statistics.median(waits), statistics.median(sizes)


def run(quick: bool) -> list[Row]:
    times, ours_for, theirs_for = (3, 0.3, 0.5) if quick else (9, 2.0, 4.0)
    rows: list[Row] = []
    # Building it is no part of its start.
    native()
    mine, its = start_up(ours_started, times), start_up(moto, max(1, times // 3))
    by_python = start_up(ours_in_python, times)
    with (
        ours_started() as fake,
        moto() as other,
        on_one_core(fake, other),
        Caller(fake) as ours,
        Caller(other) as theirs,
    ):

        def compare(what: str, mine: str, same: str) -> None:
            print(f"      {what}", file=sys.stderr, flush=True)
            a, b = ours.cost(mine, ours_for), theirs.cost(same, theirs_for)
            rows.append(better(f"{ABOUT}{what}, processor time", "ms", a.cpu, b.cpu, PEER, at_least=100))
            ratio = a.rate / b.rate
            rows.append(
                Row(f"{ABOUT}{what}, rate", "/s", a.rate, b.rate, PEER, ratio, "≥ 100", ratio >= 100, TAKING_TURNS)
            )

        for size in SIZES:
            ours.grow(size)
            theirs.grow(size)
            # Until they run, as moto's do at once.
            fake.advance(60)
            compare(f"DescribeInstances, all {size:,}", DESCRIBE, DESCRIBE)
        one = f"{DESCRIBE}&InstanceId.1="
        compare("DescribeInstances, one by id of 1,000", one + ours.latest, one + theirs.latest)
        blue = f"{DESCRIBE}&Filter.1.Name=tag:team&Filter.1.Value.1=blue"
        compare(f"DescribeInstances, {BLUE} by tag of 1,000", blue, blue)
        held = fake.memory() / 1e6, other.memory() / 1e6
        own = fake.own_memory() / 1e6, other.own_memory() / 1e6
        compare("RunInstances", ours.launch(1, "green"), theirs.launch(1, "green"))
    rows.append(
        better(
            f"{ABOUT}process to first answer",
            "ms",
            mine[0],
            its[0],
            PEER,
            at_least=100,
            note=f"the program `fake-cloud`; `python -m lcm.fake_cloud` takes {by_python[0]:.3g} ms, mostly for Python",
        )
    )
    rows.append(
        better(
            f"{ABOUT}memory with 1,000 instances",
            "MB",
            *held,
            PEER,
            at_least=100,
            note=(
                f"{mine[1]:.3g} MB and {its[1]:.3g} MB of that before any launch; {held[0] - own[0]:.3g} MB of ours "
                f"are pages of the program and of libc, and {own[0]:.3g} MB its own, next to {own[1]:.3g} MB, "
                f"{own[1] / own[0]:.0f} times; `python -m lcm.fake_cloud` begins with {by_python[1]:.3g} MB. "
                f"A hundredth of moto's would be {held[1] / 100:.3g} MB; `sleep`, which does nothing, holds "
                f"{resident_of_sleep() / 1e6:.3g} MB here"
            ),
        )
    )
    return rows


def ours_started() -> AbstractContextManager[FakeCloud]:
    """The fake cloud with a clock that stands still, so that nothing happens but what is asked."""
    return fake_cloud("--clock", "manual")


def ours_in_python() -> AbstractContextManager[FakeCloud]:
    """The same by the door that is a Python interpreter."""
    return fake_cloud("--clock", "manual", program=IN_PYTHON)


BENCH = Bench("fake-ec2", "the fake EC2 and moto's server, request by request", run)
