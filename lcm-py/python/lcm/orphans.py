"""One pass of discovery and garbage collection: what exists, and which records have lost their instance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from lcm import _html_reports, _lcm
from lcm._loops import answering, wait
from lcm._native import native_policy, seconds
from lcm.clients import Clients, clients_or_environment
from lcm.data import CallFailure, Data
from lcm.policy import Policy
from lcm.results import OrphanReport
from lcm.words import Conclusion

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from lcm._frozen import dataclass

__all__ = ["DiscoveryReport", "RegionReport", "collect_orphans", "collect_orphans_async"]


@dataclass(frozen=True, slots=True)
class RegionReport(OrphanReport):
    """What a pass found and did in one region. ``verdicts`` says what was concluded about each record, and why."""

    seen: int
    """Instances that the scan showed."""
    imported: int
    """Instances that nobody knew and that got a record; in a dry run, those that would get one."""
    handed_over: tuple[str, ...]
    """Workers that an instance belongs to which their record does not know: reconcile them, and they adopt it."""
    resurrected: tuple[str, ...]
    """Workers whose instance lives although their record says terminated; unless the policy forbids it, the record
    follows."""
    terminated: tuple[str, ...]
    """Records that were marked terminated; in a dry run, none."""
    error: CallFailure | None = None
    """The first call that failed, if one did: the scan is not complete, or something could not be written."""
    dry_run: bool = False
    """Whether nothing was done on purpose."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What kept the pass from doing more, in sentences."""
        notes = []
        if self.error is not None:
            notes.append(f"A call failed: {self.error}. After a scan that is not complete nothing is concluded.")
        if self.is_frozen:
            notes.append(
                "The region is frozen: the scan shows no instance at all, as wrong credentials would make it look, but "
                f"{self._count(Conclusion.FROZEN)} records have one. It thaws when the region's subnet is visible."
            )
        if late := self._count(Conclusion.DEFERRED):
            notes.append(f"As many are marked as one pass may mark; left for the next one: {late}.")
        return tuple(notes)

    @property
    def summary(self) -> str:
        """What was found and done, in a line."""
        found = (
            (self.imported, "to import" if self.dry_run else "imported"),
            (len(self.handed_over), "to reconcile"),
            (len(self.resurrected), "alive although terminated"),
        )
        told = [f"{self.seen} seen", *(f"{count} {what}" for count, what in found if count)]
        told.append(f"orphans: {len(self.orphans)}" if self.dry_run else f"{len(self.terminated)} marked terminated")
        return ", ".join(told)

    def _repr_html_(self) -> str:
        return _html_reports.region(self)

    def __str__(self) -> str:
        return " ".join((f"{self.region}: {self.summary}.", *self.notes))

    def _count(self, conclusion: Conclusion) -> int:
        return sum(verdict.conclusion is conclusion for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class DiscoveryReport(Data):
    """What a pass of discovery and garbage collection came to."""

    regions: tuple[RegionReport, ...]
    """One for each region that was looked at."""
    error: CallFailure | None = None
    """Why nothing was done at all, if so."""
    dry_run: bool = False
    """Whether nothing was done on purpose."""

    @property
    def orphans(self) -> tuple[str, ...]:
        """The workers whose instance is gone for sure."""
        return tuple(worker for region in self.regions for worker in region.orphans)

    @property
    def terminated(self) -> tuple[str, ...]:
        """The workers whose record was marked terminated."""
        return tuple(worker for region in self.regions for worker in region.terminated)

    def __str__(self) -> str:
        if self.error is not None:
            return f"Nothing was done: {self.error}"
        return "\n".join(map(str, self.regions))

    def _repr_html_(self) -> str:
        return _html_reports.discovery(self)


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
    return _lcm.collect_orphans(native, native_policy(policy), _regions(regions), dry_run, seconds(timeout))


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
    wanted, limit = _regions(regions), seconds(timeout)

    def start(done: Callable[[DiscoveryReport | None, BaseException | None], None]) -> _lcm.Task:
        return _lcm.start_collect_orphans(done, native, native_policy(policy), wanted, dry_run, limit)

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
