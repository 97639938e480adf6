"""What comes out: decisions, outcomes and verdicts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from lcm.data import Data, FrozenMap
from lcm.outcome import Effect, Reason, ReconcileResult, arrow
from lcm.words import Conclusion, Outcome, Requeue, WorkerStatus

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from lcm._frozen import dataclass

__all__ = ["Decision", "Effect", "OrphanReport", "Reason", "ReconcileResult", "Transition", "Verdict"]


class Transition(NamedTuple):
    """One legal change of a worker's status."""

    from_status: str
    """The status left."""
    to_status: str
    """The status entered."""
    kind: str
    """``commanded`` by the lifecycle, or ``observed`` in EC2."""
    when: str
    """When it happens, in a few words."""


@dataclass(frozen=True, slots=True)
class Decision(Data):
    """What to do about a worker, and why. Nothing has happened yet."""

    worker_id: str
    """The worker."""
    outcome: Outcome
    """How the pass ends if every action succeeds."""
    from_status: WorkerStatus
    """The status the worker is in."""
    to_status: WorkerStatus
    """The status it gets; the same if it stays."""
    transition: Transition | None
    """The change of status, if any."""
    effects: tuple[Effect, ...]
    """What to do, in order."""
    reason: Reason
    """Why."""
    requeue: Requeue
    """When to look again."""
    after: timedelta | None
    """How long until then, where ``requeue`` says *after*."""
    changes: FrozenMap
    """What else to write to the record; None clears a field."""
    notices: tuple[FrozenMap, ...]
    """What to announce once that is written."""
    counts: tuple[str, ...]
    """What to count once that is written."""

    def __str__(self) -> str:
        return f"{self.worker_id}: {arrow(self.from_status, self.to_status)}: {self.reason}"

    def _repr_html_(self) -> str:
        from lcm import _html

        return _html.card(self, self.outcome)


@dataclass(frozen=True, slots=True)
class Verdict(Data):
    """What garbage collection concluded about one record."""

    worker_id: str
    """The record."""
    ec2_instance_id: str
    """Its instance."""
    conclusion: Conclusion
    """The conclusion."""

    @property
    def why(self) -> str:
        """The conclusion in words."""
        return _WHY[self.conclusion]


_WHY = {
    Conclusion.ORPHAN: "EC2 says that the instance is gone",
    Conclusion.ALIVE: "EC2 shows the instance when asked about it; the scan looks for others",
    Conclusion.UNKNOWN: "EC2 gave no answer, so nothing is concluded",
    Conclusion.YOUNG: "EC2 may not show an instance yet that was launched so recently, or nobody knows when",
    Conclusion.PROTECTED: "the instance carries the tag lcm:protect",
    Conclusion.FROZEN: "the region is frozen: nothing at all is seen there, as with the wrong credentials",
    Conclusion.DEFERRED: "the instance is gone, but the pass has marked as many as it may; the next one goes on",
}


@dataclass(frozen=True, slots=True)
class OrphanReport(Data):
    """What garbage collection concludes about a region."""

    region: str
    """The region."""
    verdicts: tuple[Verdict, ...]
    """One for every record that the scan did not show alive."""
    unverified: tuple[str, ...]
    """Instances that the scan did not show and that EC2 was not asked about directly: ask, and judge again."""

    @property
    def orphans(self) -> tuple[str, ...]:
        """The workers to mark terminated."""
        return tuple(verdict.worker_id for verdict in self.verdicts if verdict.conclusion is Conclusion.ORPHAN)

    @property
    def is_frozen(self) -> bool:
        """Whether the region is frozen: the scan shows nothing at all, which wrong credentials would explain too."""
        return any(verdict.conclusion is Conclusion.FROZEN for verdict in self.verdicts)

    def _repr_html_(self) -> str:
        from lcm import _html_reports

        return _html_reports.orphans(self)
