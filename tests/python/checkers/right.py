"""Right uses, in which type checkers find no error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_type

import lcm
from lcm.testing import FakeCloud
from lcm.types import ControllerStats, FaultAction, FaultRule, Settings, WorkerFields
from pydantic import BaseModel

NOW = datetime(2026, 2, 6, tzinfo=UTC)


@dataclass
class Row:
    """A row of a database."""

    id: str
    status: str


class Model(BaseModel):
    """A row of a database."""

    id: str
    status: str


def records(row: Mapping[str, Any]) -> None:
    fields: WorkerFields = {"desired_status": "running", "created_at": NOW}
    worker = lcm.Worker("w-1", lcm.WorkerStatus.RUNNING, **fields)
    assert_type(worker, lcm.Worker)
    assert_type(worker.status, lcm.WorkerStatus)
    assert_type(worker.replace(status="stopped", aws_tags={"team": "blue"}), lcm.Worker)
    for record in (worker, row, {"id": "w-1", "status": "running"}, Row("w-1", "running")):
        assert_type(lcm.decide(record, lcm.Observation(ec2="stopped")), lcm.Decision)
    lcm.decide(Model(id="w-1", status="running"), lcm.Observation(ec2=lcm.ABSENT))
    assert_type(lcm.Worker.from_dict(Model(id="w-1", status="running")), lcm.Worker)
    assert_type(lcm.eligible_workers([Row("w-1", "running")]), list[Row])
    lcm.decide_many([Row("w-1", "running")], ["running", "stopped"])


def calls(controller: lcm.Controller, cloud: FakeCloud) -> None:
    settings: Settings = {"LCM_RECONCILE_INTERVAL": "30", "ETCD_ENDPOINTS": "http://localhost:2379"}
    lcm.Clients(settings)
    lcm.Clients(dict(os.environ) | {"CML_PORT": "443"})
    lcm.Clients({"A_SETTING_OF_ANOTHER_VERSION": "1"})
    assert_type(cloud.clients(settings), lcm.Clients)
    assert_type(controller.stats, ControllerStats)
    assert_type(controller.stats["queue"]["active"], int)
    if shards := controller.stats.get("shards"):
        assert_type(shards[0]["fencing_token"], int | None)
    assert controller.stats["role"] == "leader"
    assert controller.stats["role"] == "standby"


def faults(cloud: FakeCloud) -> None:
    action: FaultAction = {"kind": "error", "code": "RequestLimitExceeded"}
    rule: FaultRule = {"service": "ec2", "operation": "Describe*", "probability": 0.5}
    assert_type(cloud.inject(action, **rule), int)
    cloud.inject({"kind": "custom", "name": "bad-gateway", "with": {"html": True}}, service="cml", times=1)
    cloud.inject({"kind": "drop-response"}, service="ec2", operation="RunInstances", times=3)


async def reconcile(row: Row, clients: lcm.Clients) -> lcm.ReconcileResult:
    match await lcm.reconcile_async(row, clients=clients, timeout=5):
        case lcm.ReconcileResult(outcome=lcm.Outcome.RETRY, error=lcm.CallFailure(kind="throttled")) as result:
            return result
        case result:
            return result
