"""A FastAPI service that keeps a fleet of workers honest while it serves.

What it talks to is said by the environment, as for everything of LCM. Run it with::

    uvicorn --app-dir lcm-py/examples fastapi_service:app

Several of them can run: one leads, the others stand by. A stop finishes what is under way and gives the lead up.
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
    """Run the controller for as long as the service runs."""
    async with lcm.Controller() as controller:
        app.state.controller = controller
        yield


app = FastAPI(title="fleet", lifespan=lifespan)


def controller_of(request: Request) -> lcm.Controller:
    """The controller of this service."""
    controller: lcm.Controller = request.app.state.controller
    return controller


@app.get("/healthz")
async def healthz(request: Request) -> JSONResponse:
    """Whether the controller runs; a standby is healthy too."""
    controller = controller_of(request)
    told = {"running": controller.is_running, "role": controller.stats["role"]}
    return JSONResponse(told, status_code=200 if controller.is_running else 503)


@app.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Whether this one leads and has looked at every worker."""
    readiness = controller_of(request).stats["readiness"]
    return JSONResponse({"readiness": readiness}, status_code=200 if readiness == "ready" else 503)


@app.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> str:
    """Metrics in the Prometheus text format."""
    return controller_of(request).metrics()


@app.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """Statistics of the controller."""
    return controller_of(request).stats


@app.post("/workers/{id}/look", status_code=202)
async def look(id: str, request: Request) -> None:
    """Ask for a look at a worker now."""
    if not controller_of(request).trigger(id):
        raise HTTPException(409, "another instance of this service leads; ask that one")
