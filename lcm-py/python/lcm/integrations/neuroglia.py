"""Runs a controller as a hosted service of neuroglia.

Install it with ``pip install 'lcm-sdk[neuroglia]'``, and add it to the application builder::

    builder = WebApplicationBuilder()
    ControllerService.configure(builder, lcm.Controller())
    app = builder.build_app_with_lifespan(title="control plane")
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, TypeAlias

from lcm._extras import needed
from lcm.controller import Controller, ResourceController

with needed("neuroglia-python 0.9", by="lcm.integrations.neuroglia", extra="neuroglia"):
    from neuroglia.hosting.abstractions import ApplicationBuilderBase, HostedService

__all__ = ["ControllerService"]

AnyController: TypeAlias = Controller | ResourceController[Any]


class ControllerService(HostedService):
    """A controller that starts and stops with its host.

    The start of the host does not wait for an election: ``await service.controller.ready()`` does. The stop of the host
    waits until the controller has finished the reconciles in progress and released its lease.
    """

    def __init__(self, controller: AnyController) -> None:
        if not isinstance(controller, Controller | ResourceController):
            found = type(controller).__name__
            raise TypeError(f"controller is a {found}; accepted: lcm.Controller or lcm.ResourceController")
        self.controller = controller
        """The controller that the service runs."""
        self._running = AsyncExitStack()
        self._started = False

    async def start_async(self) -> None:
        """Start the controller. Repeated calls have no effect."""
        if not self._started:
            self._started = True
            await self._running.enter_async_context(self.controller)

    async def stop_async(self) -> None:
        """Stop the controller and wait for its end. Has no effect on a controller that does not run."""
        await self._running.aclose()

    @classmethod
    def configure(cls, builder: ApplicationBuilderBase, controller: AnyController) -> ControllerService:
        """Add a controller to an application. Call it once per controller."""
        # A host identifies services by class: of two with the same class, only the first would start.
        own_class = type(cls.__name__, (cls,), {"__doc__": cls.__doc__})
        service: ControllerService = own_class(controller)
        builder.services.add_singleton(HostedService, singleton=service)
        return service
