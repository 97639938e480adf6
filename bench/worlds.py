"""Fleets as fake-cloud scenarios: the state a controller finds at start-up."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import FakeCloud, fake_cloud

# One record in this many is out of date in a parked fleet.
DRIFT_IN = 100


def parked(size: int) -> dict[str, Any]:
    """A stopped fleet in which one record in a hundred is out of date.

    Half of those instances stopped while the controller was away; the others were terminated from outside.
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
    """A fleet in which the instances of ``orphans`` records, spread evenly, no longer exist."""
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
    """Starts a fake cloud from the scenario."""
    with tempfile.TemporaryDirectory() as directory:
        scenario = Path(directory) / "world.yaml"
        # JSON is valid YAML.
        # The Python controller relies on the versions of records.
        scenario.write_text(json.dumps({"control_plane": "extended", **world}))
        with fake_cloud("--clock", "real", "--delays", "none", "--scenario", str(scenario)) as cloud:
            yield cloud
