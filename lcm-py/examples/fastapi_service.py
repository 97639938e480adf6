"""A FastAPI service that runs an LCM controller.

It is configured by environment variables; see docs/settings.md. Run it with::

    uvicorn --app-dir lcm-py/examples fastapi_service:app

Several instances can run: one leads, the others stand by. A stop finishes the reconciles in progress and releases the
lease.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import lcm
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run the controller while the service runs."""
    async with lcm.Controller() as controller:
        app.state.controller = controller
        yield


app = FastAPI(title="fleet", lifespan=lifespan)


def controller_of(request: Request) -> lcm.Controller:
    """Return the controller of this service."""
    controller: lcm.Controller = request.app.state.controller
    return controller


@app.get("/healthz")
async def healthz(request: Request) -> JSONResponse:
    """Report whether the controller runs. A standby is healthy."""
    controller = controller_of(request)
    health = {"running": controller.is_running, "role": controller.stats["role"]}
    return JSONResponse(health, status_code=200 if controller.is_running else 503)


@app.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Report whether this instance leads and has finished its startup sweep."""
    readiness = controller_of(request).stats["readiness"]
    return JSONResponse({"readiness": readiness}, status_code=200 if readiness == "ready" else 503)


@app.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> str:
    """Return the metrics in the Prometheus text format."""
    return controller_of(request).metrics()


@app.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """Return the statistics of the controller."""
    return controller_of(request).stats


@app.post("/workers/{id}/look", status_code=202)
async def look(id: str, request: Request) -> None:
    """Reconcile a worker now."""
    if not controller_of(request).trigger(id):
        raise HTTPException(409, "another instance of this service leads; call that one")
