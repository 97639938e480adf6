"""Runs discovery and garbage collection once: imports unknown instances and marks orphaned records terminated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from lcm import _lcm
from lcm._asyncio import answering, wait
from lcm._lcm import DiscoveryReport
from lcm.clients import Clients, clients_or_environment
from lcm.policy import Policy

__all__ = ["collect_orphans", "collect_orphans_async"]


def collect_orphans(
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    regions: Sequence[str] | None = None,
    dry_run: bool = False,
    timeout: float | timedelta | None = None,
) -> DiscoveryReport:
    """Look at what exists, and mark the records terminated whose instance is gone.

    This is the pass that a :class:`lcm.Controller` makes every few minutes, for a script, a job or a notebook. Which
    instances count, and where, is said by the control plane and the settings; ``regions`` narrows it down. Instances
    that nobody knows are imported.

    A mistake stays small. A record is marked only after a complete scan of its region and a direct answer of EC2 that
    there is no such instance. A launch of the last minutes, a protected instance and a region that seems empty
    altogether are left alone, and ``policy.orphans`` limits how many are marked at once. Every verdict says why.

    Without ``clients`` those of the environment are used. With ``dry_run`` everything is read and nothing is done. A
    call that fails is part of the report. Whatever interrupts a pass, the record under way is written.

    >>> import lcm
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud(scenario="orphans") as cloud:  # thirteen records, three instances
    ...     print(lcm.collect_orphans(clients=cloud.clients(), dry_run=True))
    ...     print(lcm.collect_orphans(clients=cloud.clients()))
    ...     print(lcm.collect_orphans(clients=cloud.clients()))
    us-east-1: 3 seen, orphans: 10.
    us-east-1: 3 seen, 10 marked terminated.
    us-east-1: 3 seen, 0 marked terminated.
    """
    native = clients_or_environment(clients)
    if clients is not None:
        clients.refuse_own_loop("collect_orphans_async")
    return _lcm.collect_orphans(native, policy, _regions(regions), dry_run, timeout)


async def collect_orphans_async(
    *,
    clients: Clients | None = None,
    policy: Policy | None = None,
    regions: Sequence[str] | None = None,
    dry_run: bool = False,
    timeout: float | timedelta | None = None,
) -> DiscoveryReport:
    """The same as :func:`collect_orphans`, for asyncio. Cancelling it ends the pass before its next record."""
    # Making clients reads files; the loop has better things to do.
    native = await asyncio.to_thread(clients_or_environment, clients)
    wanted = _regions(regions)

    def start(done: Callable[[DiscoveryReport | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_collect_orphans(done, native, policy, wanted, dry_run, timeout)

    with answering(clients):
        return await wait(start)


def _regions(regions: Sequence[str] | None) -> list[str] | None:
    if regions is None:
        return None
    if isinstance(regions, str) or not all(isinstance(region, str) for region in regions):
        raise TypeError(f"regions is {regions!r}; accepted: a list of names, such as ['us-east-1'], or None")
    if not regions:
        raise ValueError("regions is empty; accepted: at least one name, or None for all that are configured")
    return list(regions)
