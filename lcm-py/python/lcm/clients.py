"""Clients for EC2, CloudWatch, CML and the control plane."""

from __future__ import annotations

import os
from _thread import allocate_lock

from lcm import _lcm

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from lcm.ports import Bridge, Cml, Compute, ControlPlane, Events, Metrics
    from lcm.types import Settings

__all__ = ["Clients"]


class Clients:
    """Clients for the services that a reconcile calls. Threads can share them.

    ``settings`` maps names of environment variables, such as ``CONTROL_PLANE_API_URL``, to values, and defaults to the
    environment. AWS clients use the environment of the process, unless the settings include ``AWS_ENDPOINT_URL``,
    ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``. ``control_plane``, ``compute``, ``metrics``, ``cml`` and
    ``events`` accept ports written in Python: see :mod:`lcm.ports`. Events are logged as well.

    The notes of LCM about workers are kept on the records, or in etcd if the control plane drops them. With a control
    plane written in Python they are kept on its records, unless the settings include ``NOTES_STORE``.

    >>> import lcm
    >>> lcm.Clients({"CONTROL_PLANE_API_URL": "http://localhost:8080", "CML_PORT": "many"})
    Traceback (most recent call last):
    ...
    lcm.exceptions.ConfigError: 1 setting cannot be used
      CML_PORT="many" is not accepted; accepted: a whole number from 1 to 65535
    """

    __slots__ = ("__weakref__", "_bridges", "_native")

    def __init__(
        self,
        settings: Settings | Mapping[str, str] | None = None,
        *,
        control_plane: ControlPlane | None = None,
        compute: Compute | None = None,
        metrics: Metrics | None = None,
        cml: Cml | None = None,
        events: Events | None = None,
        clock: _lcm.FakeCloud | None = None,
    ) -> None:
        given: dict[str, object] = dict(os.environ if settings is None else settings)
        variables: dict[str, str] = {}
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"the setting {name!r} is a {type(value).__name__}; accepted: text")
            variables[name] = value
        own = {"control_plane": control_plane, "compute": compute, "metrics": metrics, "cml": cml, "events": events}
        bridges = _bridges({name: port for name, port in own.items() if port is not None})
        self._bridges = list(bridges.values())
        self._native = _lcm.Clients(variables, clock, **bridges)

    def use_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Run the coroutines of ports written in Python on this loop; None selects the background loop."""
        for bridge in self._bridges:
            bridge.loop = loop

    def refuse_own_loop(self, instead: str) -> None:
        """Raise ``RuntimeError`` if blocking this thread would block the loop that the ports run on."""
        if not self._bridges:
            return
        import asyncio

        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if any(bridge.loop is running for bridge in self._bridges):
            raise RuntimeError(f"this call would block the loop that its ports run on; use `await lcm.{instead}(…)`")

    def __repr__(self) -> str:
        return "<lcm.Clients>"


def _bridges(own: Mapping[str, object]) -> dict[str, Bridge]:
    """Wrap each port written in Python in a bridge."""
    if not own:
        # Bridges import asyncio, which clients without them do not need.
        return {}
    from lcm.ports import Bridge, Cml, Compute, ControlPlane, Events, Metrics

    required = {"control_plane": ControlPlane, "compute": Compute, "metrics": Metrics, "cml": Cml, "events": Events}
    return {name: Bridge(port, required[name]) for name, port in own.items()}


# The same as `threading.Lock`, without importing that module.
_lock = allocate_lock()
_from_environment: tuple[dict[str, str], Clients] | None = None


def clients_or_environment(clients: Clients | None) -> _lcm.Clients:
    """Return the given clients, or those of the environment, which are cached until the environment changes."""
    global _from_environment
    if clients is not None:
        if not isinstance(clients, Clients):
            raise TypeError(f"clients is a {type(clients).__name__}; accepted: lcm.Clients or None")
        return clients._native
    environment = dict(os.environ)
    with _lock:
        if _from_environment is None or _from_environment[0] != environment:
            _from_environment = environment, Clients(environment)
        return _from_environment[1]._native


def _forget() -> None:
    global _from_environment, _lock
    _lock = allocate_lock()
    _from_environment = None


os.register_at_fork(after_in_child=_forget)
