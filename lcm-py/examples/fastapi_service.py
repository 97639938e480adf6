"""A FastAPI service that owns worker records and keeps them in agreement with EC2.

The records are in SQLite, in the file that ``FLEET_DATABASE`` names; the other settings are those of docs/settings.md.
Run it with::

    FLEET_DATABASE=fleet.db uvicorn --app-dir lcm-py/examples fastapi_service:app

Several instances can share the file: one leads, the others stand by. A stop finishes the reconciles in progress and
releases the lease.
"""

from __future__ import annotations

import os
from typing import Any

import lcm
from fastapi import FastAPI, HTTPException
from lcm.integrations.fastapi import lifespan, probe_router
from pydantic import BaseModel
from worker_records import Conflict, RecordsPort, WorkerRepository

records = WorkerRepository(os.environ["FLEET_DATABASE"])
clients = lcm.Clients(control_plane=RecordsPort(records))
controller = lcm.Controller(clients)


app = FastAPI(title="fleet", lifespan=lifespan(controller))
app.include_router(probe_router(controller))


class NewWorker(BaseModel):
    """A worker to launch."""

    id: str
    template_name: str
    aws_region: str


class Template(BaseModel):
    """Launch parameters that workers share."""

    instance_type: str


def record_of(id: str) -> dict[str, Any]:
    """Return the record of a worker."""
    record = records.worker(id)
    if record is None:
        raise HTTPException(404, f"there is no worker {id}")
    return record


@app.put("/templates/{name}", status_code=204)
async def put_template(name: str, template: Template) -> None:
    """Store a template."""
    records.put_template({"name": name, **template.model_dump()})


@app.post("/workers", status_code=201)
async def add_worker(worker: NewWorker) -> lcm.Worker:
    """Create a worker. The controller launches its instance."""
    try:
        record = records.add({**worker.model_dump(), "status": "pending", "desired_status": "running"})
    except Conflict as conflict:
        raise HTTPException(409, str(conflict)) from conflict
    controller.trigger(worker.id)
    return lcm.Worker.from_dict(record)


@app.get("/workers/{id}")
async def worker(id: str) -> lcm.Worker:
    """Return a record, without its passwords."""
    return lcm.Worker.from_dict(record_of(id))


@app.put("/workers/{id}/desired-status")
async def desire(id: str, desired_status: lcm.DesiredStatus) -> lcm.Worker:
    """Request a status. The controller brings the worker there."""
    try:
        record = records.save({**record_of(id), "desired_status": desired_status})
    except Conflict as conflict:
        raise HTTPException(409, str(conflict)) from conflict
    controller.trigger(id)
    return lcm.Worker.from_dict(record)


@app.post("/workers/{id}/reconcile")
async def reconcile(id: str, dry_run: bool = False) -> lcm.ReconcileResult:
    """Reconcile a worker now and return the result."""
    return await lcm.reconcile_async(record_of(id), clients=clients, dry_run=dry_run)


@app.post("/workers/{id}/drain")
async def drain(id: str, reason: str, requested_by: str) -> lcm.ReconcileResult:
    """Take a worker out of placement. The controller stops it after its last session."""
    try:
        return await lcm.drain_async(record_of(id), reason=reason, requested_by=requested_by, clients=clients)
    except lcm.InvalidTransition as refusal:
        raise HTTPException(409, str(refusal)) from refusal


@app.get("/workers/{id}/decision")
async def decision(id: str, ec2: lcm.Ec2State) -> lcm.Decision:
    """Return the decision if EC2 showed the instance in this state. Nothing is called or written."""
    return lcm.decide(record_of(id), lcm.Observation(ec2=ec2))
