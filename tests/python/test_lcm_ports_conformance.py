"""Ports written in Python, against the suites that the ones written in Rust have to pass."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import lcm
import pytest
from lcm.ports import Held, Patch, Won
from lcm.testing import conformance
from own_cloud import CloudWorld, GaugesWorld, OwnCloud, OwnGauges
from own_cml import CmlHouse, OwnCml
from own_keys import KeysWorld, OwnKeys, PlainKeysWorld
from own_records import OwnRecords, RecordsWorld


def test_a_control_plane_in_python_conforms() -> None:
    conformance.check_control_plane(RecordsWorld())


def test_a_cloud_in_python_conforms() -> None:
    conformance.check_compute(CloudWorld())


def test_metrics_in_python_conform() -> None:
    conformance.check_metrics(GaugesWorld())


def test_a_cml_in_python_conforms() -> None:
    conformance.check_cml(CmlHouse())


@pytest.mark.parametrize("world", [KeysWorld(), PlainKeysWorld()], ids=["async", "plain"])
def test_leases_keys_and_watches_in_python_conform(world: KeysWorld | PlainKeysWorld) -> None:
    conformance.check_coordination(world)
    keys = world.keys if isinstance(world.keys, OwnKeys) else world.keys.keys
    deadline = time.monotonic() + 30
    while keys.watches:
        assert time.monotonic() < deadline, "every watch is closed"
        time.sleep(0.01)


class Forgetful(OwnRecords):
    """Keeps what a worker shows of itself, and so loses what it does not show."""

    async def write(self, patch: Patch, /) -> int:
        before = self._to_change(patch.worker_id)
        await super().write(patch)
        return self._store(patch.apply_to(before).to_dict(), int(before["version"]))


class Careless(OwnRecords):
    """Writes whatever the version."""

    async def write(self, patch: Patch, /) -> int:
        record = self._to_change(patch.worker_id)
        return self._store(patch.apply_to(record).to_dict(), record["version"])


class Hasty(OwnCloud):
    """Takes no answer for an answer."""

    def instances(self, region: str, ids: list[str], /) -> dict[str, Any]:
        try:
            return super().instances(region, ids)
        except lcm.PortError:
            return dict.fromkeys(ids, lcm.ABSENT)


class Doubling(OwnCloud):
    """Launches whenever it is told to."""

    def launch(self, plan: lcm.FrozenMap, /) -> str:
        self.regions[plan["region"]].launches.clear()
        return super().launch(plan)


class Optimist(OwnGauges):
    """Takes silence for idleness."""

    def utilization(self, region: str, ids: list[str], until: datetime, /) -> Mapping[str, Any]:
        told = super().utilization(region, ids, until)
        return {id: seen or lcm.CloudMetrics(0.0, 0.0, 0.0) for id, seen in told.items()}


class Stubborn(OwnCml):
    """Says that one who cannot be asked has refused."""

    def _reach(self, at: Any) -> None:
        try:
            super()._reach(at)
        except lcm.PortError as error:
            raise lcm.PortError(error.message, "refused") from error


class Generous(OwnKeys):
    """Lets everybody win."""

    async def claim(self, key: str, value: str, lease_id: int, /) -> Won | Held:
        if key in self.keys:
            self.delete(key)
        return await super().claim(key, value, lease_id)


class Deaf(OwnKeys):
    """Forgets to tell that a lease has ended."""

    async def renew(self, lease_id: int, /) -> Any:
        return (await super().renew(lease_id)) if lease_id in self.leases else timedelta(seconds=2)


WRONG: list[tuple[Any, Any, str, str]] = [
    (conformance.check_control_plane, RecordsWorld(Forgetful()), "license reports move the pending token", '"t0ken"'),
    (
        conformance.check_control_plane,
        RecordsWorld(Careless()),
        "writes are conditional on the version",
        "the version is old",
    ),
    (conformance.check_compute, CloudWorld(Hasty()), "failed calls never mean absence", "Absent"),
    (
        conformance.check_compute,
        CloudWorld(Doubling()),
        "launches are idempotent",
        "the same plan returns the same instance",
    ),
    (
        conformance.check_metrics,
        GaugesWorld(Optimist()),
        "missing values are none",
        "an instance without data is found with empty metrics",
    ),
    (conformance.check_cml, CmlHouse(Stubborn()), "unavailable systems never refuse", "left: Refused"),
    (conformance.check_coordination, KeysWorld(Generous()), "keys are claimed once", "the second claim loses: Ok(Won"),
    (
        conformance.check_coordination,
        KeysWorld(Deaf()),
        "leases live until they are revoked",
        "a revoked lease is gone",
    ),
]


@pytest.mark.parametrize(("check", "world", "promise", "shown"), WRONG, ids=[row[2] for row in WRONG])
def test_a_port_that_breaks_a_promise_is_told_which_one(
    check: Any, world: Any, promise: str, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError) as broken:
        check(world)
    told = str(broken.value)
    assert told.splitlines()[0].endswith(f": {promise}") and "breaks a rule of lcm.ports." in told, told
    assert shown in told and "Last calls:" in told, told
    assert "/conformance/" in told.splitlines()[-1], "it says where the promise is written down"
    assert capfd.readouterr().err == "", "whoever asked is told, and nobody else"


def test_what_a_port_raises_by_accident_is_the_cause() -> None:
    class Broken(OwnRecords):
        async def template(self, name: str, /) -> Any:
            raise KeyError("shelf")

    with pytest.raises(AssertionError, match=r"template\('nothing'\) → raised KeyError\('shelf'\)") as broken:
        conformance.check_control_plane(RecordsWorld(Broken()))
    assert isinstance(broken.value.__cause__, KeyError)


def test_a_world_that_cannot_be_set_up_says_so_itself() -> None:
    class Shut(RecordsWorld):
        def put_worker(self, record: Any, /) -> None:
            raise FileNotFoundError("the shelf is gone")

        put_unreadable = put_worker

    with pytest.raises(FileNotFoundError, match="the shelf is gone"):
        conformance.check_control_plane(Shut())


def test_what_is_no_world_or_gives_no_port_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a object is no lcm.testing.conformance.EventsWorld: it lacks events"):
        conformance.check_events(object())  # type: ignore[arg-type]

    class Empty(RecordsWorld):
        def control_plane(self) -> Any:
            return None

    with pytest.raises(TypeError, match=r"a NoneType is no lcm.ports.ControlPlane: it lacks workers"):
        conformance.check_control_plane(Empty())

    class Vague(CloudWorld):
        def plan(self) -> dict[str, Any]:
            return {"image_id": "ami-1"}

    with pytest.raises(ValueError, match="plan: missing field `instance_type`"):
        conformance.check_compute(Vague())


def test_coroutines_run_on_the_loop_they_belong_to() -> None:
    seen: set[threading.Thread] = set()

    class Watched(OwnRecords):
        async def worker(self, id: str, /) -> Any:
            seen.add(threading.current_thread())
            return await super().worker(id)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        world = RecordsWorld(Watched())
        await asyncio.to_thread(conformance.check_control_plane, world, loop=loop)
        with pytest.raises(RuntimeError, match="the loop that the port runs on"):
            conformance.check_control_plane(world, loop=loop)

    asyncio.run(story())
    assert seen == {threading.main_thread()}
