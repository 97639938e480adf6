"""One pass over one worker: look, decide, do, record."""

from __future__ import annotations

from lcm import _lcm
from lcm._native import native_policy, seconds
from lcm.clients import Clients, clients_or_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from lcm._types import AnyWorker
    from lcm.outcome import ReconcileResult
    from lcm.policy import Policy

__all__ = ["reconcile", "reconcile_async"]


def reconcile(
    worker: AnyWorker,
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    dry_run: bool = False,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Bring one worker a step closer to what its owner wants, and say how that went.

    Without ``clients`` those of the environment are used. With ``dry_run`` everything is read and nothing is done.
    Other threads go on meanwhile, and Ctrl-C works.

    A call that fails is part of the outcome: RETRY, with its ``error``. Raised are :class:`lcm.ConfigError` for
    settings that cannot be used, :class:`lcm.InvalidRecord` for a record that cannot be read, and ``TimeoutError``.
    Whatever interrupts a pass, what it has begun is finished and recorded.

    >>> import lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud() as cloud:
    ...     instance = cloud.run()
    ...     cloud.advance(60)
    ...     worker = cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id)
    ...     print(lcm.reconcile(worker, clients=cloud.clients()))
    w-1: stopped → running: The instance was started from outside (EC2: running).
    """
    native = clients_or_environment(clients)
    if clients is not None:
        clients.refuse_own_loop("reconcile_async")
    return _lcm.reconcile(worker, native, native_policy(policy), dry_run, seconds(timeout))


async def reconcile_async(
    worker: AnyWorker,
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    dry_run: bool = False,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """The same as :func:`reconcile`, for asyncio. Cancelling it ends the pass before its next action."""
    import asyncio

    from lcm._loops import answering, wait

    # Making clients reads files; the loop has better things to do.
    native = await asyncio.to_thread(clients_or_environment, clients)
    limit = seconds(timeout)

    def start(done: Callable[[ReconcileResult | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_reconcile(done, worker, native, native_policy(policy), dry_run, limit)

    with answering(clients):
        return await wait(start)
