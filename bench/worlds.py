"""Fleets in a fake cloud, written as its scenarios: what a controller finds when it starts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import FakeCloud, fake_cloud

# One in so many of a parked fleet is not as its record says.
DRIFT_IN = 100


def parked(size: int) -> dict[str, Any]:
    """A fleet at rest, as a controller finds it after a night; in one of a hundred the record is wrong.

    Half of those were stopping when the controller went and have stopped; the others were terminated behind its back.
    """
    fleet, workers = [], []
    for number in range(size):
        name = f"worker-{number:06}"
        drifts, state, status = number % DRIFT_IN == 0, "stopped", "stopped"
        if drifts and number // DRIFT_IN % 2 == 0:
            status = "stopping"
        elif drifts:
            state = "terminated"
        fleet.append({"name": name, "state": state, "age": "2h"})
        workers.append(record(name, status, instance=name))
    return {"fleet": fleet, "workers": workers}


def orphaned(size: int, orphans: int) -> dict[str, Any]:
    """A fleet of which some instances are gone for good, spread evenly over the records."""
    fleet, workers = [], []
    for number in range(size):
        name = f"worker-{number:06}"
        if number * orphans % size < orphans:
            workers.append(record(name, "stopped", instance_id=f"i-0dead{number:012x}"))
        else:
            fleet.append({"name": name, "state": "stopped", "age": "2h"})
            workers.append(record(name, "stopped", instance=name))
    return {"fleet": fleet, "workers": workers}


def record(id: str, status: str, **instance: str) -> dict[str, Any]:
    return {"id": id, "status": status, "desired_status": "stopped", "template": "metal", "age": "2h", **instance}


@contextmanager
def cloud_of(world: dict[str, Any]) -> Iterator[FakeCloud]:
    """A fake cloud in which all of that has happened."""
    with tempfile.TemporaryDirectory() as directory:
        scenario = Path(directory) / "world.yaml"
        # JSON is YAML, too.
        scenario.write_text(json.dumps(world))
        with fake_cloud("--clock", "real", "--delays", "none", "--scenario", str(scenario)) as cloud:
            yield cloud
