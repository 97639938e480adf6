"""How a pass over a worker went, and why."""

from __future__ import annotations

from datetime import timedelta

from lcm.data import CallFailure, Data, FrozenMap
from lcm.words import EffectName, EffectResult, Outcome, ReasonCode, Requeue, WorkerStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass, field
    from typing import Self
else:
    from lcm._frozen import dataclass, field

__all__ = ["Effect", "Reason", "ReconcileResult"]


@dataclass(frozen=True, slots=True)
class Reason(Data):
    """Why something was decided: a stable code for machines and a sentence for people."""

    code: ReasonCode
    """The code."""
    sentence: str
    """The sentence."""

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Effect(Data):
    """One thing that is planned or was done."""

    name: EffectName
    """What."""
    text: str
    """What and to whom, in a few words."""
    details: FrozenMap = field(default_factory=FrozenMap)
    """All the particulars."""
    result: EffectResult = EffectResult.PLANNED
    """How it went."""
    ec2_instance_id: str | None = None
    """The instance that was launched."""
    error: CallFailure | None = None
    """Why it failed."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ReconcileResult(Data):
    """How a pass over a worker went."""

    outcome: Outcome
    """How it ended."""
    worker_id: str
    """The worker."""
    from_status: WorkerStatus
    """The status at the beginning."""
    to_status: WorkerStatus
    """The status at the end: recorded, or planned in a dry run."""
    effects: tuple[Effect, ...]
    """What was done or is planned, in order."""
    reason: Reason
    """Why."""
    requeue: Requeue
    """When to look again."""
    after: timedelta | None = None
    """How long until then, where ``requeue`` says *after*."""
    error: CallFailure | None = None
    """The call that failed, if one decided the outcome."""
    dry_run: bool = False
    """Whether nothing was done."""

    def __str__(self) -> str:
        return f"{self.worker_id}: {arrow(self.from_status, self.to_status)}: {self.reason}"

    def raise_for_error(self) -> Self:
        """Raise the call that failed as :class:`lcm.PortError`, if one decided the outcome; give this back if none did.

        What a port that is written in Python raised is its ``__cause__``.
        """
        if self.error is not None:
            raise self.error.to_exception()
        return self

    def _repr_html_(self) -> str:
        from lcm import _html

        return _html.card(self, self.outcome)


def arrow(source: WorkerStatus, target: WorkerStatus) -> str:
    """Where a worker goes, or stays."""
    return str(source) if source == target else f"{source} → {target}"
