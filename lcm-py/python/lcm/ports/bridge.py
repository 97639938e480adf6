"""Calls ports written in Python from Rust threads, plain and ``async`` methods alike."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
"""Result of a plain method, or awaitable result of an ``async`` method."""

_fence: ContextVar[int | None] = ContextVar("lcm_fence", default=None)


def fence() -> int | None:
    """Return the leader's fencing token inside a method that writes; None without an election.

    Each new leader has a higher token. A port that stores the highest token per worker can reject writes of a former
    leader with ``PortError("…", "conflict")``.

    >>> fence() is None
    True
    """
    return _fence.get()


class Bridge:
    """An object whose methods Rust calls."""

    def __init__(self, port: object, required: type, loop: asyncio.AbstractEventLoop | None = None) -> None:
        if isinstance(port, type):
            raise TypeError(f"{port.__name__} is a class; accepted: an instance of it")
        names = [name for name in vars(required) if not name.startswith("_")]
        missing = [name for name in names if not (_is_implemented(port, name) or _is_implemented(required, name))]
        if missing:
            module = "lcm.ports" if required.__module__.startswith("lcm.ports.") else required.__module__
            found = type(port).__name__
            raise TypeError(f"{found} does not implement {module}.{required.__name__}: missing {', '.join(missing)}")
        self._port = port
        self._required = required
        self.loop = loop
        """Loop that runs coroutines; None selects a background loop."""

    def begin(self, method: str, arguments: tuple[Any, ...], fence: int | None) -> tuple[bool, Any]:
        """Call a method. Returns whether the result is a future, and the result."""
        token = _fence.set(fence)
        try:
            # A method with a default may be missing on a port that does not inherit from the protocol.
            call = getattr(self._port, method, None) or partial(getattr(self._required, method), self._port)
            result = call(*arguments)
            if not inspect.isawaitable(result):
                return False, result
            loop = self.loop
            if loop is None or loop.is_closed() or not loop.is_running():
                loop = _background()
            # The coroutine inherits the current context, which holds the fencing token.
            future: Future[Any] = asyncio.run_coroutine_threadsafe(_awaited(result), loop)
            return True, future
        finally:
            _fence.reset(token)

    def wrap(self, port: object, required: type) -> Bridge:
        """Return a bridge to an object that this port returned, on the same loop."""
        return Bridge(port, required, self.loop)


def _is_implemented(port: object, name: str) -> bool:
    method = getattr(port, name, None)
    return callable(method) and not getattr(method, "__isabstractmethod__", False)


async def _awaited(result: Awaitable[T]) -> T:
    return await result


_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _background() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="lcm-ports", daemon=True).start()
        return _loop


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _end() -> None:
    # The Rust runtime has ended before, so no call waits for a result.
    if _loop is not None and _loop.is_running():
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all(), _loop).result(timeout=2)


def _forget() -> None:
    # The forked process has no thread for the loop.
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
# Registered before the Rust runtime exists, and therefore run after its end.
atexit.register(_end)
