"""The work of `seeds_controller.py` done by LCM.

As a program: one sweep of the cloud described by the environment, with a JSON report of its cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import lcm
from processes import FakeCloud, alone

REGION = "us-east-1"
# Warnings such as one per orphan would be thousands of lines here.
logging.getLogger("lcm").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Took:
    """Cost of one run."""

    wall: float
    """Wall time in seconds."""
    cpu: float
    """Processor time of the controller process in seconds."""
    looked_at: int
    """Number of workers reconciled."""


def clients(env: Mapping[str, str], delay: float = 0.0, rate: float = 1.0) -> lcm.Clients:
    """Clients without an election and with a delayed sweep; ``rate`` is a multiple of AWS's default request rates."""
    return lcm.Clients(
        {
            **env,
            "ETCD_ENDPOINTS": "",
            "STARTUP_RECONCILE_DELAY": f"{delay:g}",
            "AWS_RATE_FACTOR": f"{rate:g}",
            "WORKER_DISCOVERY_ENABLED": "false",
            # The fake cloud enables this; the Python controller publishes no events.
            "CONTROL_PLANE_EVENTS": "false",
        }
    )


def sweep(cloud: FakeCloud, size: int) -> Took:
    """The start-up sweep: from listing the workers to the last reconcile and write."""
    return _sweep(cloud.env, size, 1.0)


def sweep_alone(cloud: FakeCloud, size: int, rate: float) -> Took:
    """The same sweep in a fresh process."""
    return Took(**alone("ours.py", size, rate, env=cloud.env))


def _sweep(env: Mapping[str, str], size: int, rate: float) -> Took:
    # The metrics loop lists the workers once at start; the delay keeps that out of the measurement.
    delay = 0.5 + size / 20_000
    return asyncio.run(_swept(clients(env, delay, rate), delay))


async def _swept(made: lcm.Clients, delay: float) -> Took:
    async with lcm.Controller(made) as controller:
        ready = asyncio.create_task(controller.ready())
        await asyncio.sleep(0.9 * delay)
        if ready.done():
            raise RuntimeError("the sweep began before the delay passed")
        spent = time.process_time()
        report = await ready
        cpu = time.process_time() - spent
    if not report.is_complete:
        raise RuntimeError(f"incomplete sweep: {report}")
    return Took(report.took.total_seconds(), cpu, report.listed)


def collect(cloud: FakeCloud) -> Took:
    """One discovery scan with garbage collection."""
    made = clients(cloud.env)
    began, spent = time.monotonic(), time.process_time()
    report = lcm.collect_orphans(clients=made, regions=[REGION])
    wall, cpu = time.monotonic() - began, time.process_time() - spent
    if report.error is not None or any(region.error is not None for region in report.regions):
        raise RuntimeError(f"the scan failed: {report}")
    return Took(wall, cpu, sum(len(region.verdicts) for region in report.regions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", type=int, help="number of workers")
    parser.add_argument("rate", type=float, help="multiple of AWS's default request rates")
    options = parser.parse_args()
    print(json.dumps(asdict(_sweep(os.environ, options.size, options.rate))))


if __name__ == "__main__":
    main()
