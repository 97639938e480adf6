"""CPU the fake EC2 spends per DescribeInstances, next to what moto 5.2.5 was measured to spend on the same machine.

    cargo build --release -p fake-cloud
    FAKE_CLOUD_BIN=target/release/fake-cloud python tests/python/bench_fake_ec2.py

Reads /proc, so it needs Linux. It asserts nothing: numbers depend on the machine, the ratio is what to look at.
"""

from __future__ import annotations

import http.client
import os
import re
import time
from urllib.parse import urlsplit

from conftest import start

MOTO_MILLISECONDS = {3: 17.1, 100: 308.0, 1000: 3800.0}
REPETITIONS = {3: 20_000, 100: 3_000, 1_000: 300, 10_000: 30}
SCOPE = "Credential=fake/20260101/us-east-1/ec2/aws4_request"
HEADERS = {"authorization": f"AWS4-HMAC-SHA256 {SCOPE}, SignedHeaders=host, Signature=0"}
TAGS = "".join(
    f"&TagSpecification.1.Tag.{n}.Key=key-{n}&TagSpecification.1.Tag.{n}.Value=value-{n}" for n in range(1, 5)
)


def cpu_seconds(process: int) -> float:
    """What a process has used so far, in user and system mode."""
    with open(f"/proc/{process}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    began = time.monotonic()
    cloud = start("--clock", "manual")
    print(f"ready after {(time.monotonic() - began) * 1000:.1f} ms")
    connection = http.client.HTTPConnection(urlsplit(cloud.url).netloc)

    def ask(body: str) -> bytes:
        connection.request("POST", "/", body, HEADERS)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer

    def measure(name: str, body: str, repetitions: int, moto: float | None = None) -> bytes:
        answer = ask(body)
        before, began = cpu_seconds(cloud.process.pid), time.monotonic()
        for _ in range(repetitions):
            ask(body)
        wall = (time.monotonic() - began) / repetitions * 1000
        cpu = (cpu_seconds(cloud.process.pid) - before) / repetitions * 1000
        ratio = f", moto {moto / cpu:,.0f} times as much" if moto and cpu else ""
        print(f"{name:32} {cpu:8.3f} ms CPU {wall:8.3f} ms wall {len(answer):>10} bytes{ratio}")
        return answer

    found = re.search(rb"<imageId>([^<]+)", ask("Action=DescribeImages"))
    assert found
    launch = f"Action=RunInstances&ImageId={found[1].decode()}&TagSpecification.1.ResourceType=instance{TAGS}"
    launched, answer = 0, b""
    for count, repetitions in REPETITIONS.items():
        while launched < count:
            batch = min(1000, count - launched)
            ask(f"{launch}&MinCount={batch}&MaxCount={batch}")
            launched += batch
        cloud.advance(60)
        name = f"all of {count}"
        answer = measure(name, "Action=DescribeInstances", repetitions, MOTO_MILLISECONDS.get(count))
    found = re.search(rb"<instanceId>([^<]+)", answer)
    assert found
    measure("one by id of 10000", f"Action=DescribeInstances&InstanceId.1={found[1].decode()}", 1000)
    measure("a page of 100 of 10000", "Action=DescribeInstances&MaxResults=100", 1000)
    nothing = "Action=DescribeInstances&Filter.1.Name=tag:key-1&Filter.1.Value.1=no*"
    measure("none by tag of 10000", nothing, 300)
    cloud.process.terminate()
    cloud.process.wait(10)


if __name__ == "__main__":
    main()
