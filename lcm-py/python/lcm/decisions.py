"""Pure decisions: data in, decision and reason out. Nothing here uses the network.

>>> import lcm
>>> worker = lcm.Worker("w-1", "stopped", desired_status="running", ec2_instance_id="i-1")
>>> decision = lcm.decide(worker, lcm.Observation(ec2="stopped"))
>>> print(decision)
w-1: stopped → starting: The instance is stopped and should run: starting it.
>>> [str(effect) for effect in decision.effects]
['start_instance i-1']
>>> match decision:
...     case lcm.Decision(to_status=lcm.WorkerStatus.STARTING, reason=lcm.Reason(code="start_requested")):
...         print("the worker starts")
the worker starts
>>> {edge.to_status for edge in lcm.transitions() if edge.from_status == "draining" and edge.kind == "commanded"} == {
...     "running", "stopping", "terminating", "failed"}
True
"""

from __future__ import annotations

from collections.abc import Sequence

from lcm import _lcm
from lcm._lcm import OrphanReport, decide, transitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from typing import Any, Literal, overload

    from lcm._lcm import Decision
    from lcm._types import AnyWorker, WorkerT
    from lcm._vocabulary import AnyEc2State
    from lcm.failure import CallFailure
    from lcm.observation import Instance, Observation, Session, Template
    from lcm.policy import Policy
    from lcm.values import Absent

    _Decisions = Sequence[Decision]
else:
    _Decisions = Sequence

__all__ = [
    "Decisions",
    "backoff_delay",
    "check_drain",
    "decide",
    "decide_cancel_drain",
    "decide_many",
    "diagram",
    "eligible_workers",
    "find_orphans",
    "initiate_drain",
    "transitions",
]


class Decisions(_Decisions):
    """Decisions about a fleet. Each becomes a Python object on first access."""

    __slots__ = ("_native",)

    def __init__(self, native: _lcm.Decisions) -> None:
        self._native = native

    def __len__(self) -> int:
        return len(self._native)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int) -> Decision: ...
        @overload
        def __getitem__(self, index: slice) -> list[Decision]: ...

    def __getitem__(self, index: int | slice) -> Decision | list[Decision]:
        if isinstance(index, slice):
            return [self._native[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} decisions")
        return self._native[place]

    def changing(self) -> list[Decision]:
        """Return the decisions that change a status."""
        return [self._native[place] for place in self._native.changing()]

    def reasons(self) -> dict[str, int]:
        """Return the number of decisions per reason code."""
        return self._native.reasons()

    def __repr__(self) -> str:
        return f"<{len(self)} decisions: {self.reasons()}>"


def decide_many(
    workers: Iterable[AnyWorker],
    observations: Observation | AnyEc2State | Sequence[Observation | str],
    *,
    policy: Policy | None = None,
    now: datetime | None = None,
) -> Decisions:
    """Decide about a whole fleet: one observation for all workers, or one for each.

    An observation may be an EC2 state alone. It stands for an instance in that state, with the id and the addresses of
    the record. A dict is parsed whole, as by ``Worker.from_dict``: an unreadable id, status or instance id raises
    ``InvalidRecord``, any other unreadable value counts as None with a ``RecordWarning``, and an unknown field is kept.

    >>> import lcm
    >>> fleet = [{"id": f"w-{n}", "status": "running", "ec2_instance_id": f"i-{n}"} for n in range(3)]
    >>> lcm.decide_many(fleet, lcm.Observation(ec2="stopped"))
    <3 decisions: {'drift': 3}>
    >>> lcm.decide_many(fleet, ["running", "running", "terminated"]).reasons()
    {'gone': 1, 'in_service': 2}
    """
    return Decisions(_lcm.decide_many(workers, observations, policy, now))


def eligible_workers(workers: Iterable[WorkerT]) -> list[WorkerT]:
    """Return the workers that may take a new session: running, with no desired status of stopped or terminated.

    >>> import lcm
    >>> fleet = [lcm.Worker("w-1", "running"), lcm.Worker("w-2", "draining")]
    >>> [worker.id for worker in lcm.eligible_workers(fleet)]
    ['w-1']
    """
    listed = list(workers)
    return [worker for worker, eligible in zip(listed, _lcm.eligible(listed), strict=True) if eligible]


def initiate_drain(
    worker: AnyWorker,
    sessions: Iterable[Session | Mapping[str, Any]] = (),
    *,
    reason: str,
    requested_by: str,
    now: datetime | None = None,
) -> Decision:
    """Begin a drain. Only a running worker can be drained.

    >>> import lcm
    >>> decision = lcm.initiate_drain(lcm.Worker("w-1", "running"), reason="maintenance", requested_by="alice")
    >>> decision.to_status.value, decision.changes["desired_status"]
    ('draining', 'stopped')
    >>> lcm.initiate_drain(lcm.Worker("w-2", "stopped"), reason="maintenance", requested_by="alice")
    Traceback (most recent call last):
    ...
    lcm.exceptions.InvalidTransition: worker w-2 is stopped; only a running worker can be drained
    """
    return _lcm.initiate_drain(worker, list(sessions), reason, requested_by, now)


def decide_cancel_drain(worker: AnyWorker, *, cancelled_by: str, reason: str) -> Decision:
    """Decide to cancel a drain: the status and the desired status become running. Only a draining worker is accepted.

    >>> import lcm
    >>> worker = lcm.Worker("w-1", "draining")
    >>> lcm.decide_cancel_drain(worker, cancelled_by="alice", reason="class goes on").to_status.value
    'running'
    """
    return _lcm.decide_cancel_drain(worker, cancelled_by, reason)


def check_drain(
    worker: AnyWorker,
    sessions: Iterable[Session | Mapping[str, Any]],
    *,
    template: Template | Mapping[str, Any] | Absent | CallFailure | None = None,
    policy: Policy | None = None,
    now: datetime | None = None,
) -> Decision:
    """Decide the next step of a drain. Without a template the drain timeout is four hours.

    >>> import lcm
    >>> worker = lcm.Worker("w-1", "draining")
    >>> print(lcm.check_drain(worker, [lcm.Session("s-1", "running")]).reason)
    Sessions are still active: waiting for them (1 active, 4 h until the deadline).
    >>> lcm.check_drain(worker, []).reason.code.value
    'settle_time'
    """
    return _lcm.check_drain(worker, list(sessions), template, policy, now)


def find_orphans(
    workers: Iterable[AnyWorker],
    discovered: Iterable[Instance | Mapping[str, Any]],
    *,
    region: str,
    verified: Mapping[str, Instance | Mapping[str, Any] | AnyEc2State | Absent | CallFailure] | None = None,
    complete: bool = True,
    account_proved: bool = False,
    policy: Policy | None = None,
    now: datetime | None = None,
) -> OrphanReport:
    """Find the records of a region whose instance is gone.

    ``discovered`` holds the instances of a scan of the region. Pass ``complete=False`` if pages are missing: no record
    is an orphan then. An instance that the scan did not return must be described directly; ``verified`` maps instance
    ids to those responses, and the report's ``unverified`` lists the ids that still need one.

    If neither the scan nor a describe shows an instance of the records, the region is frozen: credentials of another
    account look the same. Pass ``account_proved=True`` if the account is known in another way. The absence of a record
    without ``aws_region`` is never believed.

    >>> import lcm
    >>> old = {"status": "running", "aws_region": "us-east-1", "created_at": "2026-02-05T08:00:00Z"}
    >>> records = [{"id": "w-1", "ec2_instance_id": "i-1", **old}, {"id": "w-2", "ec2_instance_id": "i-2", **old}]
    >>> seen = [lcm.Instance("running", id="i-1")]
    >>> lcm.find_orphans(records, seen, region="us-east-1").unverified
    ('i-2',)
    >>> lcm.find_orphans(records, seen, region="us-east-1", verified={"i-2": lcm.ABSENT}).orphans
    ('w-2',)
    """
    verdicts, unverified = _lcm.find_orphans(
        workers, list(discovered), verified or {}, region, complete, account_proved, policy, now
    )
    return OrphanReport(region, tuple(verdicts), tuple(unverified))


def diagram(format: Literal["mermaid", "dot"] = "mermaid") -> str:
    """Draw the state machine from the transition table.

    >>> print(diagram().splitlines()[0])
    stateDiagram-v2
    >>> diagram("svg")
    Traceback (most recent call last):
    ...
    ValueError: 'svg' is not a diagram format; accepted: dot, mermaid
    """
    diagrams = _lcm.diagrams()
    if format not in diagrams:
        raise ValueError(f"{format!r} is not a diagram format; accepted: {', '.join(sorted(diagrams))}")
    return diagrams[format]


def backoff_delay(retries: int, *, policy: Policy | None = None) -> float:
    """Return the delay before a retry, in seconds. The first retry is number 0.

    >>> backoff_delay(3)
    8.0
    >>> backoff_delay(-1)
    Traceback (most recent call last):
    ...
    ValueError: retries is -1; accepted: a whole number from 0 up
    """
    if retries < 0:
        raise ValueError(f"retries is {retries}; accepted: a whole number from 0 up")
    return _lcm.backoff_seconds(min(retries, 2**32 - 1), policy)
