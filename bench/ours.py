"""The work of a controller, done by LCM: the same that `seeds_controller.py` does without it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import lcm
from processes import FakeCloud

REGION = "us-east-1"


@dataclass(frozen=True)
class Took:
    """What some work took."""

    wall: float
    """Seconds on the clock on the wall."""
    cpu: float
    """Seconds of processor time in the controller's process."""
    looked_at: int
    """How many workers were looked at."""


def clients(cloud: FakeCloud) -> lcm.Clients:
    """Clients for a cloud, on which a controller leads at once and sweeps at once."""
    return lcm.Clients(
        {
            **cloud.env,
            "ETCD_ENDPOINTS": "",
            "STARTUP_RECONCILE_DELAY": "0",
            "WORKER_DISCOVERY_ENABLED": "false",
            "LOG_LEVEL": "error",
        }
    )


def sweep(cloud: FakeCloud) -> Took:
    """The start-up sweep of a controller: from its start to everything looked at and recorded."""
    return asyncio.run(_sweep(clients(cloud)))


async def _sweep(made: lcm.Clients) -> Took:
    controller = lcm.Controller(made)
    began, spent = time.monotonic(), time.process_time()
    async with controller:
        report = await controller.ready()
        wall, cpu = time.monotonic() - began, time.process_time() - spent
    if not report.is_complete:
        raise RuntimeError(f"the sweep did not end in time: {report}")
    return Took(wall, cpu, report.listed)


def collect(cloud: FakeCloud) -> Took:
    """One pass of discovery and garbage collection."""
    made = clients(cloud)
    began, spent = time.monotonic(), time.process_time()
    report = lcm.collect_orphans(clients=made, regions=[REGION])
    wall, cpu = time.monotonic() - began, time.process_time() - spent
    if report.error is not None or any(region.error is not None for region in report.regions):
        raise RuntimeError(f"the pass did not end well: {report}")
    return Took(wall, cpu, sum(len(region.verdicts) for region in report.regions))
