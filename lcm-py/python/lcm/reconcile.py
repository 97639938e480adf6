"""Reconciles one worker: observe, decide, apply, record."""

from __future__ import annotations

from lcm import _lcm
from lcm._lcm import Worker
from lcm.clients import Clients, clients_or_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from lcm._lcm import ReconcileResult
    from lcm._types import AnyWorker
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
    """Reconcile one worker: observe it, decide, carry out the effects and record the result.

    ``clients`` defaults to those of the environment. A dry run reads everything and carries out no effect. Other Python
    threads run meanwhile, and Ctrl-C interrupts the call.

    A failed call is part of the result: the outcome is RETRY, with its ``error``. Raises :class:`lcm.ConfigError` for
    settings that cannot be used, :class:`lcm.InvalidRecord` for a record that cannot be parsed, ``TypeError`` for a
    worker that is neither an :class:`lcm.Worker` nor a dict, and ``TimeoutError`` after ``timeout`` seconds. An
    interrupted reconcile still finishes and records the effect under way.

    >>> import lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud() as cloud:
    ...     instance = cloud.run()
    ...     cloud.advance(60)
    ...     worker = cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id)
    ...     print(lcm.reconcile(worker, clients=cloud.clients()))
    w-1: stopped → running: The instance was started from outside (EC2: running).
    """
    record = parsed(worker)
    native = clients_or_environment(clients)
    if clients is not None:
        clients.refuse_own_loop("reconcile_async")
    return _lcm.reconcile(record, native, policy, dry_run, timeout)


def parsed(worker: AnyWorker) -> Worker:
    """Parse the record first: clients connect to services, and their settings have errors of their own."""
    return worker if isinstance(worker, Worker) else Worker.from_dict(worker)


async def reconcile_async(
    worker: AnyWorker,
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    dry_run: bool = False,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Reconcile one worker from asyncio; see :func:`reconcile`. Cancellation stops it before the next effect."""
    import asyncio

    from lcm._asyncio import ports_on_running_loop, wait

    record = parsed(worker)
    # Creating clients reads files, which would block the loop.
    native = await asyncio.to_thread(clients_or_environment, clients)

    def start(done: Callable[[ReconcileResult | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_reconcile(done, record, native, policy, dry_run, timeout)

    with ports_on_running_loop(clients):
        return await wait(start)
