"""A mixed fleet of control-plane records: one worker in ten needs an action."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

NOW = datetime(2026, 2, 6, 8, 0, tzinfo=UTC)

MIX = [
    *[("running", "running", "running")] * 24,
    *[("stopped", "stopped", "stopped")] * 6,
    *[("provisioning", None, "pending")] * 2,
    *[("stopping", "stopped", "stopping")] * 2,
    *[("terminated", None, "terminated")] * 2,
    ("running", None, "stopped"),
    ("stopped", "running", "stopped"),
    ("provisioning", "running", "running"),
    ("stopping", "stopped", "running"),
]


def record(number: int, status: str, desired: str | None) -> dict[str, Any]:
    """A record with every field that the control plane writes."""
    return {
        "id": f"worker-{number:08}",
        "name": f"lab {number}",
        "status": status,
        "desired_status": desired,
        "owner_id": "team-a",
        "timeslot_start": None,
        "timeslot_end": None,
        "started_at": "2026-02-06T06:00:00+00:00",
        "ended_at": None,
        "created_at": "2026-02-06T07:55:00+00:00",
        "updated_at": "2026-02-06T07:58:00+00:00",
        "terminated_at": None,
        "ec2_instance_id": f"i-{number:017x}",
        "ip_address": None,
        "public_ip": f"203.0.113.{number % 250}",
        "private_ip": f"10.0.0.{number % 250}",
        "template_id": "t-1",
        "template_name": "metal",
        "instance_type": "m5zn.metal",
        "ami_name": None,
        "aws_region": "us-east-1",
        "cml_username": "admin",
        "cml_password": "not-shown",
        "metadata": {},
        "is_idle_detection_enabled": True,
        "refresh_requested_at": None,
        "allocated_port_count": 12,
        "available_port_count": 7988,
        "port_utilization_pct": 0.15,
        "license": {
            "status": "registered",
            "token": None,
            "pending_token": None,
            "pending_operation": None,
            "operation_in_progress": False,
        },
    }


def fleet(size: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Records, and the EC2 state of each worker's instance."""
    mix = [MIX[number % len(MIX)] for number in range(size)]
    records = [record(number, status, desired) for number, (status, desired, _) in enumerate(mix)]
    return records, [state for _, _, state in mix]
