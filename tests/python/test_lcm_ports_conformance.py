"""Python ports pass the conformance suites of the Rust ports."""

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
from python_aws import ComputeWorld, MetricsWorld, PythonCompute, PythonMetrics
from python_cml import CmlWorld, PythonCml
from python_control_plane import ControlPlaneWorld, PythonControlPlane
from python_coordination import BlockingCoordinationWorld, CoordinationWorld, PythonCoordination


def test_python_control_plane_conforms() -> None:
    conformance.check_control_plane(ControlPlaneWorld())


def test_python_compute_conforms() -> None:
    conformance.check_compute(ComputeWorld())


def test_python_metrics_conform() -> None:
    conformance.check_metrics(MetricsWorld())


def test_python_cml_conforms() -> None:
    conformance.check_cml(CmlWorld())


@pytest.mark.parametrize("world", [CoordinationWorld(), BlockingCoordinationWorld()], ids=["async", "plain"])
def test_python_coordination_conforms(world: CoordinationWorld | BlockingCoordinationWorld) -> None:
    conformance.check_coordination(world)
    keys = world.keys if isinstance(world.keys, PythonCoordination) else world.keys.keys
    deadline = time.monotonic() + 30
    while keys.watches:
        assert time.monotonic() < deadline, "every watch is closed"
        time.sleep(0.01)


class LosesSecrets(PythonControlPlane):
    """Stores ``to_dict()``, which loses the secrets."""

    async def write(self, patch: Patch, /) -> int:
        before = self._writable_record(patch.worker_id)
        await super().write(patch)
        return self._store(patch.apply_to(before).to_dict(), int(before["version"]))


class IgnoresVersion(PythonControlPlane):
    """Ignores the expected version."""

    async def write(self, patch: Patch, /) -> int:
        record = self._writable_record(patch.worker_id)
        return self._store(patch.apply_to(record).to_dict(), record["version"])


class ReportsAbsent(PythonCompute):
    """Reports instances as absent after a failed call."""

    def instances(self, region: str, ids: list[str], /) -> dict[str, Any]:
        try:
            return super().instances(region, ids)
        except lcm.PortError:
            return dict.fromkeys(ids, lcm.ABSENT)


class IgnoresToken(PythonCompute):
    """Ignores the client token."""

    def launch(self, plan: lcm.FrozenMap, /) -> str:
        self.regions[plan["region"]].launches.clear()
        return super().launch(plan)


class ReportsZero(PythonMetrics):
    """Reports missing metrics as zero."""

    def utilization(self, region: str, ids: list[str], until: datetime, /) -> Mapping[str, Any]:
        found = super().utilization(region, ids, until)
        return {id: seen or lcm.CloudMetrics(0.0, 0.0, 0.0) for id, seen in found.items()}


class ReportsRefused(PythonCml):
    """Reports an unreachable system as ``refused``."""

    def _check_available(self, at: Any) -> None:
        try:
            super()._check_available(at)
        except lcm.PortError as error:
            raise lcm.PortError(error.message, "refused") from error


class LetsAllWin(PythonCoordination):
    """Lets every claim win."""

    async def claim(self, key: str, value: str, lease_id: int, /) -> Won | Held:
        if key in self.keys:
            self.delete(key)
        return await super().claim(key, value, lease_id)


class RenewsExpired(PythonCoordination):
    """Renews expired leases."""

    async def renew(self, lease_id: int, /) -> Any:
        return (await super().renew(lease_id)) if lease_id in self.leases else timedelta(seconds=2)


WRONG: list[tuple[Any, Any, str, str]] = [
    (
        conformance.check_control_plane,
        ControlPlaneWorld(LosesSecrets()),
        "license reports move the pending token",
        '"t0ken"',
    ),
    (
        conformance.check_control_plane,
        ControlPlaneWorld(IgnoresVersion()),
        "writes are conditional on the version",
        "the version is old",
    ),
    (conformance.check_compute, ComputeWorld(ReportsAbsent()), "failed calls never mean absence", "Absent"),
    (
        conformance.check_compute,
        ComputeWorld(IgnoresToken()),
        "launches are idempotent",
        "the same plan returns the same instance",
    ),
    (
        conformance.check_metrics,
        MetricsWorld(ReportsZero()),
        "missing values are none",
        "an instance without data is found with empty metrics",
    ),
    (conformance.check_cml, CmlWorld(ReportsRefused()), "unavailable systems never refuse", "left: Refused"),
    (
        conformance.check_coordination,
        CoordinationWorld(LetsAllWin()),
        "keys are claimed once",
        "the second claim loses: Ok(Won",
    ),
    (
        conformance.check_coordination,
        CoordinationWorld(RenewsExpired()),
        "leases live until they are revoked",
        "a revoked lease is gone",
    ),
]


@pytest.mark.parametrize(("check", "world", "rule", "shown"), WRONG, ids=[row[2] for row in WRONG])
def test_violated_rule_is_named(
    check: Any, world: Any, rule: str, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError) as broken:
        check(world)
    text = str(broken.value)
    assert text.splitlines()[0].endswith(f": {rule}") and "breaks a rule of lcm.ports." in text, text
    assert shown in text and "Last calls:" in text, text
    assert "/conformance/" in text.splitlines()[-1], "the location of the rule is shown"
    assert capfd.readouterr().err == "", "the panic is not printed"


def test_unexpected_exception_is_the_cause() -> None:
    class Broken(PythonControlPlane):
        async def template(self, name: str, /) -> Any:
            raise KeyError("shelf")

    with pytest.raises(AssertionError, match=r"template\('nothing'\) → raised KeyError\('shelf'\)") as broken:
        conformance.check_control_plane(ControlPlaneWorld(Broken()))
    assert isinstance(broken.value.__cause__, KeyError)


def test_exception_of_the_world_is_raised() -> None:
    class Failing(ControlPlaneWorld):
        def put_worker(self, record: Any, /) -> None:
            raise FileNotFoundError("the shelf is gone")

        put_unreadable = put_worker

    with pytest.raises(FileNotFoundError, match="the shelf is gone"):
        conformance.check_control_plane(Failing())


def test_invalid_world_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"object does not implement lcm.testing.conformance.EventsWorld: missing events"
    ):
        conformance.check_events(object())  # type: ignore[arg-type]

    class Empty(ControlPlaneWorld):
        def control_plane(self) -> Any:
            return None

    with pytest.raises(TypeError, match=r"NoneType does not implement lcm.ports.ControlPlane: missing workers"):
        conformance.check_control_plane(Empty())

    class Vague(ComputeWorld):
        def plan(self) -> dict[str, Any]:
            return {"image_id": "ami-1"}

    with pytest.raises(ValueError, match="plan: missing field `instance_type`"):
        conformance.check_compute(Vague())


def test_coroutines_run_on_the_given_loop() -> None:
    seen: set[threading.Thread] = set()

    class Watched(PythonControlPlane):
        async def worker(self, id: str, /) -> Any:
            seen.add(threading.current_thread())
            return await super().worker(id)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        world = ControlPlaneWorld(Watched())
        await asyncio.to_thread(conformance.check_control_plane, world, loop=loop)
        with pytest.raises(RuntimeError, match="the loop that the port runs on"):
            conformance.check_control_plane(world, loop=loop)

    asyncio.run(story())
    assert seen == {threading.main_thread()}
