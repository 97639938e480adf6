"""Mistakes that type checkers find. Each marked line is an error, and no other line is."""

from __future__ import annotations

from dataclasses import dataclass

import lcm
from lcm.testing import FakeCloud
from lcm.types import Settings, WorkerFields

worker = lcm.Worker("w-1", "running")


def records() -> None:
    lcm.Worker("w-1", "asleep")  # wrong
    lcm.Worker("w-1", "running", desired="stopped")  # wrong
    lcm.Worker("w-1", "running", desired_status="paused")  # wrong
    lcm.Worker("w-1", "running", created_at=5)  # wrong
    lcm.Worker("w-1", "running", aws_tags=["team"])  # wrong
    worker.replace(stauts="stopped")  # wrong
    worker.status = lcm.WorkerStatus.STOPPED  # wrong
    print(worker.instance_id)  # wrong
    lcm.Worker.from_dict("w-1")  # wrong


def fields() -> None:
    changed: WorkerFields = {"aws_region": "us-east-1"}
    changed["aws_regoin"] = "us-east-1"  # wrong
    changed["is_idle_detection_enabled"] = "no"  # wrong


def decisions() -> None:
    decision = lcm.decide(worker, lcm.Observation(ec2="running"))
    lcm.decide(worker, "running")  # wrong
    lcm.Observation(ec2="sleeping")  # wrong
    lcm.Observation(ec2="running", session=[])  # wrong
    lcm.decide_many(worker, "running")  # wrong
    print(decision.reasons)  # wrong
    print(decision.to_status.code)  # wrong
    lcm.CallFailure("tired")  # wrong
    lcm.PortError("closed for lunch", "hungry")  # wrong
    lcm.Policy(external_stop_policy="ignore")  # wrong
    lcm.diagram("svg")  # wrong


def calls(clients: lcm.Clients, controller: lcm.Controller) -> None:
    lcm.reconcile(worker, clients)  # wrong
    lcm.reconcile(worker, clients=clients, timeout="soon")  # wrong
    lcm.drain(worker, clients=clients, reason="new image")  # wrong
    print(controller.stats["rloe"])  # wrong
    print(controller.stats["queue"]["waits"])  # wrong
    print(controller.stats["last_sweep"]["failed"])  # wrong
    settings: Settings = {"LCM_RECONCILE_INTERVALL": "30"}  # wrong
    settings["LCM_RECONCILE_INTERVAL"] = 30  # wrong
    lcm.Clients({"LCM_RECONCILE_INTERVAL": 30})  # wrong


def faults(cloud: FakeCloud) -> None:
    cloud.inject({"kind": "tantrum"})  # wrong
    cloud.inject({"kind": "latency", "secs": 3})  # wrong
    cloud.inject({"kind": "reset"}, servise="ec2")  # wrong
    cloud.inject({"kind": "reset"}, service="s3")  # wrong
    cloud.fail_next("DescribeInstances", service="s3")  # wrong
    cloud.add_image("ami-1", "cisco-cml2.9", sharing="secret")  # wrong


class NoRecord:
    """A class without fields."""

    id = "w-1"


@dataclass
class Row:
    """A row of a database."""

    id: str
    status: str


def other_records() -> None:
    lcm.decide(NoRecord(), lcm.Observation(ec2="running"))  # wrong
    lcm.decide(Row, "running")  # wrong
    lcm.decide(Row("w-1", "running"), lcm.Observation(ec2="running"))
