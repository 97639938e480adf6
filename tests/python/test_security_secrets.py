"""No secret appears in a repr, traceback, error, log or notebook."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

import lcm
import pytest
from lcm.ports import CmlTarget
from lcm.testing import FakeCloud

CANARY = "canary-"
RECORD: dict[str, Any] = {
    "id": "w-1",
    "status": "running",
    "desired_status": "running",
    "cml_username": "admin",
    "cml_password": f"{CANARY}password",
    "license": {
        "status": "unregistered",
        "token": f"{CANARY}token",
        "pending_token": f"{CANARY}pending",
        "pending_operation": "register",
    },
}

SECRET_SETTINGS = [
    "CONTROL_PLANE_API_KEY",
    "CML_DEFAULT_PASSWORD",
    "CML_WORKER_API_PASSWORD",
    "ETCD_PASSWORD",
    "ADMIN_KEY",
    "EVENT_SINK_URL",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
]


def shown(value: Any) -> str:
    """Return all printed forms of an object."""
    ways = [repr(value), str(value), f"{value}", f"{value!a}"]
    for method in ("_repr_html_", "_repr_markdown_", "_repr_mermaid_"):
        if hasattr(value, method):
            ways.append(str(getattr(value, method)()))
    if hasattr(value, "to_dict"):
        ways.append(json.dumps(value.to_dict(), default=repr))
    return "\n".join(ways)


def test_objects_with_secrets_can_be_printed() -> None:
    secret = lcm.Secret(f"{CANARY}secret")
    target = CmlTarget("203.0.113.7", "admin", secret)
    worker = lcm.Worker.from_dict(RECORD)
    values: list[object] = [secret, target, worker, worker.license, [secret], {"password": secret}, (target, worker)]
    values.append(lcm.decide(worker, lcm.Observation(ec2="running")))
    for value in values:
        assert CANARY not in shown(value), type(value)
    assert secret.expose() == f"{CANARY}secret"


@pytest.mark.parametrize("variable", SECRET_SETTINGS)
@pytest.mark.parametrize("value", [f"{CANARY}plain", f"{CANARY}line\nbreak", f"ftp://u:{CANARY}@host", f"{CANARY}\0"])
def test_secret_settings_are_not_shown(variable: str, value: str) -> None:
    with FakeCloud() as cloud:
        settings = {**cloud.env, variable: value}
        try:
            text = shown(lcm.Clients(settings))
        except (lcm.LcmError, ValueError) as refused:
            text = shown(refused) + "".join(traceback.format_exception(refused))
    assert CANARY not in text


def test_invalid_record_error_has_no_secrets() -> None:
    for wrong in (
        {**RECORD, "cml_password": [f"{CANARY}password"]},
        {**RECORD, "license": f"{CANARY}token"},
        {**RECORD, "license": {"token": {"of": f"{CANARY}token"}}},
        {**RECORD, "status": "asleep"},
        {**RECORD, "created_at": 7},
    ):
        with pytest.raises((lcm.LcmError, lcm.RecordWarning, ValueError, TypeError)) as refused:
            lcm.Worker.from_dict(wrong)
        assert CANARY not in shown(refused.value)


def test_reconcile_shows_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with FakeCloud() as cloud:
        instance = cloud.run()
        cloud.advance(600)
        record = {**RECORD, "ec2_instance_id": instance.id, "aws_region": "us-east-1"}
        worker = cloud.add_worker(**record)
        outcomes = [lcm.reconcile(worker, clients=cloud.clients())]
        # The first password is wrong; with the right one the license is registered.
        cloud.update_worker("w-1", cml_password=cloud.env["CML_DEFAULT_PASSWORD"])
        for _ in range(3):
            outcomes.append(lcm.reconcile(cloud.worker("w-1"), clients=cloud.clients()))
            cloud.advance(60)
        assert any("licensing" in str(request) or "register" in str(request) for request in cloud.requests())
        places = [*outcomes, cloud.requests(), cloud.events(), cloud.audit(), cloud.worker("w-1"), cloud.workers()]
        for place in places:
            assert CANARY not in shown(place)
    assert caplog.text
    assert CANARY not in caplog.text
