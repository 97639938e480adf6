"""Awaits Rust tasks from asyncio, and selects the event loop for ports written in Python."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakKeyDictionary

from lcm import _lcm
from lcm.clients import Clients

T = TypeVar("T")

_lock = threading.Lock()
_waiting: WeakKeyDictionary[Clients, Counter[asyncio.AbstractEventLoop]] = WeakKeyDictionary()


@contextmanager
def ports_on_running_loop(clients: Clients | None) -> Iterator[None]:
    """Run the coroutines of these clients' ports on the running loop while a call waits on it.

    When loops of several threads wait at the same time, the background loop runs them: any of the others could end
    while another call still needs it.
    """
    if clients is None:
        yield
        return
    loop = asyncio.get_running_loop()
    with _lock:
        loops = _waiting.setdefault(clients, Counter())
        loops[loop] += 1
        clients.use_loop(loop if len(loops) == 1 else None)
    try:
        yield
    finally:
        with _lock:
            loops[loop] -= 1
            if not loops[loop]:
                del loops[loop]
            # After the last call, other threads still use the loop of the service.
            clients.use_loop(next(iter(loops), loop) if len(loops) < 2 else None)


Start = Callable[[Callable[[T | None, BaseException | None], None]], _lcm.Task]
"""Starts a Rust task that calls back with a result or an error."""


def begin(start: Start[T]) -> tuple[_lcm.Task, asyncio.Future[T]]:
    """Start a Rust task and return it with a future of its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def done(result: T | None, error: BaseException | None) -> None:
        # Rust calls this from another thread.
        loop.call_soon_threadsafe(finish, result, error)

    return start(done), future


async def wait(start: Start[T]) -> T:
    """Start a Rust task and wait for its result. Canceling the wait cancels the task."""
    task, future = begin(start)
    try:
        return await future
    except asyncio.CancelledError:
        task.cancel()
        raise


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _waiting.clear()


os.register_at_fork(after_in_child=_forget)
