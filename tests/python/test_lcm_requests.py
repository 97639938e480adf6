"""Requests that a control plane leaves in etcd, and the features that a port declares."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lcm
import pytest
from controller_helpers import QUICK, eventually
from lcm.testing import FakeCloud
from python_aws import PythonCompute, PythonMetrics
from python_cml import PythonCml
from python_control_plane import PythonControlPlane
from test_lcm_ports_running import running
from worker_records import RecordsPort, WorkerRepository


def put_key(cloud: FakeCloud, key: str, value: Mapping[str, Any]) -> None:
    """Put a key to the etcd of a cloud."""
    texts = {"key": key, "value": json.dumps(value)}
    body = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    endpoint = cloud.env["ETCD_ENDPOINTS"].removeprefix("http://")
    request = urllib.request.Request(f"http://{endpoint}/v3/kv/put", data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200


def test_license_operation_in_etcd_is_seen_without_a_controller(live_cloud: FakeCloud) -> None:
    instance = live_cloud.run(tags={"lcm:worker_id": "w-1"})
    known = {"status": "running", "desired_status": "running", "aws_region": "us-east-1"}
    live_cloud.add_worker(id="w-1", ec2_instance_id=instance.id, **known)
    put_key(live_cloud, "/lcm/workers/w-1/license", {"operation": "register", "token": "t0ken", "reregister": False})
    clients = live_cloud.clients()
    explanation = lcm.explain("w-1", clients=clients)
    assert explanation.record["license_operation"] == "register" and "t0ken" not in str(explanation.to_dict())
    for result in (
        lcm.reconcile(live_cloud.worker("w-1"), clients=clients, dry_run=True),
        lcm.reconcile_now("w-1", clients=clients),
    ):
        assert result.reason.code is lcm.ReasonCode.LICENSE_SUBMITTED, str(result)
        assert "t0ken" not in f"{result!r} {result.to_dict()}"
    assert live_cloud.count("register", service="cml") == 1


def test_policy_that_the_control_plane_cannot_carry_out_is_refused(live_cloud: FakeCloud) -> None:
    respect = lcm.Policy(external_stop_policy="respect")
    worker = lcm.Worker("w-1", "stopped", desired_status="stopped")

    class StoresNoDesiredStatus(PythonControlPlane):
        def capabilities(self) -> Mapping[str, bool]:
            return {"desired_status": False, "versions": True}

    pinned = live_cloud.clients({"CONTROL_PLANE_GENERATION": "original"})
    declared = live_cloud.clients(control_plane=StoresNoDesiredStatus())
    for clients in (pinned, declared):
        with pytest.raises(lcm.ConfigError, match="invalid external stop policy 'respect'"):
            lcm.reconcile(worker, policy=respect, clients=clients)
        with pytest.raises(lcm.ConfigError, match="invalid external stop policy 'respect'"):
            lcm.Controller(clients, policy=respect)
    stats = lcm.Controller(declared).stats
    assert (stats["control_plane"]["desired_status"], stats["control_plane"]["notes"]) == ("no", "unknown")
    assert stats["external_stop_policy"] == {"configured": "restart", "effective": "restart"}


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"desired": True}, "capabilities: unknown field `desired`"),
        ({"notes": "yes"}, "capabilities: .*boolean"),
    ],
)
def test_undefined_features_are_refused(live_cloud: FakeCloud, declared: Any, problem: str) -> None:
    class Wrong(PythonControlPlane):
        def capabilities(self) -> Any:
            return declared

    with pytest.raises((TypeError, ValueError), match=problem):
        live_cloud.clients(control_plane=Wrong())


def test_defaults_of_a_port_claim_nothing_was_done() -> None:
    class Minimal(lcm.ports.ControlPlane):
        def workers(self, region: str | None, with_terminated: bool, /) -> list[Any]:
            return []

        def worker(self, id: str, /) -> None:
            return None

        def write(self, patch: lcm.ports.Patch, /) -> None:
            return None

        def template(self, name: str, /) -> None:
            return None

        def sessions(self, worker_id: str, /) -> list[Any]:
            return []

    minimal = Minimal()
    calls: list[Callable[[], object]] = [
        lambda: minimal.hand_back_session("s-1"),
        lambda: minimal.retry_session("s-1", 1),
        lambda: minimal.terminate_session("s-1", "drain_timeout"),
        lambda: minimal.report_license("w-1", "start-registration"),
    ]
    for call in calls:
        with pytest.raises(lcm.PortError, match="this control plane does not support") as refused:
            call()
        assert refused.value.kind is lcm.FailureKind.REFUSED
    assert minimal.capabilities() == {}


def test_synchronization_is_cleared_on_a_python_port(live_cloud: FakeCloud) -> None:
    cleared: list[str] = []

    class Synchronized(PythonControlPlane):
        async def clear_sync(self, id: str, /) -> None:
            cleared.append(id)

    cloud = PythonCompute()
    records = Synchronized(running(cloud))
    clients = live_cloud.clients(QUICK, control_plane=records, compute=cloud, metrics=PythonMetrics(), cml=PythonCml())

    async def story() -> None:
        async with lcm.Controller(clients) as controller:
            await asyncio.wait_for(controller.ready(), 60)
            put_key(live_cloud, "/lcm/workers/w-1/sync", {"scope": "full", "reason": "manual"})
            await eventually(lambda: bool(cleared))

    asyncio.run(story())
    assert set(cleared) == {"w-1"}


def test_example_port_completes_a_license_operation(live_cloud: FakeCloud, tmp_path: Path) -> None:
    cloud, cml = PythonCompute(), PythonCml()
    repository = WorkerRepository(str(tmp_path / "fleet.db"))
    license = {"pending_operation": "register", "pending_token": "t0ken"}
    repository.add(running(cloud, cml_username="admin", cml_password="s3cret", license=license))
    clients = live_cloud.clients(control_plane=RecordsPort(repository), compute=cloud, metrics=PythonMetrics(), cml=cml)

    def one_pass() -> dict[str, Any]:
        result = lcm.reconcile_now("w-1", clients=clients)
        assert result.error is None, str(result)
        record = repository.worker("w-1")
        assert record is not None
        shown: dict[str, Any] = record["license"]
        return shown

    assert one_pass()["operation_in_progress"] and len(cml.tokens) == 1
    cml.now += timedelta(minutes=1)
    done = one_pass()
    assert (done["status"], done["token"], done["pending_operation"]) == ("registered", "t0ken", None)
    one_pass()
    assert len(cml.tokens) == 1, "the operation has ended"
