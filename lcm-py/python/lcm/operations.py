"""Operations on one worker that an operator requests: drain it, cancel its drain, reconcile it now, or explain it."""

from __future__ import annotations

from lcm import _lcm
from lcm.clients import Clients, clients_or_environment
from lcm.reconcile import parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from lcm._lcm import Explanation, ReconcileResult
    from lcm._types import AnyWorker
    from lcm.policy import Policy

__all__ = [
    "cancel_drain",
    "cancel_drain_async",
    "drain",
    "drain_async",
    "explain",
    "explain_async",
    "reconcile_now",
    "reconcile_now_async",
]


def drain(
    worker: AnyWorker,
    *,
    reason: str,
    requested_by: str,
    clients: Clients | None = None,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Take a running worker out of placement and begin its drain. Later reconciles wait for its sessions and stop it.

    ``clients`` defaults to those of the environment. Raises :class:`lcm.InvalidTransition` unless the worker is
    running, :class:`lcm.PortError` for a failed call, and ``TimeoutError`` after ``timeout`` seconds.

    >>> import lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud() as cloud:
    ...     worker = cloud.add_worker(id="w-1", status="running", desired_status="running")
    ...     print(lcm.drain(worker, reason="new image", requested_by="alice", clients=cloud.clients()))
    w-1: running → draining: A drain was asked for.
    """
    return _operate("drain", worker, requested_by, reason, clients, timeout)


def cancel_drain(
    worker: AnyWorker,
    *,
    reason: str,
    cancelled_by: str,
    clients: Clients | None = None,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Cancel a drain: the worker is back in service and no session is touched. See :func:`drain`.

    Raises :class:`lcm.InvalidTransition` unless the worker is draining, and :class:`lcm.PortError` with the kind
    ``not_supported`` if the control plane cannot cancel a drain; its message names an alternative.

    >>> import lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud(control_plane="extended") as cloud:
    ...     worker = cloud.add_worker(id="w-1", status="running", desired_status="running")
    ...     drained = lcm.drain(worker, reason="new image", requested_by="alice", clients=cloud.clients())
    ...     print(lcm.cancel_drain(worker, reason="class goes on", cancelled_by="bob", clients=cloud.clients()))
    ...     try:
    ...         lcm.cancel_drain(worker, reason="class goes on", cancelled_by="bob", clients=cloud.clients())
    ...     except lcm.InvalidTransition as refusal:
    ...         print(refusal)
    w-1: draining → running: The drain was called off: back in service.
    worker w-1 is running; only a draining worker has a drain to call off
    """
    return _operate("cancel_drain", worker, cancelled_by, reason, clients, timeout)


async def drain_async(
    worker: AnyWorker,
    *,
    reason: str,
    requested_by: str,
    clients: Clients | None = None,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Begin a drain from asyncio; see :func:`drain`.

    >>> import asyncio, lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud() as cloud:
    ...     worker = cloud.add_worker(id="w-1", status="running", desired_status="running")
    ...     drain = lcm.drain_async(worker, reason="new image", requested_by="alice", clients=cloud.clients())
    ...     print(asyncio.run(drain).to_status)
    draining
    """
    return await _operate_async("drain", worker, requested_by, reason, clients, timeout)


async def cancel_drain_async(
    worker: AnyWorker,
    *,
    reason: str,
    cancelled_by: str,
    clients: Clients | None = None,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Cancel a drain from asyncio; see :func:`cancel_drain`."""
    return await _operate_async("cancel_drain", worker, cancelled_by, reason, clients, timeout)


def reconcile_now(
    worker_id: str,
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    dry_run: bool = False,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Read the record of a worker from the control plane and reconcile it. See :func:`lcm.reconcile`.

    Raises :class:`lcm.PortError` if the worker does not exist or its record cannot be read. A call that fails later is
    part of the result.

    >>> import lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud() as cloud:
    ...     instance = cloud.run()
    ...     cloud.advance(60)
    ...     worker = cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id)
    ...     print(lcm.reconcile_now("w-1", clients=cloud.clients()))
    w-1: stopped → running: The instance was started from outside (EC2: running).
    """
    native = clients_or_environment(clients)
    if clients is not None:
        clients.refuse_own_loop("reconcile_now_async")
    return _lcm.reconcile_now(worker_id, native, policy, dry_run, timeout)


async def reconcile_now_async(
    worker_id: str,
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    dry_run: bool = False,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Read a record and reconcile it from asyncio; see :func:`reconcile_now`."""
    import asyncio

    from lcm._asyncio import ports_on_running_loop, wait

    native = await asyncio.to_thread(clients_or_environment, clients)

    def start(done: Callable[[ReconcileResult | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_reconcile_now(done, worker_id, native, policy, dry_run, timeout)

    with ports_on_running_loop(clients):
        return await wait(start)


def explain(
    worker: AnyWorker | str,
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    timeout: float | timedelta | None = None,
) -> Explanation:
    """Explain what a reconcile of a worker would do now, and why. Every lookup is made, and nothing is written.

    ``worker`` is a record, or the id of a worker, whose record is then read from the control plane.

    Raises :class:`lcm.PortError` if the worker does not exist or its record cannot be read. A lookup that fails is part
    of the explanation.

    >>> import lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud() as cloud:
    ...     instance = cloud.run()
    ...     cloud.advance(60)
    ...     worker = cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id)
    ...     explanation = lcm.explain("w-1", clients=cloud.clients())
    >>> print(explanation.plan)
    w-1: stopped → running: The instance was started from outside (EC2: running).
    >>> explanation.next["awaits"]
    'another desired status, a drain, idleness, or a change in EC2'
    """
    record = worker if isinstance(worker, str) else parsed(worker)
    native = clients_or_environment(clients)
    if clients is not None:
        clients.refuse_own_loop("explain_async")
    return _lcm.explain(record, native, policy, timeout)


async def explain_async(
    worker: AnyWorker | str,
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    timeout: float | timedelta | None = None,
) -> Explanation:
    """Explain a worker from asyncio; see :func:`explain`."""
    import asyncio

    from lcm._asyncio import ports_on_running_loop, wait

    record = worker if isinstance(worker, str) else parsed(worker)
    native = await asyncio.to_thread(clients_or_environment, clients)

    def start(done: Callable[[Explanation | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_explain(done, record, native, policy, timeout)

    with ports_on_running_loop(clients):
        return await wait(start)


def _operate(
    operation: str,
    worker: AnyWorker,
    by: str,
    reason: str,
    clients: Clients | None,
    timeout: float | timedelta | None,
) -> ReconcileResult:
    record = parsed(worker)
    native = clients_or_environment(clients)
    if clients is not None:
        clients.refuse_own_loop(f"{operation}_async")
    return _lcm.operate(operation, record, native, by, reason, timeout)


async def _operate_async(
    operation: str,
    worker: AnyWorker,
    by: str,
    reason: str,
    clients: Clients | None,
    timeout: float | timedelta | None,
) -> ReconcileResult:
    import asyncio

    from lcm._asyncio import ports_on_running_loop, wait

    record = parsed(worker)
    native = await asyncio.to_thread(clients_or_environment, clients)

    def start(done: Callable[[ReconcileResult | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_operate(done, operation, record, native, by, reason, timeout)

    with ports_on_running_loop(clients):
        return await wait(start)
