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
Transition(from_status='pending', to_status='provisioning', kind='commanded', when='launched or adopted')
"""

from lcm._lcm import Worker

# As type checkers know it, without importing `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lcm import ports
    from lcm.clients import Clients
    from lcm.controller import Controller, ResourceController
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
    from lcm.orphans import DiscoveryReport, RegionReport, collect_orphans, collect_orphans_async
    from lcm.outcome import Effect, Reason, ReconcileResult
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
    from lcm.reconciling import reconcile, reconcile_async
    from lcm.results import Decision, OrphanReport, Transition, Verdict
    from lcm.sweep import SweepReport
    from lcm.words import (
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
else:
    # Imported when they are first asked for: dataclasses take a while to make, asyncio takes longer still.
    _HOMES = {
        "clients": "Clients",
        "controller": "Controller ResourceController",
        "data": "ABSENT Absent CallFailure FrozenMap Secret",
        "exceptions": "ConfigError FakeCloudError ForkError InvalidRecord InvalidTransition LcmError PortError",
        "observation": "CloudMetrics CmlMetrics FleetView IdleReport Image Instance Observation Session Template",
        "orphans": "DiscoveryReport RegionReport collect_orphans collect_orphans_async",
        "outcome": "Effect ReconcileResult Reason",
        "policy": "Backoff OrphanPolicy Policy RegionConfig ScaleDownPolicy",
        "pure": "Decisions backoff_delay cancel_drain check_drain decide decide_many diagram eligible_workers "
        "find_orphans initiate_drain transitions",
        "reconciling": "reconcile reconcile_async",
        "results": "Decision OrphanReport Transition Verdict",
        "sweep": "SweepReport",
        "words": "EffectName EffectResult Conclusion DesiredStatus Ec2State ExternalStopPolicy FailureKind Requeue "
        "Outcome ReasonCode WorkerStatus",
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
