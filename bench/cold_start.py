"""Time from process start to the first reconcile: interpreter, imports, clients, one worker."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping

from processes import HERE, PEERS, FakeCloud
from report import Bench, Row, better
from worlds import cloud_of, parked

AT_LEAST = 8
RECONCILE = "import lcm; assert lcm.reconcile({worker!r}).error is None"
DESCRIBE = "import boto3; assert boto3.client('ec2').describe_instances(InstanceIds=[{instance!r}])['Reservations']"
IMPORT = "from lcm import Clients, Worker, decide, reconcile"
CLIENT = "import boto3; boto3.client('ec2')"
TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def process(program: str, env: Mapping[str, str]) -> tuple[float, str]:
    """Runs a program in a fresh interpreter; returns milliseconds and its output."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=HERE, capture_output=True, text=True, check=True
    )
    return (time.monotonic() - began) * 1000, done.stdout


def run(quick: bool) -> list[Row]:
    turns = 5 if quick else 25
    with cloud_of(parked(10)) as cloud:
        worker, instance = worker_of(cloud)
        mine = {**os.environ, **cloud.env}
        its = {**mine, "PYTHONPATH": str(PEERS)}
        whole: dict[str, list[float]] = {"ours": [], "theirs": []}
        imports: dict[str, list[float]] = {"ours": [], "theirs": []}
        # Interleaved, so that a slow phase of the machine affects both.
        for _ in range(turns):
            whole["ours"].append(process(RECONCILE.format(worker=worker), mine)[0])
            whole["theirs"].append(process(DESCRIBE.format(instance=instance), its)[0])
            imports["ours"].append(float(process(TIMED.format(IMPORT), mine)[1]) * 1000)
            imports["theirs"].append(float(process(TIMED.format(CLIENT), its)[1]) * 1000)
        bare = statistics.median(process("pass", mine)[0] for _ in range(turns))
    return [
        better(
            "cold start: process to first reconcile",
            "ms",
            whole["ours"],
            whole["theirs"],
            "Python and boto3: process to first DescribeInstances",
            at_least=AT_LEAST,
            note=f"an empty Python process takes {bare:.3g} ms of both; LCM's includes the 5 ms batching window",
        ),
        better(
            "cold start: import of the wheel, `Clients`, `Worker`, `decide` and `reconcile`",
            "ms",
            imports["ours"],
            imports["theirs"],
            "import of boto3 and creation of a client",
            at_least=AT_LEAST,
        ),
    ]


def worker_of(cloud: FakeCloud) -> tuple[dict[str, object], str]:
    """A worker at rest, and the id of its instance."""
    [worker] = [worker for worker in cloud.workers() if worker["id"] == "worker-000001"]
    return worker, worker["ec2_instance_id"]


BENCH = Bench("cold-start", "process start to first reconcile, and import of the wheel", run)
