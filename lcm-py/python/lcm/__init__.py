"""LCM keeps EC2 workers and their records in agreement.

Decisions are pure and need no network:

>>> import lcm
>>> worker = lcm.Worker("w-1", "running", desired_status="running", ec2_instance_id="i-1")
>>> decision = lcm.decide(worker, lcm.Observation(ec2="stopped"))
>>> print(decision)
w-1: running → stopped: EC2 shows another state than the record: recording what EC2 says (EC2: stopped).
>>> [lcm.backoff_delay(retries) for retries in range(8)]
[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
>>> lcm.transitions()[0]
Transition(from_status='pending', to_status='provisioning', kind='commanded', when='launched or adopted')
"""

from lcm._lcm import (
    Decision,
    DiscoveryReport,
    Effect,
    OrphanReport,
    Reason,
    ReconcileResult,
    RegionReport,
    SweepReport,
    Transition,
    Verdict,
    Worker,
    decide,
    transitions,
)

# Imported here because the module and the function have the same name: the function is `lcm.reconcile`.
from lcm.reconcile import reconcile, reconcile_async

# Type checkers treat this as true; `typing` itself takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lcm import ports
    from lcm.clients import Clients
    from lcm.controller import Controller, ResourceController
    from lcm.decisions import (
        Decisions,
        backoff_delay,
        cancel_drain,
        check_drain,
        decide_many,
        diagram,
        eligible_workers,
        find_orphans,
        initiate_drain,
    )
    from lcm.enums import (
        Conclusion,
        DesiredStatus,
        Ec2State,
        EffectName,
        EffectResult,
        ExternalStopPolicy,
        FailureKind,
        Outcome,
        ReasonCode,
        Requeue,
        WorkerStatus,
    )
    from lcm.exceptions import (
        ConfigError,
        FakeCloudError,
        ForkError,
        InvalidRecord,
        InvalidTransition,
        LcmError,
        PortError,
    )
    from lcm.failure import CallFailure
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
    from lcm.orphans import collect_orphans, collect_orphans_async
    from lcm.policy import Backoff, OrphanPolicy, Policy, RegionConfig, ScaleDownPolicy
    from lcm.values import ABSENT, Absent, FrozenMap, Secret
else:
    # Imported on first access: dataclasses and asyncio take longer to import than a worker takes to reconcile.
    _HOMES = {
        "clients": "Clients",
        "controller": "Controller ResourceController",
        "decisions": "Decisions backoff_delay cancel_drain check_drain "
        "decide_many diagram eligible_workers find_orphans initiate_drain",
        "enums": "Conclusion DesiredStatus Ec2State EffectName EffectResult "
        "ExternalStopPolicy FailureKind Outcome ReasonCode Requeue WorkerStatus",
        "exceptions": "ConfigError FakeCloudError ForkError InvalidRecord InvalidTransition LcmError PortError",
        "failure": "CallFailure",
        "observation": "CloudMetrics CmlMetrics FleetView IdleReport Image Instance Observation Session Template",
        "orphans": "collect_orphans collect_orphans_async",
        "policy": "Backoff OrphanPolicy Policy RegionConfig ScaleDownPolicy",
        "values": "ABSENT Absent FrozenMap Secret",
    }
    _LATER = {name: home for home, names in _HOMES.items() for name in names.split()}

    def __getattr__(name):
        if name in _LATER:
            found = getattr(__import__(f"lcm.{_LATER[name]}", fromlist=(name,)), name)
        elif name in _HOMES or name == "ports":
            found = __import__(f"lcm.{name}", fromlist=(name,))
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__():
        return sorted(globals().keys() | _LATER.keys() | _HOMES.keys())


__all__ = [
    "ABSENT",
    "Absent",
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
    "Effect",
    "EffectName",
    "EffectResult",
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
    "Observation",
    "OrphanPolicy",
    "OrphanReport",
    "Outcome",
    "Policy",
    "PortError",
    "Reason",
    "ReasonCode",
    "ReconcileResult",
    "RegionConfig",
    "RegionReport",
    "Requeue",
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
