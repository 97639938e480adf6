"""Routes and a lifespan for a FastAPI service that runs a controller.

Install it with ``pip install 'lcm-sdk[fastapi]'``::

    controller = lcm.Controller(clients)
    app = FastAPI(lifespan=lifespan(controller))
    app.include_router(probe_router(controller))
    app.include_router(worker_router(clients), dependencies=[Depends(authenticated)])

Any user of the worker routes can drain workers: include them with the authentication of your service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, TypeAlias

import lcm
from lcm._extras import needed
from lcm.controller import Controller, ResourceController

with needed("FastAPI", by="lcm.integrations.fastapi", extra="fastapi"):
    from fastapi import APIRouter, Body, FastAPI, HTTPException, Response
    from fastapi.responses import JSONResponse

__all__ = ["lifespan", "probe_router", "worker_router"]

AnyController: TypeAlias = Controller | ResourceController[Any]

_STATUS = {"not_supported": 501, "conflict": 409, "refused": 409, "throttled": 429, "unreachable": 503}
"""HTTP status by kind of failure; 502 for the others."""


def lifespan(*controllers: AnyController) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan that runs controllers while the service runs.

    The start of the service does not wait for an election. Its stop waits until reconciles in progress have finished
    and leases are released.
    """

    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for controller in controllers:
                await running.enter_async_context(controller)
            yield

    return run


def probe_router(controller: Controller) -> APIRouter:
    """Return routes for probes and scrapers: ``/healthz``, ``/readyz``, ``/metrics`` and ``/stats``."""
    router = APIRouter(tags=["controller"])

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        """Report whether the controller runs. A standby is healthy."""
        health = {"running": controller.is_running, "role": controller.stats["role"]}
        return JSONResponse(health, status_code=200 if controller.is_running else 503)

    @router.get("/readyz")
    async def readyz() -> JSONResponse:
        """Report whether this instance leads and has swept the fleet, or stands by for the leader."""
        problem = controller.readiness_problem
        return JSONResponse({"ready": problem is None, "reason": problem}, status_code=200 if problem is None else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in the OpenMetrics text format."""
        return Response(controller.metrics(), media_type=controller.METRICS_CONTENT_TYPE)

    @router.get("/stats")
    async def stats() -> Mapping[str, Any]:
        """Return the statistics of the controller."""
        return controller.stats

    return router


def worker_router(
    clients: lcm.Clients | None = None, *, policy: lcm.Policy | None = None, prefix: str = "/workers"
) -> APIRouter:
    """Return routes for operations on workers: explain, reconcile, drain and cancel a drain.

    ``clients`` defaults to those of the environment. A refused operation has the status 409, a feature that the control
    plane lacks 501, and a failed call 429, 502 or 503.
    """
    router = APIRouter(prefix=prefix, tags=["workers"])

    @router.get("/{id}/explanation")
    async def explain(id: str) -> lcm.Explanation:
        """Explain what a reconcile of a worker would do now, and why. Nothing is written."""
        with _http_errors():
            return await lcm.explain_async(id, clients=clients, policy=policy)

    @router.post("/{id}/reconcile")
    async def reconcile(id: str, dry_run: bool = False) -> lcm.ReconcileResult:
        """Reconcile a worker now and return the result."""
        with _http_errors():
            return await lcm.reconcile_now_async(id, clients=clients, policy=policy, dry_run=dry_run)

    @router.post("/{id}/drain")
    async def drain(
        id: str, reason: Annotated[str, Body(min_length=1)], requested_by: Annotated[str, Body(min_length=1)]
    ) -> lcm.ReconcileResult:
        """Take a worker out of placement. The controller stops it after its last session."""
        with _http_errors():
            return await lcm.drain_async(_named(id), reason=reason, requested_by=requested_by, clients=clients)

    @router.post("/{id}/cancel-drain")
    async def cancel_drain(
        id: str, reason: Annotated[str, Body(min_length=1)], cancelled_by: Annotated[str, Body(min_length=1)]
    ) -> lcm.ReconcileResult:
        """Cancel a drain: the worker is back in service and no session is touched."""
        with _http_errors():
            return await lcm.cancel_drain_async(_named(id), reason=reason, cancelled_by=cancelled_by, clients=clients)

    return router


def _named(id: str) -> lcm.Worker:
    """Return a record with an id alone: an operation reads the rest from the control plane."""
    return lcm.Worker(id, lcm.WorkerStatus.UNKNOWN)


@contextmanager
def _http_errors() -> Iterator[None]:
    try:
        yield
    except lcm.InvalidTransition as refusal:
        raise HTTPException(409, str(refusal)) from refusal
    except lcm.PortError as failure:
        raise HTTPException(_STATUS.get(failure.kind, 502), str(failure)) from failure
