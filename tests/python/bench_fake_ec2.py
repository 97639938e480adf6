"""What one DescribeInstances costs the fake EC2 and moto's server in CPU, side by side; and how fast the fake starts.

    cargo build --release -p fake-cloud
    FAKE_CLOUD_BIN=target/release/fake-cloud python tests/python/bench_fake_ec2.py

Both get the same bytes from the same client. Reads /proc, so it needs Linux. It asserts nothing: numbers depend on the
machine, the ratio is what to look at.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from conftest import start, stop

STARTS = 20
PATIENCE = 60.0
# How many instances there are, and how often each of the two is asked: what takes moto seconds is asked less often.
FLEETS = {3: (20_000, 200), 100: (3_000, 20), 1_000: (300, 4)}
SCOPE = "Credential=fake/20260101/us-east-1/ec2/aws4_request"
HEADERS = {
    "authorization": f"AWS4-HMAC-SHA256 {SCOPE}, SignedHeaders=host, Signature=0",
    "content-type": "application/x-www-form-urlencoded; charset=utf-8",
}
TAGS = "".join(
    f"&TagSpecification.1.Tag.{n}.Key=key-{n}&TagSpecification.1.Tag.{n}.Value=value-{n}" for n in range(1, 5)
)


@dataclass
class Server:
    """An EC2 to measure."""

    process: int
    connection: http.client.HTTPConnection
    image: str = ""
    launched: int = 0

    def ask(self, body: str) -> bytes:
        self.connection.request("POST", "/", f"{body}&Version=2016-11-15", HEADERS)
        response = self.connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer

    def grow(self, count: int) -> None:
        """Launches until there are so many, at most a thousand in one call."""
        self.connection.close()
        if not self.image:
            found = re.search(rb"<imageId>([^<]+)", self.ask("Action=DescribeImages"))
            assert found
            self.image = found[1].decode()
        while self.launched < count:
            batch = min(1000, count - self.launched)
            launch = f"Action=RunInstances&ImageId={self.image}&TagSpecification.1.ResourceType=instance{TAGS}"
            self.ask(f"{launch}&MinCount={batch}&MaxCount={batch}")
            self.launched += batch

    def measure(self, name: str, body: str, repetitions: int) -> float:
        """Prints what a call costs, and gives back its milliseconds of CPU."""
        # While the other one was measured, this connection may have been idle for too long.
        self.connection.close()
        answer = self.ask(body)
        before, began = cpu_seconds(self.process), time.monotonic()
        for _ in range(repetitions):
            self.ask(body)
        wall = (time.monotonic() - began) / repetitions * 1000
        cpu = (cpu_seconds(self.process) - before) / repetitions * 1000
        print(f"{name:32} {cpu:10.3f} ms CPU {wall:10.3f} ms wall {len(answer):>10} bytes")
        return cpu

    def first_id(self) -> str:
        self.connection.close()
        found = re.search(rb"<instanceId>([^<]+)", self.ask("Action=DescribeInstances"))
        assert found
        return found[1].decode()


def cpu_seconds(process: int) -> float:
    """What a process has used so far, in user and system mode."""
    with open(f"/proc/{process}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def ours() -> Iterator[Server]:
    cloud = start("--clock", "real", "--delays", "none")
    try:
        yield Server(cloud.process.pid, http.client.HTTPConnection(urlsplit(cloud.url).netloc))
    finally:
        stop(cloud)


@contextmanager
def moto() -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            server = Server(process.pid, http.client.HTTPConnection("127.0.0.1", port))
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    server.ask("Action=DescribeRegions")
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < deadline, "moto does not start"
                    server.connection.close()
                    time.sleep(0.05)
            yield server
        finally:
            process.terminate()


def measure_starts() -> None:
    """From starting the process to its first answer."""
    waits = []
    for _ in range(STARTS):
        began = time.monotonic()
        with ours() as server:
            server.ask("Action=DescribeInstances")
            waits.append((time.monotonic() - began) * 1000)
    median = statistics.median(waits)
    print(f"process to first answer, {STARTS} starts: median {median:.1f} ms, {min(waits):.1f} to {max(waits):.1f} ms")


def main() -> None:
    measure_starts()
    with ours() as fake, moto() as other:
        for count, (many, few) in FLEETS.items():
            for server in (fake, other):
                server.grow(count)
            spent = fake.measure(f"all of {count}", "Action=DescribeInstances", many)
            compared = other.measure(f"all of {count}, moto", "Action=DescribeInstances", few)
            print(f"{'':32} moto {compared / spent:,.0f} times as much")
        one = "Action=DescribeInstances&InstanceId.1="
        spent = fake.measure("one by id of 1000", one + fake.first_id(), 5000)
        compared = other.measure("one by id of 1000, moto", one + other.first_id(), 100)
        print(f"{'':32} moto {compared / spent:,.0f} times as much")
        fake.grow(10_000)
        fake.measure("all of 10000", "Action=DescribeInstances", 30)
        fake.measure("one by id of 10000", one + fake.first_id(), 1000)
        fake.measure("a page of 100 of 10000", "Action=DescribeInstances&MaxResults=100", 1000)
        nothing = "Action=DescribeInstances&Filter.1.Name=tag:key-1&Filter.1.Value.1=no*"
        fake.measure("none by tag of 10000", nothing, 300)


if __name__ == "__main__":
    main()
