"""Dataclasses and models of pydantic are records wherever a dict is."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

import lcm
import pytest
from lcm.testing import FakeCloud
from pydantic import BaseModel, SecretStr
from python_control_plane import PythonControlPlane

NOW = datetime(2026, 2, 6, 8, 0, tzinfo=UTC)


class Status(enum.Enum):
    """Statuses as a service declares them, without text as a base class."""

    RUNNING = "running"


@dataclass
class License:
    """A part of a record."""

    status: str = "registered"


@dataclass
class Row:
    """A record as a dataclass."""

    table: ClassVar[object] = object()
    id: str
    status: Status = Status.RUNNING
    desired_status: str | None = None
    ec2_instance_id: str | None = "i-1"
    created_at: datetime | None = NOW
    cml_password: str | None = "hunter2"
    license: License = field(default_factory=License)
    aws_tags: dict[str, str] = field(default_factory=lambda: {"team": "blue"})


class LicenseModel(BaseModel):
    """A part of a record."""

    status: str = "registered"


class Model(BaseModel):
    """A record as a model of pydantic."""

    id: str
    status: Status = Status.RUNNING
    desired_status: str | None = None
    ec2_instance_id: str | None = "i-1"
    created_at: datetime | None = NOW
    cml_password: SecretStr | None = SecretStr("hunter2")
    license: LicenseModel = LicenseModel()
    aws_tags: dict[str, str] = {"team": "blue"}


EXPECTED = lcm.Worker(
    "w-1",
    "running",
    ec2_instance_id="i-1",
    created_at=NOW,
    cml_password="hunter2",
    license={"status": "registered"},
    aws_tags={"team": "blue"},
)
each_kind = pytest.mark.parametrize("record", [Row("w-1"), Model(id="w-1")], ids=["dataclass", "pydantic"])


@each_kind
def test_record_is_read_with_its_secret(record: Any) -> None:
    assert lcm.Worker.from_dict(record) == EXPECTED


@each_kind
def test_decisions_take_records(record: Any) -> None:
    seen = lcm.Observation(ec2="stopped")
    assert lcm.decide(record, seen, now=NOW) == lcm.decide(EXPECTED, seen, now=NOW)
    assert list(lcm.decide_many([record], "stopped", now=NOW)) == [lcm.decide(EXPECTED, seen, now=NOW)]
    assert lcm.eligible_workers([record]) == [record]


@each_kind
def test_calls_take_records(record: Any) -> None:
    with FakeCloud() as cloud:
        cloud.add_worker(id="w-1", status="running", ec2_instance_id="i-1")
        clients = cloud.clients()
        assert lcm.reconcile(record, clients=clients, dry_run=True).worker_id == "w-1"
        result = asyncio.run(lcm.reconcile_async(record, clients=clients, dry_run=True))
        assert result.worker_id == "w-1"
        assert lcm.drain(record, reason="new image", requested_by="alice", clients=clients).to_status == "draining"


@each_kind
def test_ports_return_records(record: Any) -> None:
    class Records(PythonControlPlane):
        async def workers(self, region: str | None, with_terminated: bool, /) -> list[Any]:
            return [record]

        async def worker(self, id: str, /) -> Any:
            return record

    async def sweep(cloud: FakeCloud) -> lcm.SweepReport:
        async with lcm.Controller(cloud.clients(control_plane=Records())) as controller:
            return await asyncio.wait_for(controller.ready(), 60)

    with FakeCloud(clock="real") as cloud:
        assert asyncio.run(sweep(cloud)).listed == 1


@pytest.mark.parametrize("kind", [Row, Model])
def test_class_of_a_record_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="accepted: "):
        lcm.Worker.from_dict(kind)


def test_model_is_no_list_of_workers() -> None:
    model: Any = Model(id="w-1")
    with pytest.raises(TypeError, match="workers is a Model; accepted: a list of lcm"):
        lcm.decide_many(model, "running")


def test_error_names_the_field_of_a_model() -> None:
    class Naive(BaseModel):
        id: str = "w-1"
        status: str = "running"
        created_at: datetime = datetime(2026, 2, 6)

    with pytest.raises(ValueError, match="created_at` is 2026-02-06 00:00:00, which has no time zone"):
        lcm.Worker.from_dict(Naive())
