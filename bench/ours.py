"""The work of a controller, done by LCM: the same that `seeds_controller.py` does without it.

As a program it makes one sweep of the cloud in its environment, and reports what that took.
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
# What a controller warns of, such as an orphan, would be thousands of lines here.
logging.getLogger("lcm").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Took:
    """What some work took."""

    wall: float
    """Seconds on the clock on the wall."""
    cpu: float
    """Seconds of processor time in the controller's process."""
    looked_at: int
    """How many workers were looked at."""


def clients(env: Mapping[str, str], delay: float = 0.0, rate: float = 1.0) -> lcm.Clients:
    """Clients for the cloud of an environment, on which a controller leads at once and sweeps after a delay.

    The rate is that of an account next to AWS's defaults.
    """
    return lcm.Clients(
        {
            **env,
            "ETCD_ENDPOINTS": "",
            "STARTUP_RECONCILE_DELAY": f"{delay:g}",
            "AWS_RATE_FACTOR": f"{rate:g}",
            "WORKER_DISCOVERY_ENABLED": "false",
            # The fake cloud switches this on; the other controller publishes nothing.
            "CONTROL_PLANE_EVENTS": "false",
        }
    )


def sweep(cloud: FakeCloud, size: int) -> Took:
    """The start-up sweep of a controller: from listing the workers to everything looked at and recorded."""
    return _sweep(cloud.env, size, 1.0)


def sweep_alone(cloud: FakeCloud, size: int, rate: float) -> Took:
    """The same in a process of its own, which has no memory left over from an earlier one."""
    return Took(**alone("ours.py", size, rate, env=cloud.env))


def _sweep(env: Mapping[str, str], size: int, rate: float) -> Took:
    # The metrics loop lists the workers once when it starts. It is done before the sweep begins, as in a real one.
    delay = 0.5 + size / 20_000
    return asyncio.run(_swept(clients(env, delay, rate), delay))


async def _swept(made: lcm.Clients, delay: float) -> Took:
    async with lcm.Controller(made) as controller:
        ready = asyncio.create_task(controller.ready())
        await asyncio.sleep(0.9 * delay)
        if ready.done():
            raise RuntimeError("the sweep began before its time")
        spent = time.process_time()
        report = await ready
        cpu = time.process_time() - spent
    if not report.is_complete:
        raise RuntimeError(f"the sweep did not end in time: {report}")
    return Took(report.took.total_seconds(), cpu, report.listed)


def collect(cloud: FakeCloud) -> Took:
    """One pass of discovery and garbage collection."""
    made = clients(cloud.env)
    began, spent = time.monotonic(), time.process_time()
    report = lcm.collect_orphans(clients=made, regions=[REGION])
    wall, cpu = time.monotonic() - began, time.process_time() - spent
    if report.error is not None or any(region.error is not None for region in report.regions):
        raise RuntimeError(f"the pass did not end well: {report}")
    return Took(wall, cpu, sum(len(region.verdicts) for region in report.regions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", type=int, help="how many workers there are")
    parser.add_argument("rate", type=float, help="the account's request rates, next to AWS's defaults")
    asked = parser.parse_args()
    print(json.dumps(asdict(_sweep(os.environ, asked.size, asked.rate))))


if __name__ == "__main__":
    main()
