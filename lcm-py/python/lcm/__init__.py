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
    Comparison,
    Decision,
    Difference,
    DiscoveryReport,
    Effect,
    Explanation,
    Figures,
    History,
    OrphanReport,
    Reason,
    ReconcileResult,
    RecordedStep,
    RegionReport,
    Replay,
    Step,
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
        check_drain,
        decide_cancel_drain,
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
        RecordWarning,
    )
    from lcm.failure import CallFailure
    from lcm.frame import Frame, from_frame, to_frame
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
    from lcm.operations import (
        cancel_drain,
        cancel_drain_async,
        drain,
        drain_async,
        explain,
        explain_async,
        reconcile_now,
        reconcile_now_async,
    )
    from lcm.orphans import collect_orphans, collect_orphans_async
    from lcm.policy import Backoff, OrphanPolicy, Policy, RegionConfig, ScaleDownPolicy
    from lcm.values import ABSENT, Absent, FrozenMap, Secret
    from lcm.versions import __version__ as __version__
    from lcm.versions import show_versions
    from lcm.what_if import Recording, compare, replay, simulate
else:
    # Imported on first access: dataclasses and asyncio take longer to import than a worker takes to reconcile.
    _HOMES = {
        "clients": "Clients",
        "controller": "Controller ResourceController",
        "decisions": "Decisions backoff_delay check_drain decide_cancel_drain "
        "decide_many diagram eligible_workers find_orphans initiate_drain",
        "enums": "Conclusion DesiredStatus Ec2State EffectName EffectResult "
        "ExternalStopPolicy FailureKind Outcome ReasonCode Requeue WorkerStatus",
        "exceptions": "ConfigError FakeCloudError ForkError InvalidRecord InvalidTransition LcmError PortError "
        "RecordWarning",
        "failure": "CallFailure",
        "frame": "Frame from_frame to_frame",
        "observation": "CloudMetrics CmlMetrics FleetView IdleReport Image Instance Observation Session Template",
        "operations": "cancel_drain cancel_drain_async drain drain_async "
        "explain explain_async reconcile_now reconcile_now_async",
        "orphans": "collect_orphans collect_orphans_async",
        "policy": "Backoff OrphanPolicy Policy RegionConfig ScaleDownPolicy",
        "values": "ABSENT Absent FrozenMap Secret",
        "versions": "__version__ show_versions",
        "what_if": "Recording compare replay simulate",
    }
    _LATER = {name: home for home, names in _HOMES.items() for name in names.split()}
    # Names before 0.1.0, with those that replace them.
    _RENAMED = {
        "Action": "Effect",
        "ActionName": "EffectName",
        "ActionResult": "EffectResult",
        "LookAgain": "Requeue",
        "OutcomeKind": "Outcome",
    }

    def __getattr__(name):
        if name in _RENAMED:
            import warnings

            # Not cached: every place that uses the old name is reported.
            new = _RENAMED[name]
            warnings.warn(f"lcm.{name} is deprecated: use lcm.{new}", DeprecationWarning, stacklevel=2)
            return globals().get(new) or __getattr__(new)
        if name in _LATER:
            found = getattr(__import__(f"lcm.{_LATER[name]}", fromlist=(name,)), name)
        elif name in _HOMES or name == "ports":
            found = __import__(f"lcm.{name}", fromlist=(name,))
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__():
        return sorted(__all__)


__all__ = [
    "ABSENT",
    "Absent",
    "Backoff",
    "CallFailure",
    "Clients",
    "CloudMetrics",
    "CmlMetrics",
    "Comparison",
    "Conclusion",
    "ConfigError",
    "Controller",
    "Decision",
    "Decisions",
    "DesiredStatus",
    "Difference",
    "DiscoveryReport",
    "Ec2State",
    "Effect",
    "EffectName",
    "EffectResult",
    "Explanation",
    "ExternalStopPolicy",
    "FailureKind",
    "FakeCloudError",
    "Figures",
    "FleetView",
    "ForkError",
    "Frame",
    "FrozenMap",
    "History",
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
    "RecordWarning",
    "RecordedStep",
    "Recording",
    "RegionConfig",
    "RegionReport",
    "Replay",
    "Requeue",
    "ResourceController",
    "ScaleDownPolicy",
    "Secret",
    "Session",
    "Step",
    "SweepReport",
    "Template",
    "Transition",
    "Verdict",
    "Worker",
    "WorkerStatus",
    "backoff_delay",
    "cancel_drain",
    "cancel_drain_async",
    "check_drain",
    "collect_orphans",
    "collect_orphans_async",
    "compare",
    "decide",
    "decide_cancel_drain",
    "decide_many",
    "diagram",
    "drain",
    "drain_async",
    "eligible_workers",
    "explain",
    "explain_async",
    "find_orphans",
    "from_frame",
    "initiate_drain",
    "ports",
    "reconcile",
    "reconcile_async",
    "reconcile_now",
    "reconcile_now_async",
    "replay",
    "show_versions",
    "simulate",
    "to_frame",
    "transitions",
]
