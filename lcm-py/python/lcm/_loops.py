"""Which loop the coroutines of ports written in Python run on, while one or several wait for passes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from lcm.clients import Clients

_lock = threading.Lock()
_waiting: WeakKeyDictionary[Clients, Counter[asyncio.AbstractEventLoop]] = WeakKeyDictionary()


@contextmanager
def answering(clients: Clients | None) -> Iterator[None]:
    """Let the ports of these clients answer on the running loop, for as long as somebody waits on it.

    If loops of several threads wait at the same time, none of them may answer: it could end while another one still
    needs it. A loop of our own does then.
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
            # With nobody left, what is done on other threads still finds the loop of the service.
            clients.use_loop(next(iter(loops), loop) if len(loops) < 2 else None)


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _waiting.clear()


os.register_at_fork(after_in_child=_forget)
