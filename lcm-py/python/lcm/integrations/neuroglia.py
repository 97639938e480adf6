"""A controller as a hosted service of neuroglia: it starts and stops with the application.

Install it with ``pip install 'lcm-sdk[neuroglia]'``, and add it where the application is put together::

    builder = WebApplicationBuilder()
    ControllerService.configure(builder, lcm.Controller())
    app = builder.build_app_with_lifespan(title="control plane")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeAlias

from lcm.controller import Controller, ResourceController


@contextmanager
def _said_where_from() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"lcm.integrations.neuroglia needs neuroglia-python 0.9: pip install 'lcm-sdk[neuroglia]' ({missing})",
            name=missing.name,
        ) from missing


with _said_where_from():
    from neuroglia.hosting.abstractions import ApplicationBuilderBase, HostedService

__all__ = ["ControllerService"]

AnyController: TypeAlias = Controller | ResourceController[Any]


class ControllerService(HostedService):
    """A controller that starts and stops with its host.

    A host that starts has begun to run the controller, not yet won an election: ``await service.controller.ready()``
    waits for that. A host that stops waits until the controller has finished what is under way and given its lease up.
    """

    def __init__(self, controller: AnyController) -> None:
        if not isinstance(controller, Controller | ResourceController):
            found = type(controller).__name__
            raise TypeError(f"controller is a {found}; accepted: lcm.Controller or lcm.ResourceController")
        self.controller = controller
        """The controller."""
        self._running = AsyncExitStack()
        self._started = False

    async def start_async(self) -> None:
        """Start the controller. Again is fine."""
        if not self._started:
            self._started = True
            await self._running.enter_async_context(self.controller)

    async def stop_async(self) -> None:
        """Stop the controller and wait for its end. Again is fine, and so is a stop without a start."""
        await self._running.aclose()

    @classmethod
    def configure(cls, builder: ApplicationBuilderBase, controller: AnyController) -> ControllerService:
        """Have the application that is being built run a controller. Call it once for each controller."""
        # A host tells its services apart by their class: of two with the same one, only the first would start.
        own_class = type(cls.__name__, (cls,), {"__doc__": cls.__doc__})
        service: ControllerService = own_class(controller)
        builder.services.add_singleton(HostedService, singleton=service)
        return service
