# Generated from Rust by `UPDATE_DOCS=1 .venv/bin/pytest tests/python/test_stub.py`; do not edit.
"""The module `lcm._lcm`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self, SupportsFloat, SupportsIndex, Unpack, final

import lcm.frame
import lcm.observation
import lcm.policy
from lcm._types import AnyRecord, AnyWorker
from lcm._vocabulary import AnyEc2State, AnyWorkerStatus
from lcm.enums import Conclusion, DesiredStatus, EffectName, EffectResult, Outcome, ReasonCode, Requeue, WorkerStatus
from lcm.failure import CallFailure
from lcm.types import WorkerChanges, WorkerFields
from lcm.values import FrozenMap

__all__ = [
    "METRICS_CONTENT_TYPE",
    "Clients",
    "Comparison",
    "Controller",
    "Decision",
    "Decisions",
    "Difference",
    "DiscoveryReport",
    "Effect",
    "Explanation",
    "FakeCloud",
    "Figures",
    "History",
    "Observation",
    "OrphanReport",
    "Patch",
    "Policy",
    "Reason",
    "ReconcileResult",
    "RecordedStep",
    "RegionReport",
    "Replay",
    "ResourceController",
    "Step",
    "SweepReport",
    "Table",
    "Task",
    "Transition",
    "Verdict",
    "Worker",
    "backoff_seconds",
    "check_drain",
    "check_port",
    "collect_orphans",
    "compare",
    "decide",
    "decide_cancel_drain",
    "decide_many",
    "diagrams",
    "eligible",
    "explain",
    "fake_cloud_command",
    "find_orphans",
    "initiate_drain",
    "lcm_command",
    "operate",
    "read_scenario",
    "reconcile",
    "reconcile_now",
    "replay",
    "simulate",
    "start_collect_orphans",
    "start_explain",
    "start_operate",
    "start_reconcile",
    "start_reconcile_now",
    "transitions",
    "why",
    "worker_controller_command",
]
METRICS_CONTENT_TYPE: Final[str]
"Content type of the metrics of a controller."

@final
class Clients:
    """Clients for the services that a reconcile calls."""

    def __new__(
        cls,
        /,
        variables: Mapping[str, str],
        clock: FakeCloud | None = None,
        control_plane: object | None = None,
        compute: object | None = None,
        metrics: object | None = None,
        cml: object | None = None,
        events: object | None = None,
    ) -> Clients:
        """Creates clients from variables. AWS clients use the environment of the process, unless the variables include an
        endpoint and credentials. `clock` is the fake cloud that provides the time.
        """

@final
class Comparison:
    """The same fleet and events under several policies."""

    __match_args__: Final[
        tuple[Literal["version"], Literal["seed"], Literal["hours"], Literal["digest"], Literal["figures"]]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls, /, version: str, seed: int, hours: float, digest: str, figures: Mapping[str, Figures]
    ) -> Comparison: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def digest(self, /) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of fleet, events, policies, hours and seed."""

    @property
    def figures(self, /) -> Mapping[str, Figures]:
        """Figures by the name of the policy."""

    @property
    def hours(self, /) -> float:
        """Duration in hours."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def seed(self, /) -> int:
        """Seed of the random numbers."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    def to_frame(self, /) -> lcm.frame.Frame:
        """Returns the figures of each policy as a table, as `lcm.to_frame` does."""

    @property
    def version(self, /) -> str:
        """Version of LCM that decided."""

@final
class Controller:
    """A controller. It can be started once."""

    def __new__(
        cls, /, clients: Clients, policy: lcm.policy.Policy | None = None, coordination: object | None = None
    ) -> Controller: ...
    def metrics(self, /) -> str:
        """Returns the metrics in the text format of OpenMetrics."""

    def readiness_problem(self, /) -> str | None:
        """Returns why this instance is not ready, or None: see `AdminSource::readiness`."""

    def start(self, /, done: Callable[[None, BaseException | None], None]) -> Task:
        """Runs until `stop`, then calls `done(None, None)`."""

    def start_ready(self, /, done: Callable[[SweepReport | None, BaseException | None], None]) -> Task:
        """Calls `done(report, None)` after the startup sweep, or `done(None, error)` after a stop or the end of the run."""

    def stats(self, /) -> dict[str, Any]:
        """Returns statistics: role, readiness, queue and counters."""

    def stop(self, /) -> None:
        """Requests a stop: reconciles in progress finish, then the lease is released."""

    def trigger(self, /, worker: str) -> bool:
        """Requests a reconcile of a worker now. False while another controller leads."""

@final
class Decision:
    """The next step for a worker, and the reason. Deciding has no effect: nothing was called or written."""

    __match_args__: Final[
        tuple[
            Literal["worker_id"],
            Literal["outcome"],
            Literal["from_status"],
            Literal["to_status"],
            Literal["transition"],
            Literal["effects"],
            Literal["reason"],
            Literal["requeue"],
            Literal["after"],
            Literal["changes"],
            Literal["notices"],
            Literal["counts"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        worker_id: str,
        outcome: Outcome,
        from_status: WorkerStatus,
        to_status: WorkerStatus,
        transition: Transition | None,
        effects: tuple[Effect, ...],
        reason: Reason,
        requeue: Requeue,
        after: timedelta | None,
        changes: FrozenMap,
        notices: tuple[FrozenMap, ...],
        counts: tuple[str, ...],
    ) -> Decision: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def after(self, /) -> timedelta | None:
        """Delay as a timedelta if `requeue` is `after`, else None."""

    @property
    def changes(self, /) -> FrozenMap:
        """Other record fields to write, by their names on the record; None clears a field."""

    @property
    def counts(self, /) -> tuple[str, ...]:
        """Counters to raise after the record is written."""

    @property
    def effects(self, /) -> tuple[Effect, ...]:
        """Effects to carry out, in order (`Effect`)."""

    @property
    def from_status(self, /) -> WorkerStatus:
        """Status the worker is in (`WorkerStatus`)."""

    @property
    def notices(self, /) -> tuple[FrozenMap, ...]:
        """Events to publish after the record is written."""

    @property
    def outcome(self, /) -> Outcome:
        """Outcome of the reconcile if every effect succeeds (`Outcome`)."""

    @property
    def reason(self, /) -> Reason:
        """Reason for the decision (`Reason`)."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def requeue(self, /) -> Requeue:
        """When to reconcile the worker again (`Requeue`)."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def to_status(self, /) -> WorkerStatus:
        """Status the worker gets (`WorkerStatus`); equal to `from_status` if it stays."""

    @property
    def transition(self, /) -> Transition | None:
        """The change of status (`Transition`), or None if the status stays."""

    @property
    def worker_id(self, /) -> str:
        """Id of the worker."""

@final
class Decisions:
    """Decisions about a fleet, converted to Python when one is read."""

    def __getitem__(self, index: SupportsIndex, /) -> Decision: ...
    def __len__(self, /) -> int: ...
    def changing(self, /) -> list[int]:
        """Returns the indices of the decisions that change a status."""

    def reasons(self, /) -> dict[str, int]:
        """Returns the number of decisions by reason code."""

@final
class Difference:
    """A decision of a history that another version or policy makes differently."""

    __match_args__: Final[
        tuple[
            Literal["at"],
            Literal["worker_id"],
            Literal["status"],
            Literal["recorded_reason"],
            Literal["replayed_reason"],
            Literal["recorded_status"],
            Literal["replayed_status"],
            Literal["no_longer"],
            Literal["newly"],
            Literal["text"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        at: datetime,
        worker_id: str,
        status: WorkerStatus,
        recorded_reason: str,
        replayed_reason: str,
        recorded_status: WorkerStatus,
        replayed_status: WorkerStatus,
        no_longer: tuple[Mapping[str, Any], ...],
        newly: tuple[Mapping[str, Any], ...],
        text: str,
    ) -> Difference: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    @property
    def at(self, /) -> datetime:
        """The time of the decision."""

    @property
    def newly(self, /) -> tuple[Mapping[str, Any], ...]:
        """Effects of the replayed decision only, as dicts."""

    @property
    def no_longer(self, /) -> tuple[Mapping[str, Any], ...]:
        """Effects of the recorded decision only, as dicts."""

    @property
    def recorded_reason(self, /) -> str:
        """Reason code of the recorded decision."""

    @property
    def recorded_status(self, /) -> WorkerStatus:
        """Status after the recorded decision."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def replayed_reason(self, /) -> str:
        """Reason code of the replayed decision."""

    @property
    def replayed_status(self, /) -> WorkerStatus:
        """Status after the replayed decision."""

    @property
    def status(self, /) -> WorkerStatus:
        """Status on its record."""

    @property
    def text(self, /) -> str:
        """Everything that differs, in one line."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def worker_id(self, /) -> str:
        """Id of the worker."""

@final
class DiscoveryReport:
    """Result of one run of discovery and garbage collection."""

    __match_args__: Final[tuple[Literal["regions"], Literal["error"], Literal["dry_run"]]]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls, /, regions: tuple[RegionReport, ...], error: CallFailure | None = None, dry_run: bool = ...
    ) -> DiscoveryReport: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def dry_run(self, /) -> bool:
        """Whether this was a dry run, in which nothing is written."""

    @property
    def error(self, /) -> CallFailure | None:
        """The failed call (`CallFailure`) that kept the run from scanning any region, or None."""

    @property
    def orphans(self, /) -> tuple[str, ...]:
        """Ids of the workers whose instance is gone, in all regions."""

    @property
    def regions(self, /) -> tuple[RegionReport, ...]:
        """One report for each scanned region (`RegionReport`)."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def terminated(self, /) -> tuple[str, ...]:
        """Ids of the workers whose record was marked terminated, in all regions."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

@final
class Effect:
    """One effect that is planned or was carried out."""

    __match_args__: Final[
        tuple[
            Literal["name"],
            Literal["text"],
            Literal["details"],
            Literal["result"],
            Literal["ec2_instance_id"],
            Literal["error"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        name: EffectName,
        text: str,
        details: FrozenMap = ...,
        result: EffectResult = ...,
        ec2_instance_id: str | None = None,
        error: CallFailure | None = None,
    ) -> Effect: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    @property
    def details(self, /) -> FrozenMap:
        """Parameters of the effect, as an immutable mapping."""

    @property
    def ec2_instance_id(self, /) -> str | None:
        """Instance that a launch created, or None."""

    @property
    def error(self, /) -> CallFailure | None:
        """The failed call (`CallFailure`) of a failed effect, or None."""

    @property
    def name(self, /) -> EffectName:
        """Kind of effect (`EffectName`)."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def result(self, /) -> EffectResult:
        """Result (`EffectResult`): `planned` in a decision or a dry run."""

    @property
    def text(self, /) -> str:
        """The effect and its subject in a few words, such as `start_instance i-1`."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

@final
class Explanation:
    """The plan of a reconcile of one worker, the observations it rests on, and changes that would lead to another one."""

    __match_args__: Final[
        tuple[
            Literal["at"], Literal["record"], Literal["observed"], Literal["plan"], Literal["what_if"], Literal["next"]
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        at: datetime,
        record: FrozenMap,
        observed: FrozenMap,
        plan: ReconcileResult,
        what_if: tuple[FrozenMap, ...],
        next: FrozenMap,
    ) -> Explanation: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str:
        """Several lines: the plan, the observations, the next reconcile, and what would change the decision."""

    @property
    def at(self, /) -> datetime:
        """When the worker was observed."""

    @property
    def next(self, /) -> FrozenMap:
        """When the worker is reconciled next and what it waits for: `requeue`, `when`, `at` and `awaits`."""

    @property
    def observed(self, /) -> FrozenMap:
        """The lookups that the decision needed, each with its response in short."""

    @property
    def plan(self, /) -> ReconcileResult:
        """The plan (`ReconcileResult`): a dry run."""

    @property
    def record(self, /) -> FrozenMap:
        """The record, without secrets and free-form data."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def what_if(self, /) -> tuple[FrozenMap, ...]:
        """Changes that would lead to another decision, each with `if`, `then` and `to_status`."""

@final
class FakeCloud:
    """A running fake cloud."""

    def __new__(
        cls,
        /,
        clock: str,
        seed: SupportsIndex,
        delays: str,
        leases: str,
        scenario: str | Mapping[str, Any] | None = None,
        control_plane: str | None = None,
        restore: str | None = None,
    ) -> FakeCloud:
        """Starts a fake cloud on free ports."""

    def add_account(self, /, id: str, access_key: str) -> dict[str, str]:
        """Adds an account and returns the environment variables that replace those of the default account."""

    def add_image(
        self, /, region: str, id: str, name: str, creation_date: datetime | None, owner: str | None, sharing: str
    ) -> None: ...
    def add_session(self, /, fields: Mapping[str, Any]) -> dict[str, Any]: ...
    def add_template(self, /, fields: Mapping[str, Any]) -> dict[str, Any]: ...
    def add_worker(self, /, fields: Mapping[str, Any]) -> dict[str, Any]: ...
    def advance(
        self, /, seconds: SupportsFloat | SupportsIndex, controllers: Sequence[Controller | ResourceController]
    ) -> None:
        """Advances the clock, with the timers of controllers."""

    def audit(self, /) -> list[dict[str, Any]]: ...
    def branch(self, /) -> FakeCloud:
        """Starts another cloud that goes on from this one."""

    def cancel_drain(self, /, id: str, reason: str, cancelled_by: str) -> dict[str, Any]: ...
    def check_called(self, /, filter: Mapping[str, Any], times: SupportsIndex | None) -> str | None:
        """Returns why a request was not made as often as expected; None if it was."""

    def clear_faults(self, /) -> None: ...
    def count(self, /, filter: Mapping[str, Any]) -> int: ...
    def drain(self, /, id: str, reason: str, requested_by: str) -> dict[str, Any]: ...
    def endpoints(self, /) -> dict[str, Any]:
        """Returns the URLs of the services."""

    def environment(self, /) -> dict[str, str]:
        """Returns the environment variables that direct real clients and `lcm` to this cloud."""

    def events(self, /) -> list[dict[str, Any]]: ...
    def find_instance(self, /, region: str | None, instance: str) -> tuple[str, str]:
        """Returns the region and the id of an instance, by its id or name, or by its worker."""

    def forget_requests(self, /) -> None: ...
    def inject(self, /, rule: Mapping[str, Any]) -> int: ...
    def instances(self, /, region: str) -> list[dict[str, Any]]: ...
    @property
    def is_running(self, /) -> bool: ...
    def masked(self, /) -> list[dict[str, Any]]:
        """Returns the secrets that the snapshot did not hold from which the cloud started."""

    def move_session(self, /, id: str, status: str) -> dict[str, Any]: ...
    def now(self, /) -> datetime: ...
    def request_lines(self, /, limit: SupportsIndex) -> tuple[list[str], int]:
        """Returns the latest requests, one line each, and the number of all."""

    def requests(self, /, filter: Mapping[str, Any]) -> list[dict[str, Any]]: ...
    def reset(self, /, empty: bool) -> None:
        """Restores the scenario of the start, or an empty cloud."""

    def restore(self, /, snapshot: str) -> list[dict[str, Any]]:
        """Replaces the whole cloud, and returns the secrets that the snapshot does not hold."""

    def run(self, /, region: str, tags: Sequence[tuple[str, str]], account: str | None = None) -> dict[str, Any]: ...
    def sessions(self, /) -> list[dict[str, Any]]: ...
    def set_metric(
        self, /, region: str, namespace: str, name: str, instance: str, value: SupportsFloat | SupportsIndex
    ) -> None: ...
    def settle(self, /) -> None:
        """Waits until every CML server matches the state of its instance."""

    def snapshot(self, /, secrets: bool) -> str:
        """Returns the whole cloud as JSON."""

    def start_advance(
        self,
        /,
        seconds: SupportsFloat | SupportsIndex,
        controllers: Sequence[Controller | ResourceController],
        done: Callable[[None, BaseException | None], None],
    ) -> Task:
        """Advances the clock as `advance` does, then calls `done(None, None)`."""

    def start_instance(self, /, region: str, id: str) -> None: ...
    def stop(self, /) -> None:
        """Stops every service. Repeated calls have no effect."""

    def stop_instance(self, /, region: str, id: str) -> None: ...
    def summary(self, /) -> str:
        """Describes the cloud in a few lines."""

    def tag(self, /, region: str, id: str, key: str, value: str) -> None: ...
    def terminate_instance(self, /, region: str, id: str) -> None: ...
    def update_worker(self, /, id: str, fields: Mapping[str, Any]) -> dict[str, Any]: ...
    def worker(self, /, id: str) -> dict[str, Any]: ...
    def workers(self, /) -> list[dict[str, Any]]: ...

@final
class Figures:
    """Totals of a simulation. Times are seconds."""

    __match_args__: Final[
        tuple[
            Literal["requested"],
            Literal["served"],
            Literal["delayed"],
            Literal["given_up"],
            Literal["cut_short"],
            Literal["handed_back"],
            Literal["mean_delay"],
            Literal["longest_delay"],
            Literal["instance_hours"],
            Literal["cost"],
            Literal["mean_time_to_running"],
            Literal["longest_time_to_running"],
            Literal["starts"],
            Literal["reconciles"],
            Literal["describes"],
            Literal["leader_changes"],
            Literal["calls"],
            Literal["scale_down"],
            Literal["reasons"],
            Literal["text"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        requested: int,
        served: int,
        delayed: int,
        given_up: int,
        cut_short: int,
        handed_back: int,
        mean_delay: float,
        longest_delay: float,
        instance_hours: float,
        cost: float,
        mean_time_to_running: float | None,
        longest_time_to_running: float | None,
        starts: int,
        reconciles: int,
        describes: int,
        leader_changes: int,
        calls: Mapping[EffectName, int],
        scale_down: Mapping[str, int],
        reasons: Mapping[ReasonCode, int],
        text: str,
    ) -> Figures: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    @property
    def calls(self, /) -> Mapping[EffectName, int]:
        """Number of effects by name."""

    @property
    def cost(self, /) -> float:
        """Price of these hours."""

    @property
    def cut_short(self, /) -> int:
        """Sessions that were ended by the end of their worker or of its drain."""

    @property
    def delayed(self, /) -> int:
        """Sessions that began more than a minute late."""

    @property
    def describes(self, /) -> int:
        """Number of calls that describe instances, polls included."""

    @property
    def given_up(self, /) -> int:
        """Sessions that were given up while they waited."""

    @property
    def handed_back(self, /) -> int:
        """How often a drain handed a session back before it began."""

    @property
    def instance_hours(self, /) -> float:
        """Hours that instances were running."""

    @property
    def leader_changes(self, /) -> int:
        """How often a leader was replaced or restarted."""

    @property
    def longest_delay(self, /) -> float:
        """Longest delay of a session that began."""

    @property
    def longest_time_to_running(self, /) -> float | None:
        """Longest time from the wish for a worker to its being in service."""

    @property
    def lost(self, /) -> int:
        """Sessions that were given up or cut short."""

    @property
    def mean_delay(self, /) -> float:
        """Mean delay of the sessions that began."""

    @property
    def mean_time_to_running(self, /) -> float | None:
        """Mean time from the wish for a worker to its being in service; None if none came up."""

    @property
    def reasons(self, /) -> Mapping[ReasonCode, int]:
        """Number of reconciles by reason."""

    @property
    def reconciles(self, /) -> int:
        """Number of reconciles that were carried out."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def requested(self, /) -> int:
        """Sessions that were requested."""

    @property
    def scale_down(self, /) -> Mapping[str, int]:
        """Number of evaluations by scale-down, by the label of the verdict."""

    @property
    def served(self, /) -> int:
        """Sessions that ran to their end."""

    @property
    def starts(self, /) -> int:
        """Number of workers that came into service."""

    @property
    def text(self, /) -> str:
        """Sessions, hours and cost in one line."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

@final
class History:
    """Everything that happened in a simulation."""

    def __eq__(self, other: object, /) -> bool: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def digest(self, /) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the inputs."""

    @property
    def figures(self, /) -> Figures:
        """Totals of the simulation."""

    @property
    def hours(self, /) -> float:
        """Its duration in hours."""

    @property
    def inputs(self, /) -> dict[str, Any]:
        """Fleet, events, policy, hours and seed, with times in seconds."""

    def refused(self, /) -> list[dict[str, Any]]:
        """Actions of users that were refused, as dicts with the time, the worker, the action and the reason."""

    def repeat(self, /) -> History:
        """Simulates the same inputs again. The same version gives the same history."""

    def rows(self, /) -> list[dict[str, Any]]:
        """Returns the steps as dicts, for a table."""

    @property
    def seed(self, /) -> int:
        """Seed of the random numbers. The same version, arguments and seed give the same history."""

    @property
    def started_at(self, /) -> datetime:
        """When the simulation starts, in its own time."""

    def status(self, /, worker: str, at: datetime | None = None) -> WorkerStatus:
        """Returns the status of a worker at a time, by default the end.

        Raises `ValueError` for an unknown worker.
        """

    def steps(self, /, worker: str | None = None) -> list[Step]:
        """Returns the steps of all workers or of one, in order of time."""

    def to_frame(self, /) -> lcm.frame.Frame:
        """Returns the steps as a table, as `lcm.to_frame` does."""

    @property
    def version(self, /) -> str:
        """Version of LCM that decided."""

    def why(self, /, worker: str, at: datetime | None = None) -> list[Step]:
        """Returns the chain of steps that led to the status of a worker at a time, by default the end.

        Raises `ValueError` for an unknown worker.
        """

    @property
    def workers(self, /) -> list[str]:
        """Ids of the workers."""

@final
class Observation:
    """The parsed form of an `lcm.Observation`."""

    def __new__(cls, /, fields: dict[str, Any]) -> Observation: ...

@final
class OrphanReport:
    """Conclusions of garbage collection about a region."""

    __match_args__: Final[tuple[Literal["region"], Literal["verdicts"], Literal["unverified"]]]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(cls, /, region: str, verdicts: tuple[Verdict, ...], unverified: tuple[str, ...]) -> OrphanReport: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def is_frozen(self, /) -> bool:
        """Whether the region is frozen: nothing proves that the credentials belong to the account of its records."""

    @property
    def orphans(self, /) -> tuple[str, ...]:
        """Ids of the workers to mark terminated."""

    @property
    def region(self, /) -> str:
        """Name of the region."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def unverified(self, /) -> tuple[str, ...]:
        """Instances that neither the scan nor `verified` covers: describe them and judge again."""

    @property
    def verdicts(self, /) -> tuple[Verdict, ...]:
        """One verdict for each record that the scan did not show alive (`Verdict`)."""

@final
class Patch:
    """Changes to a worker's record, conditional on the version that was read.

    LCM creates patches and passes them to `ControlPlane.write`.
    """

    def __eq__(self, other: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    def apply_to(self, /, record: AnyWorker) -> Worker:
        """Returns the record after this patch is written, as an `lcm.Worker`. Its version stays: the control plane raises it.

        `record` is an `lcm.Worker` or the control plane's dict. `to_dict()` of the result leaves out passwords and
        tokens: keep the worker itself, or write `changes` to a record of your own.

        Raises `lcm.InvalidRecord` for a record that cannot be parsed.
        """

    @property
    def at(self, /) -> datetime:
        """Time of the reconcile."""

    @property
    def changes(self, /) -> FrozenMap:
        """Other fields that change, by their names on the record; None clears a field.

        `license_report` is not a field of the record: it reports the progress of a license operation.
        """

    @property
    def drain(self, /) -> FrozenMap | None:
        """`reason` and `requested_by` of a drain that begins or is canceled, else None."""

    @property
    def expected_version(self, /) -> int | None:
        """Version that was read. If the record has another one, raise `PortError("…", "conflict")`."""

    @property
    def fence(self, /) -> int | None:
        """Fencing token of the leader, or None without an election. A smaller token than the record has seen belongs to
        a former leader.
        """

    @property
    def status(self, /) -> WorkerStatus | None:
        """New status (`WorkerStatus`), or None if the status stays."""

    @property
    def termination(self, /) -> FrozenMap | None:
        """`reason` and `terminated_by` if the new status is terminated, else None. The worker's sessions end too."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON."""

    @property
    def worker_id(self, /) -> str:
        """Id of the worker whose record changes."""

@final
class Policy:
    """The parsed form of an `lcm.Policy`."""

    def __new__(cls, /, fields: Mapping[str, Any]) -> Policy: ...

@final
class Reason:
    """The reason for a decision: a stable code for programs and a sentence for people."""

    __match_args__: Final[tuple[Literal["code"], Literal["sentence"]]]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(cls, /, code: ReasonCode, sentence: str) -> Reason: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    @property
    def code(self, /) -> ReasonCode:
        """Stable code (`ReasonCode`). Logs, metrics and the audit log use the same codes."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def sentence(self, /) -> str:
        """The reason as an English sentence, with the values that led to it."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def url(self, /) -> str:
        """Address of the documentation of this code: its meaning, and the next step of an operator."""

@final
class ReconcileResult:
    """The result of reconciling one worker."""

    __match_args__: Final[
        tuple[
            Literal["worker_id"],
            Literal["outcome"],
            Literal["from_status"],
            Literal["to_status"],
            Literal["effects"],
            Literal["reason"],
            Literal["requeue"],
            Literal["after"],
            Literal["error"],
            Literal["dry_run"],
            Literal["changes"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        worker_id: str,
        outcome: Outcome,
        from_status: WorkerStatus,
        to_status: WorkerStatus,
        effects: tuple[Effect, ...],
        reason: Reason,
        requeue: Requeue,
        after: timedelta | None = None,
        error: CallFailure | None = None,
        dry_run: bool = ...,
        changes: FrozenMap = ...,
    ) -> ReconcileResult: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def after(self, /) -> timedelta | None:
        """Delay as a timedelta if `requeue` is `after`, else None."""

    @property
    def changes(self, /) -> FrozenMap:
        """Other record fields that were written or are planned, by their names on the record; None clears a field."""

    @property
    def dry_run(self, /) -> bool:
        """Whether this was a dry run, in which no effect is carried out."""

    @property
    def effects(self, /) -> tuple[Effect, ...]:
        """Effects in order (`Effect`), each with its result."""

    @property
    def error(self, /) -> CallFailure | None:
        """The failed call (`CallFailure`) that decided the outcome, or None."""

    @property
    def from_status(self, /) -> WorkerStatus:
        """Status before the reconcile (`WorkerStatus`)."""

    @property
    def outcome(self, /) -> Outcome:
        """How the reconcile ended (`Outcome`)."""

    def raise_for_error(self, /) -> ReconcileResult:
        """Raises `lcm.PortError` if a failed call decided the outcome; otherwise returns this result.

        An exception that a port written in Python raised is its `__cause__`.
        """

    @property
    def reason(self, /) -> Reason:
        """Reason for the outcome (`Reason`)."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def requeue(self, /) -> Requeue:
        """When to reconcile the worker again (`Requeue`)."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def to_status(self, /) -> WorkerStatus:
        """Status after the reconcile (`WorkerStatus`): recorded, or planned in a dry run."""

    @property
    def worker_id(self, /) -> str:
        """Id of the worker."""

@final
class RecordedStep:
    """A recorded reconcile of a worker, or several in a row that ended the same."""

    __match_args__: Final[
        tuple[
            Literal["at"],
            Literal["last_at"],
            Literal["repeats"],
            Literal["worker_id"],
            Literal["outcome"],
            Literal["from_status"],
            Literal["to_status"],
            Literal["reason"],
            Literal["sentence"],
            Literal["requested_by"],
            Literal["observed"],
            Literal["effects"],
            Literal["results"],
            Literal["text"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        at: datetime,
        last_at: datetime,
        repeats: int,
        worker_id: str,
        outcome: Outcome,
        from_status: WorkerStatus,
        to_status: WorkerStatus,
        reason: str,
        sentence: str,
        requested_by: str | None,
        observed: Mapping[str, str],
        effects: tuple[str, ...],
        results: tuple[str, ...],
        text: str,
    ) -> RecordedStep: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    @property
    def at(self, /) -> datetime:
        """The time of the decision; of several, the first."""

    @property
    def effects(self, /) -> tuple[str, ...]:
        """Effects in order, such as `stop_instance i-1`."""

    @property
    def from_status(self, /) -> WorkerStatus:
        """Status on the record before it."""

    @property
    def last_at(self, /) -> datetime:
        """The time of the latest of them."""

    @property
    def observed(self, /) -> Mapping[str, str]:
        """The observation that it was decided on, in words, by the name of the lookup."""

    @property
    def outcome(self, /) -> Outcome:
        """Outcome of the reconcile."""

    @property
    def reason(self, /) -> str:
        """Stable code of the reason; one of another version may be unknown to this one."""

    @property
    def repeats(self, /) -> int:
        """How many more were recorded that ended the same."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def requested_by(self, /) -> str | None:
        """The operator who requested it; None if the controller decided it by itself."""

    @property
    def results(self, /) -> tuple[str, ...]:
        """Result of each effect, such as `done`, `launched i-1`, `not_tried`, or `failed: ` and the failure."""

    @property
    def sentence(self, /) -> str:
        """The reason as a sentence."""

    @property
    def text(self, /) -> str:
        """Time, statuses, reason and effects in one line."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def to_status(self, /) -> WorkerStatus:
        """Status after it."""

    @property
    def worker_id(self, /) -> str:
        """Id of the worker."""

@final
class RegionReport:
    """Findings and effects of discovery in one region. `verdicts` holds the conclusion about each record."""

    __match_args__: Final[
        tuple[
            Literal["region"],
            Literal["verdicts"],
            Literal["unverified"],
            Literal["seen"],
            Literal["imported"],
            Literal["foreign"],
            Literal["handed_over"],
            Literal["resurrected"],
            Literal["terminated"],
            Literal["error"],
            Literal["dry_run"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        region: str,
        verdicts: tuple[Verdict, ...],
        unverified: tuple[str, ...],
        seen: int,
        imported: int,
        foreign: tuple[str, ...],
        handed_over: tuple[str, ...],
        resurrected: tuple[str, ...],
        terminated: tuple[str, ...],
        error: CallFailure | None = None,
        dry_run: bool = ...,
    ) -> RegionReport: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def dry_run(self, /) -> bool:
        """Whether this was a dry run, in which nothing is written."""

    @property
    def error(self, /) -> CallFailure | None:
        """The first call that failed (`CallFailure`), or None. The scan or a write is then incomplete."""

    @property
    def foreign(self, /) -> tuple[str, ...]:
        """Instances with the tags of another control plane: reported, never touched."""

    @property
    def handed_over(self, /) -> tuple[str, ...]:
        """Workers with an instance that their record does not name: reconcile them, and they adopt it."""

    @property
    def imported(self, /) -> int:
        """Number of unknown instances that got a record; in a dry run, that would get one."""

    @property
    def is_frozen(self, /) -> bool:
        """Whether the region is frozen: nothing proves that the credentials belong to the account of its records."""

    @property
    def notes(self, /) -> tuple[str, ...]:
        """Sentences about everything that limited the run."""

    @property
    def orphans(self, /) -> tuple[str, ...]:
        """Ids of the workers whose instance is gone."""

    @property
    def region(self, /) -> str:
        """Name of the region."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def resurrected(self, /) -> tuple[str, ...]:
        """Workers whose record is terminated while their instance lives. The record follows unless the policy forbids it."""

    @property
    def seen(self, /) -> int:
        """Number of instances that the scan showed."""

    @property
    def summary(self, /) -> str:
        """Findings and effects in one line."""

    @property
    def terminated(self, /) -> tuple[str, ...]:
        """Workers whose record was marked terminated; empty in a dry run."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def unverified(self, /) -> tuple[str, ...]:
        """Always empty: discovery describes every instance that the scan did not show."""

    @property
    def verdicts(self, /) -> tuple[Verdict, ...]:
        """One verdict for each record that the scan did not show alive (`Verdict`)."""

@final
class Replay:
    """The decisions of a history, made again."""

    __match_args__: Final[
        tuple[
            Literal["decisions"],
            Literal["changed"],
            Literal["undecided"],
            Literal["differences"],
            Literal["by_worker"],
            Literal["by_reason"],
            Literal["warnings"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        decisions: int,
        changed: int,
        undecided: Mapping[str, int],
        differences: tuple[Difference, ...],
        by_worker: Mapping[str, int],
        by_reason: Mapping[str, int],
        warnings: tuple[str, ...],
    ) -> Replay: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def by_reason(self, /) -> Mapping[str, int]:
        """Number of decisions that differ by recorded and replayed reason, as `drift → external_stop`."""

    @property
    def by_worker(self, /) -> Mapping[str, int]:
        """Number of decisions that differ by worker."""

    @property
    def changed(self, /) -> int:
        """Number of decisions that differ."""

    @property
    def decisions(self, /) -> int:
        """Number of decisions made again."""

    @property
    def differences(self, /) -> tuple[Difference, ...]:
        """The first 10,000 decisions that differ, in order of the history."""

    @property
    def is_same(self, /) -> bool:
        """Whether every decision could be made again and is the same."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def undecided(self, /) -> Mapping[str, int]:
        """Number of decisions that need an observation that the history lacks, by its name."""

    @property
    def warnings(self, /) -> tuple[str, ...]:
        """Parts of the history that this version does not know and skipped, as sentences."""

@final
class ResourceController:
    """A controller of resources. It can be started once."""

    def __new__(
        cls,
        /,
        variables: Mapping[str, str],
        bridge: object,
        key: Callable[[Any], str],
        prefixes: Sequence[str],
        coordination: object | None = None,
    ) -> ResourceController: ...
    def metrics(self, /) -> str:
        """Metrics in the text format of Prometheus."""

    def start(self, /, done: Callable[[None, BaseException | None], None]) -> Task:
        """Runs until `stop`, then calls `done(None, None)`."""

    def stats(self, /) -> dict[str, Any]:
        """Role, queue and state of every resource."""

    def stop(self, /) -> None:
        """Requests a stop: reconciles in progress finish, then the controller resigns."""

    def trigger(self, /, key: str) -> bool:
        """Requests a reconcile of a resource now. False while another controller leads."""

@final
class Step:
    """A simulated reconcile that changed something or failed."""

    __match_args__: Final[
        tuple[
            Literal["at"],
            Literal["worker_id"],
            Literal["from_status"],
            Literal["to_status"],
            Literal["outcome"],
            Literal["reason"],
            Literal["sentence"],
            Literal["ec2"],
            Literal["sessions"],
            Literal["effects"],
            Literal["repeats"],
            Literal["text"],
        ]
    ]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        at: datetime,
        worker_id: str,
        from_status: WorkerStatus,
        to_status: WorkerStatus,
        outcome: Outcome,
        reason: ReasonCode,
        sentence: str,
        ec2: str,
        sessions: int,
        effects: tuple[EffectName, ...],
        repeats: int,
        text: str,
    ) -> Step: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    @property
    def at(self, /) -> datetime:
        """The time of the reconcile."""

    @property
    def ec2(self, /) -> str:
        """Observed state of the instance: a state of EC2, `absent`, `unknown` or `not requested`."""

    @property
    def effects(self, /) -> tuple[EffectName, ...]:
        """Names of the effects that were tried."""

    @property
    def from_status(self, /) -> WorkerStatus:
        """Status before the reconcile."""

    @property
    def outcome(self, /) -> Outcome:
        """The outcome (`Outcome`)."""

    @property
    def reason(self, /) -> ReasonCode:
        """Stable code of the reason (`ReasonCode`)."""

    @property
    def repeats(self, /) -> int:
        """How many more followed that were the same."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    @property
    def sentence(self, /) -> str:
        """The reason as a sentence."""

    @property
    def sessions(self, /) -> int:
        """Number of sessions assigned to the worker."""

    @property
    def text(self, /) -> str:
        """Time, statuses, reason and effects in one line."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def to_status(self, /) -> WorkerStatus:
        """Status after the reconcile."""

    @property
    def worker_id(self, /) -> str:
        """Id of the worker."""

@final
class SweepReport:
    """Result of the first reconcile of every worker, which a controller runs when it becomes leader."""

    __match_args__: Final[tuple[Literal["listed"], Literal["outcomes"], Literal["unfinished"], Literal["took"]]]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(
        cls, /, listed: int, outcomes: Mapping[Outcome, int], unfinished: tuple[str, ...], took: timedelta
    ) -> SweepReport: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def _repr_html_(self, /) -> str: ...
    @property
    def is_complete(self, /) -> bool:
        """Whether every listed worker was reconciled in time."""

    @property
    def listed(self, /) -> int:
        """Number of workers listed."""

    @property
    def outcomes(self, /) -> Mapping[Outcome, int]:
        """Number of reconciles by outcome (`Outcome`). A worker that vanished meanwhile has none."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def took(self, /) -> timedelta:
        """Duration of the sweep, a timedelta."""

    @property
    def unfinished(self, /) -> tuple[str, ...]:
        """Ids of the workers that were not reconciled in time."""

@final
class Table:
    """Columns of equal length."""

    def __new__(cls, /, columns: Sequence[tuple[str, str, Sequence[Any]]], rows: int) -> Table:
        """Creates a table from the name, the kind and the values of each column. None is a missing value."""

    def schema(self, /) -> object:
        """Returns the types of the columns as a schema of Arrow's C interface."""

    def stream(self, /) -> object:
        """Returns the table as a stream of Arrow's C interface."""

@final
class Task:
    """A tokio task that asyncio awaits."""

    def cancel(self, /) -> None:
        """Cancels the task. Effects under way end as their own documentation states."""

@final
class Transition:
    """One legal change of a worker's status."""

    __match_args__: Final[tuple[Literal["from_status"], Literal["to_status"], Literal["kind"], Literal["when"]]]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(cls, /, from_status: str, to_status: str, kind: str, when: str) -> Transition: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    @property
    def from_status(self, /) -> str:
        """Status before the change."""

    @property
    def kind(self, /) -> str:
        """`commanded` by the lifecycle, or `observed` in EC2."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def to_status(self, /) -> str:
        """Status after the change."""

    @property
    def when(self, /) -> str:
        """Condition of the change, in a few words."""

@final
class Verdict:
    """The conclusion of garbage collection about one record."""

    __match_args__: Final[tuple[Literal["worker_id"], Literal["ec2_instance_id"], Literal["conclusion"]]]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold it and a route can return it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(cls, /, worker_id: str, ec2_instance_id: str, conclusion: Conclusion) -> Verdict: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __replace__(self, /, **fields: Any) -> Self: ...
    def __repr__(self, /) -> str: ...
    @property
    def conclusion(self, /) -> Conclusion:
        """The conclusion (`Conclusion`)."""

    @property
    def ec2_instance_id(self, /) -> str:
        """Instance that the record names."""

    def replace(self, /, **fields: Any) -> Self:
        """Returns a copy with other values in some fields."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""

    @property
    def why(self, /) -> str:
        """The conclusion as a sentence."""

    @property
    def worker_id(self, /) -> str:
        """Id of the worker."""

@final
class Worker:
    """A worker's record. It is immutable; `replace` returns a changed copy.

    Its fields have the names of the control plane's JSON. `Worker.from_dict` parses such a record and keeps unknown
    fields; `to_dict` returns the record without its passwords and tokens. `repr` omits them too. A pickle includes
    them, because another process could not use the worker without them.

    >>> import lcm
    >>> worker = lcm.Worker("w-1", "running", desired_status="stopped", ec2_instance_id="i-1")
    >>> worker
    Worker(id='w-1', status='running', desired_status='stopped', ec2_instance_id='i-1')
    >>> worker.replace(status="stopped").status
    <WorkerStatus.STOPPED: 'stopped'>
    >>> lcm.Worker("w-1", "asleep")
    Traceback (most recent call last):
    ...
    lcm.exceptions.InvalidRecord: worker "w-1": field `status` is "asleep"; accepted: pending, provisioning, ...
    """

    __match_args__: Final[tuple[Literal["id"], Literal["status"], Literal["desired_status"]]]

    def __eq__(self, other: object, /) -> bool: ...
    @classmethod
    def __get_pydantic_core_schema__(cls, /, _source: Any, handler: Any) -> Any:
        """Describes the class to pydantic, so that a model can hold a worker and a route can return one."""

    @classmethod
    def __get_pydantic_json_schema__(cls, /, schema: Any, handler: Any) -> Any:
        """Describes the JSON form to pydantic."""

    def __hash__(self, /) -> int: ...
    def __new__(cls, /, id: str, status: AnyWorkerStatus, **fields: Unpack[WorkerFields]) -> Worker: ...
    def __reduce__(self, /) -> tuple[Any, ...]: ...
    def __repr__(self, /) -> str: ...
    @property
    def address(self, /) -> str | None:
        """Address of the worker: `ip_address`, else public, else private; None without any."""

    @property
    def ami_name(self, /) -> str | None:
        """AMI name or pattern, or None. Takes precedence over the template's."""

    @property
    def aws_region(self, /) -> str | None:
        """AWS region of the instance, or None for the default region."""

    @property
    def aws_tags(self, /) -> dict[str, str]:
        """Tags of the instance. They take precedence over the region's."""

    @property
    def cml_username(self, /) -> str | None:
        """User name for CML, or None."""

    @property
    def created_at(self, /) -> datetime | None:
        """Time the record was created, or None."""

    @property
    def desired_status(self, /) -> DesiredStatus | None:
        """Status that the owner wants (`DesiredStatus`), or None."""

    @property
    def drain_started_at(self, /) -> datetime | None:
        """Time the drain began, or None."""

    @property
    def drain_timeout_seconds(self, /) -> int | None:
        """Timeout that the template gave the drain, in seconds, where it is not the default."""

    @property
    def drain_tries(self, /) -> int:
        """Number of times that a session kept the worker from leaving its drain."""

    @property
    def ec2_instance_id(self, /) -> str | None:
        """Id of the EC2 instance, or None before the launch."""

    @classmethod
    def from_dict(cls, /, record: AnyRecord) -> Worker:
        """Parses a record of the control plane: a dict, a dataclass or a pydantic model.

        Raises `InvalidRecord` if id, status or instance id cannot be read. Any other unreadable value counts as None; a
        `RecordWarning` and `warnings` name it.

        >>> import lcm
        >>> worker = lcm.Worker.from_dict({"id": "w-1", "status": "RUNNING", "aws_instance_id": "i-1", "rack": 9})
        >>> worker.status.value, worker.ec2_instance_id, worker.to_dict()["rack"]
        ('running', 'i-1', 9)
        """

    @property
    def id(self, /) -> str:
        """Unique id of the worker."""

    @property
    def instance_type(self, /) -> str | None:
        """EC2 instance type, or None."""

    @property
    def ip_address(self, /) -> str | None:
        """Address that the control plane prefers, or None."""

    @property
    def is_at_rest(self, /) -> bool:
        """Whether no reconcile is due until the record or the cloud changes."""

    @property
    def is_eligible(self, /) -> bool:
        """Whether the worker may take a new session."""

    @property
    def is_idle_detection_enabled(self, /) -> bool:
        """Whether idle detection applies to this worker."""

    @property
    def last_activity_check_at(self, /) -> datetime | None:
        """Time of the last idle check, or None."""

    @property
    def launch_generation(self, /) -> int:
        """Number of ended launches of this worker; part of the launch token."""

    @property
    def launched_at(self, /) -> datetime | None:
        """Time of the launch, or None."""

    @property
    def license(self, /) -> dict[str, Any]:
        """License of the worker, without the tokens."""

    @property
    def metadata(self, /) -> dict[str, Any]:
        """Free-form data of the control plane."""

    @property
    def name(self, /) -> str | None:
        """Display name, or None."""

    @property
    def private_ip(self, /) -> str | None:
        """Private IP address, or None."""

    @property
    def public_ip(self, /) -> str | None:
        """Public IP address, or None."""

    def replace(self, /, **fields: Unpack[WorkerChanges]) -> Worker:
        """Returns a copy with other values in some fields.

        >>> import lcm
        >>> lcm.Worker("w-1", "running").replace(desired_status="terminated")
        Worker(id='w-1', status='running', desired_status='terminated', ec2_instance_id=None)
        """

    @property
    def scaled_down_at(self, /) -> datetime | None:
        """Time of the last scale-down, or None."""

    @property
    def start_initiated_at(self, /) -> datetime | None:
        """Time of the last request to start the instance, or None."""

    @property
    def status(self, /) -> WorkerStatus:
        """Status of the worker (`WorkerStatus`)."""

    @property
    def template_name(self, /) -> str | None:
        """Name of the template, or None."""

    @property
    def terminated_at(self, /) -> datetime | None:
        """Time of the termination, or None."""

    def to_dict(self, /) -> dict[str, Any]:
        """Returns the record as a dict ready for JSON, without passwords and tokens."""

    @property
    def updated_at(self, /) -> datetime | None:
        """Time of the last write, or None."""

    @property
    def version(self, /) -> int | None:
        """Version of the record, or None. Writes are conditional on it."""

    @property
    def warnings(self, /) -> tuple[str, ...]:
        """Fields of the record that have no effect, one sentence each: unreadable values, which count as None, and names
        that are probably misspelled.
        """

def backoff_seconds(retries: SupportsIndex, policy: lcm.policy.Policy | None = None) -> float:
    """Returns the delay before a retry in seconds. The first retry is number 0."""

def check_drain(
    worker: AnyWorker,
    sessions: Sequence[Any],
    template: Any,
    policy: lcm.policy.Policy | None = None,
    now: datetime | None = None,
) -> Decision:
    """Decides the next step of a drain."""

def check_port(name: str, port: object, world: object) -> tuple[str, str, str] | None:
    """Runs the suite of a port. Returns the violated rule, or None.

    # Errors
    Any exception of the world's own methods.
    """

def collect_orphans(
    clients: Clients,
    policy: lcm.policy.Policy | None,
    regions: list[str] | None,
    dry_run: bool,
    timeout: float | timedelta | None = None,
) -> DiscoveryReport:
    """Runs discovery once and blocks until the report is there."""

def compare(
    policies: Mapping[str, lcm.policy.Policy],
    fleet: Mapping[str, Any],
    events: Mapping[str, Any],
    hours: SupportsFloat | SupportsIndex,
    seed: SupportsIndex,
) -> Comparison:
    """Simulates the same fleet and events under several policies."""

def decide(
    worker: AnyWorker,
    observation: lcm.observation.Observation,
    *,
    policy: lcm.policy.Policy | None = None,
    now: datetime | None = None,
) -> Decision:
    """Decides the next step for a worker from an observation. Pure: it calls nothing and changes nothing.

    `worker` is an `lcm.Worker` or the control plane's dict, `policy` defaults to `lcm.Policy()` and `now`, a datetime
    with a time zone, to the current time.

    Raises `lcm.InvalidRecord` for a record that cannot be parsed.

    >>> import lcm
    >>> worker = lcm.Worker("w-1", "stopped", desired_status="running", ec2_instance_id="i-1")
    >>> print(lcm.decide(worker, lcm.Observation(ec2="stopped")))
    w-1: stopped → starting: The instance is stopped and should run: starting it.
    """

def decide_cancel_drain(worker: AnyWorker, cancelled_by: str, reason: str) -> Decision:
    """Decides to cancel a drain."""

def decide_many(
    workers: Iterable[AnyWorker],
    observations: lcm.observation.Observation | AnyEc2State | Sequence[lcm.observation.Observation | str],
    policy: lcm.policy.Policy | None = None,
    now: datetime | None = None,
) -> Decisions:
    """Decides about many workers. `observations` is one for all workers, or an iterable with one for each. An observation is
    an `lcm.Observation` or an EC2 state.
    """

def diagrams() -> dict[str, str]:
    """Returns the transition table as diagrams, by format."""

def eligible(workers: Iterable[AnyWorker]) -> list[bool]:
    """Returns for each worker whether it may take a new session."""

def explain(
    worker: AnyWorker | str,
    clients: Clients,
    policy: lcm.policy.Policy | None,
    timeout: float | timedelta | None = None,
) -> Explanation:
    """Explains what a reconcile of a worker would do, and blocks until the worker is observed."""

def fake_cloud_command(program: str, words: Sequence[str]) -> int:
    """Runs the command until a stop signal, and returns its exit code."""

def find_orphans(
    workers: Iterable[AnyWorker],
    discovered: Sequence[Any],
    verified: Mapping[str, Any],
    region: str,
    complete: bool,
    account_proved: bool,
    policy: lcm.policy.Policy | None = None,
    now: datetime | None = None,
) -> tuple[list[Verdict], list[str]]:
    """Returns verdicts about the records of a region, and the instances that still need a describe."""

def initiate_drain(
    worker: AnyWorker, sessions: Sequence[Any], reason: str, requested_by: str, now: datetime | None = None
) -> Decision:
    """Decides to begin a drain."""

def lcm_command(program: str, words: Sequence[str]) -> int:
    """Runs the command until it ends or a stop signal arrives, and returns its exit code."""

def operate(
    operation: str,
    worker: AnyWorker,
    clients: Clients,
    requested_by: str,
    reason: str,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Carries out an operation and blocks until the record is written."""

def read_scenario(scenario: str | Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int, list[str]]:
    """Reads a scenario of the fake cloud, from its text or as an object: the fleet, the events, the seed, and the entries
    without a model.
    """

def reconcile(
    worker: AnyWorker,
    clients: Clients,
    policy: lcm.policy.Policy | None,
    dry_run: bool,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Reconciles a worker and blocks until the result is known."""

def reconcile_now(
    worker_id: str,
    clients: Clients,
    policy: lcm.policy.Policy | None,
    dry_run: bool,
    timeout: float | timedelta | None = None,
) -> ReconcileResult:
    """Reads the record of a worker, reconciles it and blocks until the result is known."""

def replay(
    history: Sequence[str], policy: lcm.policy.Policy | None = None, changes: Mapping[str, Any] | None = None
) -> Replay:
    """Decides every reconcile of histories again: under its own policy, that policy with changed fields, or another one."""

def simulate(
    fleet: Mapping[str, Any],
    events: Mapping[str, Any],
    policy: lcm.policy.Policy | None,
    hours: SupportsFloat | SupportsIndex,
    seed: SupportsIndex,
) -> History:
    """Simulates a fleet for some hours."""

def start_collect_orphans(
    done: Callable[[DiscoveryReport | None, BaseException | None], None],
    clients: Clients,
    policy: lcm.policy.Policy | None,
    regions: list[str] | None,
    dry_run: bool,
    timeout: float | timedelta | None = None,
) -> Task:
    """Starts one run of discovery. Calls `done(report, error)` at the end."""

def start_explain(
    done: Callable[[Explanation | None, BaseException | None], None],
    worker: AnyWorker | str,
    clients: Clients,
    policy: lcm.policy.Policy | None,
    timeout: float | timedelta | None = None,
) -> Task:
    """Starts to explain a worker. Calls `done(explanation, error)` at the end."""

def start_operate(
    done: Callable[[ReconcileResult | None, BaseException | None], None],
    operation: str,
    worker: AnyWorker,
    clients: Clients,
    requested_by: str,
    reason: str,
    timeout: float | timedelta | None = None,
) -> Task:
    """Starts an operation. Calls `done(result, error)` at the end."""

def start_reconcile(
    done: Callable[[ReconcileResult | None, BaseException | None], None],
    worker: AnyWorker,
    clients: Clients,
    policy: lcm.policy.Policy | None,
    dry_run: bool,
    timeout: float | timedelta | None = None,
) -> Task:
    """Starts to reconcile a worker. Calls `done(result, error)` at the end."""

def start_reconcile_now(
    done: Callable[[ReconcileResult | None, BaseException | None], None],
    worker_id: str,
    clients: Clients,
    policy: lcm.policy.Policy | None,
    dry_run: bool,
    timeout: float | timedelta | None = None,
) -> Task:
    """Starts to read and reconcile a worker. Calls `done(result, error)` at the end."""

def transitions() -> tuple[Transition, ...]:
    """Returns every legal change of status."""

def why(history: Sequence[str], worker: str, at: datetime | None = None) -> tuple[RecordedStep, ...]:
    """The chain of recorded reconciles that led to the status of a worker at a time."""

def worker_controller_command(program: str, words: Sequence[str]) -> int:
    """Runs the controller until a stop signal, and returns its exit code."""
