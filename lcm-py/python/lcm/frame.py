"""Tables of workers, decisions, results and histories for pandas, polars, DuckDB and pyarrow, and records from them.

>>> import lcm
>>> fleet = [lcm.Worker("w-1", "running"), lcm.Worker("w-2", "stopped", desired_status="running")]
>>> decisions = lcm.to_frame(lcm.decide_many(fleet, ["running", "stopped"]))
>>> decisions.columns[:4], len(decisions)
(('worker_id', 'outcome', 'from_status', 'to_status'), 2)
>>> [row["effects"] for row in decisions.rows]
[[], ['start_instance i-observed']]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from html import escape
from typing import Any, Protocol, TypeAlias

from lcm import _lcm
from lcm._lcm import Comparison, Decision, Figures, History, ReconcileResult, Step, Worker
from lcm.decisions import Decisions
from lcm.values import plain

__all__ = ["Frame", "TableSource", "from_frame", "to_frame"]

Row: TypeAlias = Mapping[str, Any]

_TIMES = [
    "created_at",
    "updated_at",
    "terminated_at",
    "start_initiated_at",
    "last_activity_check_at",
    "drain_started_at",
    "scaled_down_at",
    "launched_at",
]
_TEXTS = [
    "name",
    "aws_region",
    "ip_address",
    "public_ip",
    "private_ip",
    "template_name",
    "instance_type",
    "ami_name",
    "cml_username",
]
_WORKER = {
    **dict.fromkeys(["id", "status", "desired_status", "ec2_instance_id"], "text"),
    "version": "whole",
    **dict.fromkeys(_TEXTS, "text"),
    "is_idle_detection_enabled": "switch",
    **dict.fromkeys(_TIMES, "moment"),
    **dict.fromkeys(["drain_timeout_seconds", "drain_tries", "launch_generation"], "whole"),
    **dict.fromkeys(["aws_tags", "license", "metadata"], "json"),
    "address": "text",
    **dict.fromkeys(["is_at_rest", "is_eligible"], "switch"),
    "warnings": "texts",
}
"""Columns of a table of workers: the properties of a worker."""
_COMPUTED = {"address", "is_at_rest", "is_eligible", "warnings"}
"""Properties that are no fields of a record."""
_DECIDED = {
    **dict.fromkeys(["worker_id", "outcome", "from_status", "to_status", "reason_code", "reason"], "text"),
    "effects": "texts",
    "requeue": "text",
    "after": "duration",
    "changes": "json",
}
_DECISION = {**_DECIDED, "notices": "json", "counts": "texts"}
_RESULT = {**_DECIDED, "error_kind": "text", "error": "text", "dry_run": "switch"}

_STEP = {
    "at": "moment",
    **dict.fromkeys(["worker_id", "from_status", "to_status", "outcome", "reason", "ec2"], "text"),
    "sessions": "whole",
    "effects": "texts",
    "repeats": "whole",
}
_FIGURES = {
    "policy": "text",
    **dict.fromkeys(["requested", "served", "delayed", "given_up", "cut_short", "lost", "handed_back"], "whole"),
    **dict.fromkeys(["mean_delay", "longest_delay", "instance_hours", "cost"], "number"),
    **dict.fromkeys(["mean_time_to_running", "longest_time_to_running"], "number"),
    **dict.fromkeys(["starts", "reconciles", "describes", "leader_changes"], "whole"),
    **dict.fromkeys(["calls", "scale_down", "reasons"], "json"),
}

_KINDS: dict[type, Mapping[str, str]] = {
    Worker: _WORKER,
    Decision: _DECISION,
    ReconcileResult: _RESULT,
    Step: _STEP,
}


class TableSource(Protocol):
    """An object that is a table: names of columns, and rows by these names."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        ...

    @property
    def rows(self) -> Iterable[Row]:
        """Rows by the names of the columns."""
        ...


class Frame:
    """A table. pandas, polars, DuckDB and pyarrow read it through the PyCapsule interface of Arrow.

    ``polars.DataFrame(frame)``, ``pandas.DataFrame.from_arrow(frame)``, ``pyarrow.table(frame)`` and
    ``duckdb.sql("FROM frame")`` need no other package.
    """

    __slots__ = ("_kinds", "_table", "columns", "rows")

    def __init__(self, rows: Iterable[Row], columns: Mapping[str, str] | None = None) -> None:
        listed = [dict(row) for row in rows]
        found = dict.fromkeys(name for row in listed for name in row)
        kinds = {name: _kind(name, listed) for name in found} if columns is None else dict(columns)
        self.columns: tuple[str, ...] = tuple(kinds)
        """Names of the columns."""
        self.rows: list[dict[str, Any]] = [{name: row.get(name) for name in kinds} for row in listed]
        """Rows by the names of the columns. None stands for a missing value."""
        self._kinds = kinds
        self._table: _lcm.Table | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __arrow_c_schema__(self) -> object:
        """Return the types of the columns, as defined by Arrow's PyCapsule interface."""
        return self._native().schema()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table, as defined by Arrow's PyCapsule interface. A reader converts the types it needs itself."""
        return self._native().stream()

    def _native(self) -> _lcm.Table:
        if self._table is None:
            columns = [
                (name, "text" if kind == "json" else kind, [_cell(kind, row[name]) for row in self.rows])
                for name, kind in self._kinds.items()
            ]
            self._table = _lcm.Table(columns, len(self.rows))
        return self._table

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """Show the first rows in a notebook."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        shown = ("".join(f"<td>{escape(_shown(value))}</td>" for value in row.values()) for row in self.rows[:20])
        body = "".join(f"<tr>{cells}</tr>" for cells in shown)
        more = f"<p>{len(self) - 20} more rows</p>" if len(self) > 20 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def to_frame(items: Iterable[Any] | TableSource | History | Comparison, *, of: type | None = None) -> Frame:
    """Return a table of workers, decisions, results, reports, simulations or any rows.

    ``items`` is a list of :class:`lcm.Worker`, decisions, results, dataclasses or dicts, or an object with ``columns``
    and ``rows``. The table of a :class:`lcm.History` has its steps, that of a :class:`lcm.Comparison` the figures of
    each policy. ``of`` is the class of the items, for a list that may be empty; records are read as workers with
    ``of=lcm.Worker``.

    The columns of workers, decisions and results are the same for every list. Other columns have the type of their
    values. Times are in UTC, effects are lists of texts, and nested values are JSON texts.

    >>> import lcm
    >>> lcm.to_frame([{"id": "w-1", "status": "running"}], of=lcm.Worker).rows[0]["is_eligible"]
    True
    >>> lcm.to_frame([], of=lcm.Worker).columns[:3]
    ('id', 'status', 'desired_status')
    """
    if isinstance(items, Frame):
        return items
    if isinstance(items, History):
        return Frame(items.rows(), _STEP)
    if isinstance(items, Comparison):
        return Frame((_figures_row(policy, figures) for policy, figures in items.figures.items()), _FIGURES)
    if isinstance(items, Decisions):
        return Frame(map(_decision_row, items), _DECISION)
    if isinstance(items, str | bytes | Mapping):
        raise TypeError(f"items is a {type(items).__name__}; accepted: a list, or an object with `columns` and `rows`")
    if not isinstance(items, Iterable):
        names = list(items.columns)
        return Frame([{name: row[name] for name in names} for row in items.rows])
    listed = list(items)
    if of is Worker:
        listed = [item if isinstance(item, Worker) else Worker.from_dict(item) for item in listed]
    classes = {type(item) for item in listed} | ({of} if of else set())
    known = [_KINDS[cls] for cls in classes if cls in _KINDS]
    if known and len(classes) > 1:
        found = ", ".join(sorted(cls.__name__ for cls in classes))
        raise TypeError(f"items are of several classes: {found}; accepted: one class")
    return Frame(map(_row, listed), known[0] if known else None)


def _row(item: Any) -> Row:
    match item:
        case Worker():
            return {name: getattr(item, name) for name in _WORKER}
        case Decision():
            return _decision_row(item)
        case Step():
            return {name: getattr(item, name) for name in _STEP}
        case ReconcileResult():
            failure = item.error
            told = {"error_kind": failure and failure.kind, "error": failure and str(failure)}
            return {**_decided(item), **told, "dry_run": item.dry_run}
        case Mapping():
            return item
        case _ if is_dataclass(item):
            return {each.name: getattr(item, each.name) for each in fields(item) if each.repr}
        case _ if hasattr(type(item), "__match_args__"):
            return {name: getattr(item, name) for name in type(item).__match_args__}
    raise TypeError(f"an item is a {type(item).__name__}; accepted: a worker, a decision, a result or a dict")


def _decided(item: Decision | ReconcileResult) -> dict[str, Any]:
    return {
        "worker_id": item.worker_id,
        "outcome": item.outcome,
        "from_status": item.from_status,
        "to_status": item.to_status,
        "reason_code": item.reason.code,
        "reason": item.reason.sentence,
        "effects": [effect.text for effect in item.effects],
        "requeue": item.requeue,
        "after": item.after,
        "changes": item.changes,
    }


def _decision_row(item: Decision) -> Row:
    return {**_decided(item), "notices": item.notices, "counts": item.counts}


def _figures_row(policy: str, figures: Figures) -> Row:
    return {"policy": policy, **{name: getattr(figures, name) for name in _FIGURES if name != "policy"}}


_BY_TYPE: list[tuple[str, type | tuple[type, ...]]] = [
    ("switch", bool),
    ("whole", int),
    ("number", (int, float)),
    ("moment", datetime),
    ("duration", timedelta),
    ("text", str),
]


def _kind(name: str, rows: list[dict[str, Any]]) -> str:
    """Return the kind of column that holds all values of this name."""
    values = [row[name] for row in rows if row.get(name) is not None]
    for kind, types in _BY_TYPE:
        if all(isinstance(value, types) and isinstance(value, bool) == (kind == "switch") for value in values):
            return kind if values else "text"
    if all(isinstance(value, list | tuple) and all(isinstance(text, str) for text in value) for value in values):
        return "texts"
    return "json"


def _cell(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "json":
        return json.dumps(plain(value), ensure_ascii=False)
    if kind == "text":
        return str(value.value if isinstance(value, Enum) else value)
    return list(value) if kind == "texts" else value


def _shown(value: Any) -> str:
    return "" if value is None else ", ".join(value) if isinstance(value, tuple | list) else str(plain(value))


_NESTED = ("aws_tags", "license", "metadata", "launch_plan")
"""Fields of a record that :func:`to_frame` writes as JSON texts."""
_COUNTS = ("version", "drain_timeout_seconds", "drain_tries", "launch_generation")
"""Fields of a record that are whole numbers, which pandas turns into floats where a row has none."""


def from_frame(frame: Any) -> list[Worker]:
    """Return the records in a table, one worker for each row. None, NaN and NaT stand for an absent value.

    ``frame`` is a table of pandas, polars, pyarrow, DuckDB or :func:`to_frame`, or a list of dicts. A row is read by
    :meth:`lcm.Worker.from_dict`: it needs an ``id`` and a ``status``, and its unknown columns are kept.

    >>> import lcm
    >>> lcm.from_frame([{"id": "w-1", "status": "running", "ec2_instance_id": float("nan"), "version": 3.0}])
    [Worker(id='w-1', status='running', desired_status=None, ec2_instance_id=None)]
    """
    return [Worker.from_dict(_record(row)) for row in _rows(frame)]


def _rows(frame: Any) -> Iterable[Row]:
    if isinstance(frame, Frame):
        return frame.rows
    for method, arguments in (("to_dicts", ()), ("to_pylist", ()), ("to_dict", ("records",))):
        # A list, a worker and other objects with methods of these names are no tables.
        if hasattr(frame, method) and hasattr(frame, "columns"):
            rows: Iterable[Row] = getattr(frame, method)(*arguments)
            return rows
    if hasattr(frame, "fetchall") and hasattr(frame, "columns"):
        return [dict(zip(frame.columns, row, strict=True)) for row in frame.fetchall()]
    if isinstance(frame, Iterable) and not isinstance(frame, str | bytes | Mapping):
        return frame
    accepted = "a table of pandas, polars, pyarrow or DuckDB, or a list of dicts"
    raise TypeError(f"frame is a {type(frame).__name__}; accepted: {accepted}")


def _record(row: Row) -> dict[str, Any]:
    record = {name: value for name, value in row.items() if name not in _COMPUTED and not _is_missing(value)}
    for name in record.keys() & set(_NESTED):
        if isinstance(record[name], str):
            record[name] = json.loads(record[name])
    for name in record.keys() & set(_COUNTS):
        if isinstance(record[name], float) and record[name].is_integer():
            record[name] = int(record[name])
    return record


def _is_missing(value: Any) -> bool:
    # NaN and NaT differ from themselves; `pandas.NA` compares to itself, which has no truth value.
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float | datetime) and value != value)
