"""Runs discovery and garbage collection once: imports unknown instances and marks orphaned records terminated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from lcm import _lcm
from lcm._asyncio import ports_on_running_loop, wait
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
    """Run discovery once: import unknown instances, and mark records terminated whose instance is gone.

    A :class:`lcm.Controller` does the same every few minutes. The control plane and the settings define the regions and
    filters; ``regions`` selects some of these regions. Without a filter nothing is imported, and only the instances of
    the records are looked up.

    A record is marked terminated only after a complete scan of its region and a direct response of EC2 that the
    instance does not exist. Recent launches, protected instances and regions without any instance are left unchanged,
    and ``policy.orphans`` limits the number of records per run. Every verdict has a reason.

    ``clients`` defaults to those of the environment. A dry run reads everything and changes nothing. A failed call is
    part of the report. An interrupted run still finishes the write in progress.

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
    """Run discovery once from asyncio; see :func:`collect_orphans`. Cancellation stops it before the next record."""
    # Creating clients reads files, which would block the loop.
    native = await asyncio.to_thread(clients_or_environment, clients)
    wanted = _regions(regions)

    def start(done: Callable[[DiscoveryReport | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_collect_orphans(done, native, policy, wanted, dry_run, timeout)

    with ports_on_running_loop(clients):
        return await wait(start)


def _regions(regions: Sequence[str] | None) -> list[str] | None:
    if regions is None:
        return None
    if isinstance(regions, str) or not all(isinstance(region, str) for region in regions):
        raise TypeError(f"regions is {regions!r}; accepted: a list of names, such as ['us-east-1'], or None")
    if not regions:
        raise ValueError("regions is empty; accepted: at least one name, or None for all that are configured")
    return list(regions)
