"""A neuroglia service that owns worker records: a command handler reconciles, and the host runs the controller.

The records are in SQLite, in the file that ``FLEET_DATABASE`` names. Run it with::

    FLEET_DATABASE=fleet.db uvicorn --app-dir lcm-py/examples neuroglia_service:app
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import lcm
from fastapi import HTTPException
from lcm.integrations.neuroglia import ControllerService
from neuroglia.core import OperationResult
from neuroglia.hosting.web import WebApplicationBuilder
from neuroglia.mediation import Command, CommandHandler, Mediator
from worker_records import RecordsPort, WorkerRepository


@dataclass
class ReconcileWorker(Command[OperationResult[lcm.ReconcileResult]]):
    """Reconcile a worker now."""

    worker_id: str
    dry_run: bool = False


class ReconcileWorkerHandler(CommandHandler[ReconcileWorker, OperationResult[lcm.ReconcileResult]]):
    """Reconciles with the clients that the controller uses too."""

    def __init__(self, records: WorkerRepository, clients: lcm.Clients) -> None:
        self.records = records
        self.clients = clients

    async def handle_async(self, request: ReconcileWorker) -> OperationResult[lcm.ReconcileResult]:
        record = self.records.worker(request.worker_id)
        if record is None:
            return self.not_found(lcm.Worker, request.worker_id)
        return self.ok(await lcm.reconcile_async(record, clients=self.clients, dry_run=request.dry_run))


builder = WebApplicationBuilder()
records = WorkerRepository(os.environ["FLEET_DATABASE"])
clients = lcm.Clients(control_plane=RecordsPort(records))
builder.services.add_singleton(WorkerRepository, singleton=records)
builder.services.add_singleton(lcm.Clients, singleton=clients)
service = ControllerService.configure(builder, lcm.Controller(clients))
Mediator.configure(builder, [__name__])
app = builder.build_app_with_lifespan(title="fleet")


@app.post("/workers/{id}/reconcile")
async def reconcile(id: str, dry_run: bool = False) -> lcm.ReconcileResult:
    """Send the command to its handler."""
    mediator: Mediator = app.state.services.get_service(Mediator)
    result: OperationResult[lcm.ReconcileResult] = await mediator.execute_async(ReconcileWorker(id, dry_run))
    if result.data is None:
        raise HTTPException(result.status, result.detail)
    return result.data
