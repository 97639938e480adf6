"""Records and results are types of pydantic: they have a true JSON schema, and routes return them."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import httpx
import jsonschema
import lcm
import pytest
from fastapi import Body, FastAPI
from lcm.testing import FakeCloud
from pydantic import BaseModel, TypeAdapter, ValidationError
from test_lcm_results import RESULTS

NOW = datetime(2026, 2, 6, 8, 0, tzinfo=UTC)
WORKER = lcm.Worker(
    "w-1", "running", desired_status="stopped", ec2_instance_id="i-1", version=3, created_at=NOW, cml_password="hunter2"
)
VALUES = [*RESULTS, WORKER, lcm.Worker("w-2", "pending"), lcm.CallFailure("throttled", "slow down", "RateExceeded")]
EACH = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


def decisions() -> list[lcm.Decision]:
    """Return decisions about many workers in many worlds."""
    failure = lcm.CallFailure("throttled", "slow down", "RequestLimitExceeded")
    states: list[Any] = ["pending", "running", "stopping", "stopped", "terminated", lcm.ABSENT, failure, None]
    workers = (lcm.Worker("w-1", "pending"), lcm.Worker("w-2", "running", ec2_instance_id="i-2", created_at=NOW))
    decided = [
        lcm.decide(worker.replace(status=status, desired_status=desired), lcm.Observation(ec2=state), now=NOW)
        for worker, status, desired, state in itertools.product(
            workers, lcm.WorkerStatus, [*lcm.DesiredStatus, None], states
        )
    ]
    drained = lcm.initiate_drain(lcm.Worker("w-1", "running"), reason="maintenance", requested_by="alice")
    return [*decided, drained]


@EACH
def test_json_form_is_that_of_to_dict(value: Any) -> None:
    adapter = TypeAdapter(type(value))
    assert adapter.dump_python(value, mode="json") == value.to_dict()
    assert json.loads(adapter.dump_json(value)) == value.to_dict()


@EACH
@pytest.mark.parametrize("mode", ["serialization", "validation"])
def test_json_form_matches_its_schema(value: Any, mode: Any) -> None:
    schema = TypeAdapter(type(value)).json_schema(mode=mode)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value.to_dict(), schema)
    assert len(schema["description"].split()) >= 3


@EACH
def test_json_form_is_parsed(value: Any) -> None:
    adapter = TypeAdapter(type(value))
    parsed = adapter.validate_json(adapter.dump_json(value))
    assert type(parsed) is type(value) and parsed.to_dict() == value.to_dict()
    assert adapter.validate_python(value) is value
    if value is not WORKER:
        # The password is not part of the JSON form.
        assert parsed == value and hash(parsed) == hash(value)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_schema_refuses_other_values(result: Any) -> None:
    schema = TypeAdapter(type(result)).json_schema(mode="serialization")
    for field in type(result).__match_args__:
        shown = result.to_dict()
        assert schema["properties"][field]["description"]
        for other in ({name: value for name, value in shown.items() if name != field}, {**shown, field: {"a": [1]}}):
            if other.get(field) and schema["properties"][field].get("type") == "object":
                continue
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(other, schema)


def test_every_decision_matches_the_schema() -> None:
    adapter = TypeAdapter(lcm.Decision)
    validator = jsonschema.Draft202012Validator(adapter.json_schema(mode="serialization"))
    for decision in decisions():
        validator.validate(decision.to_dict())
        assert adapter.validate_json(adapter.dump_json(decision)) == decision


def test_every_kind_of_result_matches_its_schema() -> None:
    with FakeCloud(scenario="orphans") as cloud:
        reports = [lcm.collect_orphans(clients=cloud.clients(), dry_run=dry_run) for dry_run in (True, False)]
        cloud.fail_next("DescribeInstances", times=9)
        worker = cloud.workers()[0]
        results = [lcm.reconcile(worker, clients=cloud.clients())]
        cloud.advance(600)
        results += [lcm.reconcile(worker, clients=cloud.clients()) for worker in cloud.workers()]
    assert results[0].error is not None
    values: list[Any] = [*reports, *results]
    for value in values:
        adapter = TypeAdapter(type(value))
        jsonschema.validate(value.to_dict(), adapter.json_schema(mode="serialization"))
        assert adapter.validate_json(adapter.dump_json(value)) == value


@pytest.mark.parametrize(
    ("record", "problem"),
    [({"id": "w-1"}, "status"), ({"id": "w-1", "status": "asleep"}, "accepted: pending"), (7, "dictionary")],
)
def test_records_that_cannot_be_parsed_are_refused(record: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TypeAdapter(lcm.Worker).validate_python(record)


class Report(BaseModel):
    """A model with fields of LCM."""

    worker: lcm.Worker
    last: lcm.ReconcileResult | None = None
    plan: lcm.Decision


def test_models_hold_records_and_results() -> None:
    report = Report(worker=WORKER, plan=decisions()[0])
    shown = report.model_dump(mode="json")
    assert shown["plan"] == decisions()[0].to_dict() and "hunter2" not in report.model_dump_json()
    assert Report.model_validate_json(report.model_dump_json()).plan == report.plan
    jsonschema.validate(shown, Report.model_json_schema(mode="serialization"))


def test_routes_return_and_take_results() -> None:
    app = FastAPI()
    plan = decisions()[0]

    @app.get("/plan")
    def read_plan() -> lcm.Decision:
        return plan

    @app.post("/plans")
    def echo(plans: Annotated[list[lcm.Decision], Body()]) -> list[lcm.Decision]:
        return plans

    @app.get("/worker")
    def read_worker() -> lcm.Worker:
        return WORKER

    async def story() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as client:
            assert (await client.get("/plan")).json() == plan.to_dict()
            assert (await client.post("/plans", json=[plan.to_dict()])).json() == [plan.to_dict()]
            assert (await client.post("/plans", json=[{"worker_id": 1}])).status_code == 422
            assert (await client.get("/worker")).json() == WORKER.to_dict()
            schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
            assert {"Decision", "Effect", "Reason", "ReasonCode", "Transition", "Worker"} <= schemas.keys()

    asyncio.run(story())


def test_package_does_not_import_pydantic() -> None:
    script = """
import sys
sys.modules["pydantic"] = None
import lcm
from lcm import *
print(lcm.decide(lcm.Worker("w-1", "running"), lcm.Observation(ec2="running")).outcome)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stderr) == (0, "")
