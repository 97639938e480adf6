"""Simulates fleets, compares policies, and decides histories again.

>>> import lcm
>>> history = lcm.simulate(20, events={"sessions_per_hour": 6}, hours=24, seed=7)
>>> history.figures.lost
0
>>> history == lcm.simulate(20, events={"sessions_per_hour": 6}, hours=24, seed=7)
True
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from lcm import _lcm
from lcm.policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime
    from typing import Any

    from lcm._lcm import Comparison, History, RecordedStep, Replay

__all__ = ["Recording", "compare", "replay", "simulate"]


def simulate(
    fleet: int | str | os.PathLike[str] | Mapping[str, Any] = 10,
    *,
    events: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    hours: float = 24.0,
    seed: int | None = None,
) -> History:
    """Simulate a fleet for some hours, and return everything that happened.

    Workers are decided about by the functions of the controller; EC2, CML, the control plane and the service that
    places sessions are models. The same version, arguments and seed give the same history. All times are seconds.

    ``fleet`` is a number of stopped workers, or a dict: ``workers``, ``running`` (how many run at the start),
    ``sessions_per_worker``, ``boot_time``, ``interval`` (of the polling), ``controllers``, ``shards``,
    ``takeover_time``, ``restart_time``, ``idle_timeout``, ``drain_timeout``, ``on_demand`` (whether
    stopped workers are requested), ``start_ahead`` (how long before a session), ``price_per_hour``.

    ``events`` is a dict:

    - ``sessions_per_hour``, with ``by_hour`` (factors by hour of the day), ``duration`` (``{"fixed": 60}``,
      ``{"exponential": 7200}`` or ``{"uniform": {"from": 60, "to": 600}}``) and ``lead``;
    - ``sessions``, a list of ``at``, ``lasts`` and ``lead``, and ``patience``, after which a session is given up;
    - ``fault_rate``, the share of reconciles that EC2 throttles; ``outages``, a list of ``from`` and ``to``, with
      ``share`` and ``failure`` (unreachable or throttled); ``call_limit``, a dict of ``per_second`` and ``burst``;
    - ``console``, a list of ``at``, ``worker`` and ``action``: start, stop or terminate;
    - ``desired``, a list of ``at``, ``worker`` and ``desired``;
    - ``drains``, a list of ``at``, ``worker`` and ``action``: begin or cancel;
    - ``licenses``, a list of ``at`` and ``worker``, with ``takes`` and ``result`` (completed or failed);
    - ``controller_failures``, a list of times.

    ``fleet`` is also a scenario of the fake cloud: the path of its file, or a dict with a list of ``workers``. It has
    events and a seed of its own; ``seed`` replaces the latter. Entries that the simulation has no model for are named
    in a ``UserWarning`` each.

    >>> import lcm
    >>> stop = {"at": 1800, "worker": "w-1", "action": "stop"}
    >>> history = lcm.simulate(1, events={"sessions": [{"at": 600, "lasts": 3600}], "console": [stop]}, hours=2)
    >>> history.figures.cut_short
    1
    >>> for step in history.why("w-1"):
    ...     print(step.from_status, step.to_status, step.reason)
    stopped starting start_requested
    starting running up

    Raises ``ValueError`` for an unknown field, a number out of range, an unknown worker, or events beside a scenario,
    and ``OSError`` if the file of a scenario cannot be read.
    """
    listed, events, seed = _inputs(fleet, events, seed)
    return _lcm.simulate(listed, events, policy, hours, seed)


def compare(
    policies: Mapping[str, Policy],
    fleet: int | str | os.PathLike[str] | Mapping[str, Any] = 10,
    *,
    events: Mapping[str, Any] | None = None,
    hours: float = 24.0,
    seed: int | None = None,
) -> Comparison:
    """Simulate the same fleet and events under each policy, and return the figures by its name.

    ``fleet`` and ``events`` are those of :func:`simulate`. Arrivals of sessions do not depend on the policy.

    >>> import lcm
    >>> thrifty = lcm.Policy(scale_down=lcm.ScaleDownPolicy(enabled=True))
    >>> policies = {"today": lcm.Policy(), "thrifty": thrifty}
    >>> compared = lcm.compare(policies, 5, events={"sessions_per_hour": 2}, hours=48)
    >>> compared.figures["thrifty"].instance_hours < compared.figures["today"].instance_hours
    True
    """
    listed, events, seed = _inputs(fleet, events, seed)
    return _lcm.compare(dict(policies), listed, events, hours, seed)


def replay(
    history: str | os.PathLike[str], *more: str | os.PathLike[str], policy: Policy | Mapping[str, Any] | None = None
) -> Replay:
    """Decide every reconcile of histories again with this version, and return the differences.

    ``history`` and ``more`` are files or directories that controllers or services wrote with ``LCM_HISTORY_DIR``.
    Without ``policy``, each decision is made under the policy it was recorded with, so that only this version can make
    a difference. A dict replaces some fields of that policy, with times in seconds; a :class:`lcm.Policy` replaces all.

    A decision that needs an observation that the history lacks is counted in ``undecided``.

    >>> import lcm, tempfile
    >>> from lcm.testing import FakeCloud
    >>> with FakeCloud() as cloud, tempfile.TemporaryDirectory() as folder:
    ...     instance = cloud.run()
    ...     cloud.advance(60)
    ...     worker = cloud.add_worker(
    ...         id="w-1", status="running", desired_status="running", ec2_instance_id=instance.id)
    ...     cloud.stop_instance(instance.id)
    ...     cloud.advance(60)
    ...     print(lcm.reconcile(worker, clients=cloud.clients({"LCM_HISTORY_DIR": folder})).reason.code)
    ...     print(lcm.replay(folder))
    ...     print(lcm.replay(folder, policy={"external_stop_policy": "respect"}).by_reason)
    drift
    1 decisions, 0 differ
    {'drift → external_stop': 1}

    Raises ``OSError`` if a history cannot be read, and ``ValueError`` for a malformed one or an invalid policy.
    """
    paths = [os.fspath(path) for path in (history, *more)]
    if policy is None or isinstance(policy, Policy):
        return _lcm.replay(paths, policy)
    return _lcm.replay(paths, None, policy)


class Recording:
    """Histories that controllers or services wrote with ``LCM_HISTORY_DIR``: files, or directories of files."""

    def __init__(self, history: str | os.PathLike[str], *more: str | os.PathLike[str]) -> None:
        self._paths = [os.fspath(path) for path in (history, *more)]

    def why(self, worker: str, at: datetime | None = None) -> tuple[RecordedStep, ...]:
        """Return the chain of recorded reconciles that led to the status of a worker at a time, by default the last.

        The chain begins with the step that took the worker out of service or rest. Each step has the observation that
        it was decided on, the reason, and the effects with their results. It is empty if nothing of the worker was
        recorded up to that time.

        >>> import lcm, tempfile
        >>> from lcm.testing import FakeCloud
        >>> with FakeCloud() as cloud, tempfile.TemporaryDirectory() as folder:
        ...     worker = cloud.add_worker(id="w-1", status="stopped", desired_status="terminated")
        ...     result = lcm.reconcile(worker, clients=cloud.clients({"LCM_HISTORY_DIR": folder}))
        ...     [step] = lcm.Recording(folder).why("w-1")
        >>> (step.from_status, step.to_status) == (result.from_status, result.to_status)
        True

        Raises ``OSError`` if a history cannot be read, and ``ValueError`` for a malformed one or a time without a zone.
        """
        if at is not None and at.tzinfo is None:
            raise ValueError(f"invalid at {at.isoformat()}: expected a time with a zone, such as datetime.now(UTC)")
        return _lcm.why(self._paths, worker, at)

    def replay(self, *, policy: Policy | Mapping[str, Any] | None = None) -> Replay:
        """Decide every reconcile again with this version: see :func:`replay`."""
        return replay(*self._paths, policy=policy)

    def __repr__(self) -> str:
        """Show the paths."""
        return f"Recording({', '.join(map(repr, self._paths))})"


def _inputs(
    fleet: int | str | os.PathLike[str] | Mapping[str, Any], events: Mapping[str, Any] | None, seed: int | None
) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
    """Return the fleet, the events and the seed, of which a scenario has its own."""
    if isinstance(fleet, int):
        return {"workers": fleet}, events or {}, seed or 0
    if isinstance(fleet, Mapping) and isinstance(fleet.get("workers", 0), int):
        return fleet, events or {}, seed or 0
    if events is not None:
        raise ValueError("events beside a scenario, which has its own; accepted: one of them")
    scenario = fleet if isinstance(fleet, Mapping) else Path(fleet).read_text(encoding="utf-8")
    listed, own, its_seed, not_modeled = _lcm.read_scenario(scenario)
    for entry in not_modeled:
        warnings.warn(f"not simulated: {entry}", UserWarning, stacklevel=3)
    return listed, own, its_seed if seed is None else seed
