"""LCM keeps a fleet of cloud workers honest.

Deciding is pure and needs no network:

>>> import lcm
>>> worker = lcm.Worker("w-1", "running", desired_status="running", ec2_instance_id="i-1")
>>> decision = lcm.decide(worker, lcm.Observation(ec2="stopped"))
>>> print(decision)
w-1: running → stopped: EC2 shows another state than the record: recording what EC2 says (EC2: stopped).
>>> [lcm.backoff_delay(retries) for retries in range(8)]
[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
>>> lcm.transitions()[0]
Transition(source='pending', target='provisioning', kind='commanded', when='launched or adopted')
"""

from typing import TYPE_CHECKING

from lcm._lcm import Worker
from lcm.data import ABSENT, Absent, CallFailure, FrozenMap, Secret
from lcm.exceptions import (
    ConfigError,
    FakeCloudError,
    ForkError,
    InvalidRecord,
    InvalidTransition,
    LcmError,
    PortError,
)
from lcm.observation import (
    CloudMetrics,
    CmlMetrics,
    FleetView,
    IdleReport,
    Image,
    Instance,
    Observation,
    Session,
    Template,
)
from lcm.policy import Backoff, OrphanPolicy, Policy, RegionConfig, ScaleDownPolicy
from lcm.pure import (
    Decisions,
    backoff_delay,
    cancel_drain,
    check_drain,
    decide,
    decide_many,
    diagram,
    eligible_workers,
    find_orphans,
    initiate_drain,
    transitions,
)
from lcm.results import Action, Decision, OrphanReport, Outcome, Reason, Transition, Verdict
from lcm.sweep import SweepReport
from lcm.words import (
    ActionName,
    ActionResult,
    Conclusion,
    DesiredStatus,
    Ec2State,
    ExternalStopPolicy,
    FailureKind,
    LookAgain,
    OutcomeKind,
    ReasonCode,
    WorkerStatus,
)

if TYPE_CHECKING:
    from lcm import ports
    from lcm.clients import Clients
    from lcm.controller import Controller, ResourceController
    from lcm.orphans import DiscoveryReport, RegionReport, collect_orphans, collect_orphans_async
    from lcm.reconciling import reconcile, reconcile_async
else:
    # Imported when they are first asked for: they need asyncio, which takes as long to import as all the rest.
    _LATER = {
        "Clients": "lcm.clients",
        "Controller": "lcm.controller",
        "DiscoveryReport": "lcm.orphans",
        "RegionReport": "lcm.orphans",
        "ResourceController": "lcm.controller",
        "collect_orphans": "lcm.orphans",
        "collect_orphans_async": "lcm.orphans",
        "ports": "lcm",
        "reconcile": "lcm.reconciling",
        "reconcile_async": "lcm.reconciling",
    }

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home = _LATER[name]
        found = import_module(f"lcm.{name}") if home == "lcm" else getattr(import_module(home), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted(globals().keys() | _LATER.keys())


__all__ = [
    "ABSENT",
    "Absent",
    "Action",
    "ActionName",
    "ActionResult",
    "Backoff",
    "CallFailure",
    "Clients",
    "CloudMetrics",
    "CmlMetrics",
    "Conclusion",
    "ConfigError",
    "Controller",
    "Decision",
    "Decisions",
    "DesiredStatus",
    "DiscoveryReport",
    "Ec2State",
    "ExternalStopPolicy",
    "FailureKind",
    "FakeCloudError",
    "FleetView",
    "ForkError",
    "FrozenMap",
    "IdleReport",
    "Image",
    "Instance",
    "InvalidRecord",
    "InvalidTransition",
    "LcmError",
    "LookAgain",
    "Observation",
    "OrphanPolicy",
    "OrphanReport",
    "Outcome",
    "OutcomeKind",
    "Policy",
    "PortError",
    "Reason",
    "ReasonCode",
    "RegionConfig",
    "RegionReport",
    "ResourceController",
    "ScaleDownPolicy",
    "Secret",
    "Session",
    "SweepReport",
    "Template",
    "Transition",
    "Verdict",
    "Worker",
    "WorkerStatus",
    "backoff_delay",
    "cancel_drain",
    "check_drain",
    "collect_orphans",
    "collect_orphans_async",
    "decide",
    "decide_many",
    "diagram",
    "eligible_workers",
    "find_orphans",
    "initiate_drain",
    "ports",
    "reconcile",
    "reconcile_async",
    "transitions",
]
