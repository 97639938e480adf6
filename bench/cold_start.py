"""From nothing to the first useful answer: a process, its imports, its clients, one worker looked at."""

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

RECONCILE = "import lcm; assert lcm.reconcile({worker!r}).error is None"
DESCRIBE = "import boto3; assert boto3.client('ec2').describe_instances(InstanceIds=[{instance!r}])['Reservations']"
IMPORT = "from lcm import Clients, Worker, decide, reconcile"
CLIENT = "import boto3; boto3.client('ec2')"
TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def process(program: str, env: Mapping[str, str]) -> tuple[float, str]:
    """How long a process takes to run a program, in milliseconds, and what it says."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=HERE, capture_output=True, text=True, check=True
    )
    return (time.monotonic() - began) * 1000, done.stdout


def run(quick: bool) -> list[Row]:
    times = 5 if quick else 25
    with cloud_of(parked(10)) as cloud:
        worker, instance = worker_of(cloud)
        mine = {**os.environ, **cloud.env}
        its = {**mine, "PYTHONPATH": str(PEERS)}
        whole: dict[str, list[float]] = {"ours": [], "theirs": []}
        imports: dict[str, list[float]] = {"ours": [], "theirs": []}
        # In turn, so that whatever else the machine does happens to both.
        for _ in range(times):
            whole["ours"].append(process(RECONCILE.format(worker=worker), mine)[0])
            whole["theirs"].append(process(DESCRIBE.format(instance=instance), its)[0])
            imports["ours"].append(float(process(TIMED.format(IMPORT), mine)[1]) * 1000)
            imports["theirs"].append(float(process(TIMED.format(CLIENT), its)[1]) * 1000)
        bare = statistics.median(process("pass", mine)[0] for _ in range(times))
    reconciles, describes = statistics.median(whole["ours"]), statistics.median(whole["theirs"])
    return [
        better(
            "cold start: process to first reconcile",
            "ms",
            reconciles,
            describes,
            "Python and boto3: process to first describe",
            at_least=10,
            note=f"Python alone takes {bare:.3g} ms of both; ours waits 5 ms for others to ask in the same call",
        ),
        better(
            "cold start: import of the wheel, `Clients`, `Worker`, `decide` and `reconcile`",
            "ms",
            statistics.median(imports["ours"]),
            statistics.median(imports["theirs"]),
            "boto3 imported and a client made",
            at_least=10,
            note="half of ours is loading the native module; what results are made of is imported with the first one",
        ),
    ]


def worker_of(cloud: FakeCloud) -> tuple[dict[str, object], str]:
    """A worker at rest, and its instance."""
    [worker] = [worker for worker in cloud.workers() if worker["id"] == "worker-000001"]
    return worker, worker["ec2_instance_id"]


BENCH = Bench("cold-start", "from nothing to the first reconcile, and the import of the wheel", run)
