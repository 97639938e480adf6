"""pandas, polars, DuckDB and pyarrow read tables of LCM, and LCM reads records from theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import lcm
import pandas
import polars
import pyarrow
import pytest
from lcm.testing import FakeCloud
from test_stub import TYPES

NOW = datetime(2026, 2, 6, 8, 0, 0, 250_000, tzinfo=UTC)
FLEET = [
    lcm.Worker("w-1", "running", desired_status="running", ec2_instance_id="i-1", version=3, created_at=NOW),
    lcm.Worker("w-2", "stopped", desired_status="running", ec2_instance_id="i-2", aws_tags={"team": "blue"}),
    lcm.Worker("w-3", "pending", metadata={"rack": {"row": 9}}, is_idle_detection_enabled=False),
]
READERS: dict[str, Callable[[lcm.Frame], Any]] = {
    "pandas": pandas.DataFrame.from_arrow,
    "polars": polars.DataFrame,
    "pyarrow": pyarrow.table,
    "duckdb": lambda frame: duckdb.table("frame").to_arrow_table(),
}
each_library = pytest.mark.parametrize("library", READERS)


def read(library: str, frame: lcm.Frame) -> dict[str, list[Any]]:
    """Return the columns of a table as a library reads it, in plain values of Python."""
    table = READERS[library](frame)
    if library == "pandas":
        table = pyarrow.Table.from_pandas(table, preserve_index=False)
    columns: dict[str, list[Any]] = table.to_dict(as_series=False) if library == "polars" else table.to_pydict()
    return columns


@each_library
def test_library_reads_workers(library: str) -> None:
    columns = read(library, lcm.to_frame(FLEET))
    assert columns["id"] == ["w-1", "w-2", "w-3"] and columns["status"] == ["running", "stopped", "pending"]
    assert columns["ec2_instance_id"] == ["i-1", "i-2", None] and columns["version"] == [3, None, None]
    assert columns["created_at"][0] == NOW and not any(map(is_a_time, columns["created_at"][1:]))
    assert columns["is_idle_detection_enabled"] == [True, True, False]
    assert columns["aws_tags"][1] == '{"team": "blue"}' and columns["metadata"][2] == '{"rack": {"row": 9}}'


def is_a_time(value: Any) -> bool:
    return isinstance(value, datetime) and value == value


@each_library
def test_library_reads_decisions(library: str) -> None:
    decisions = lcm.decide_many(FLEET, ["running", "stopped", "pending"], now=NOW)
    columns = read(library, lcm.to_frame(decisions))
    assert columns["reason_code"] == [str(decision.reason.code) for decision in decisions]
    assert columns["to_status"] == [str(decision.to_status) for decision in decisions]
    assert [list(effects) for effects in columns["effects"]][1] == ["start_instance i-2"]


def test_durations_are_durations() -> None:
    draining = lcm.Worker("w-1", "draining", ec2_instance_id="i-1")
    decision = lcm.check_drain(draining, [], now=NOW)
    assert decision.after == timedelta(seconds=10)
    assert polars.DataFrame(lcm.to_frame([decision]))["after"].to_list() == [timedelta(seconds=10)]


HISTORY = lcm.simulate(
    4,
    events={"sessions_per_hour": 2},
    policy=lcm.Policy(scale_down=lcm.ScaleDownPolicy(enabled=True)),
)


@each_library
def test_library_reads_a_simulation(library: str) -> None:
    columns = read(library, lcm.to_frame(HISTORY))
    assert columns["worker_id"] == [step.worker_id for step in HISTORY.steps()]
    assert columns["to_status"] == [str(step.to_status) for step in HISTORY.steps()]
    assert columns["at"][0] == HISTORY.steps()[0].at
    assert next(list(effects) for effects in columns["effects"]) == ["start_instance"]
    assert HISTORY.to_frame().rows == lcm.to_frame(HISTORY.steps()).rows == lcm.to_frame(HISTORY).rows


@each_library
def test_library_reads_a_comparison(library: str) -> None:
    compared = lcm.compare({"today": lcm.Policy()}, 4, events={"sessions_per_hour": 2})
    columns = read(library, compared.to_frame())
    assert columns["policy"] == ["today"] and columns["lost"] == [compared.figures["today"].lost]
    assert columns["instance_hours"] == [compared.figures["today"].instance_hours]


def test_columns_of_workers_are_their_properties() -> None:
    assert set(lcm.to_frame(FLEET).columns) == TYPES["Worker"].keys()
    assert list(lcm.to_frame(FLEET).columns)[:4] == ["id", "status", "desired_status", "ec2_instance_id"]


def test_columns_are_the_same_for_empty_lists() -> None:
    assert lcm.to_frame([], of=lcm.Worker).columns == lcm.to_frame(FLEET).columns
    empty = polars.DataFrame(lcm.to_frame(lcm.decide_many([], "running")))
    assert empty.schema == polars.DataFrame(lcm.to_frame(lcm.decide_many(FLEET, "running"))).schema


def test_results_are_tables() -> None:
    with FakeCloud() as cloud:
        cloud.fail_next("DescribeInstances", times=9)
        worker = cloud.add_worker(id="w-1", status="running", ec2_instance_id="i-1", aws_region="us-east-1")
        result = lcm.reconcile(worker, clients=cloud.clients())
    (row,) = polars.DataFrame(lcm.to_frame([result])).to_dicts()
    assert (row["outcome"], row["error_kind"], row["dry_run"]) == ("retry", "throttled", False)


def test_verdicts_and_transitions_are_tables() -> None:
    record = {"id": "w-1", "status": "running", "aws_region": "us-east-1", "ec2_instance_id": "i-1"}
    report = lcm.find_orphans([record], [], region="us-east-1", verified={"i-1": lcm.ABSENT}, now=NOW)
    assert polars.DataFrame(lcm.to_frame(report.verdicts)).columns == ["worker_id", "ec2_instance_id", "conclusion"]
    assert polars.DataFrame(lcm.to_frame(lcm.transitions())).height == len(lcm.transitions())


def test_dicts_have_columns_by_the_types_of_their_values() -> None:
    rows = [
        {
            "text": "a",
            "whole": 1,
            "number": 1.5,
            "switch": True,
            "at": NOW,
            "took": timedelta(1),
            "texts": ["a"],
            "any": {},
        },
        {"text": None, "whole": None, "number": 2, "switch": None, "at": None, "took": None, "texts": None, "any": [1]},
    ]
    schema = polars.DataFrame(lcm.to_frame(rows)).schema
    assert list(schema.values()) == [
        polars.String,
        polars.Int64,
        polars.Float64,
        polars.Boolean,
        polars.Datetime("us", "UTC"),
        polars.Duration("us"),
        polars.List(polars.String),
        polars.String,
    ]


def test_objects_with_columns_and_rows_are_tables() -> None:
    @dataclass
    class History:
        columns: tuple[str, ...]
        rows: list[dict[str, Any]]

    history = History(("minute", "status"), [{"minute": 0, "status": "pending"}, {"minute": 1, "status": "running"}])
    assert polars.DataFrame(lcm.to_frame(history)).rows() == [(0, "pending"), (1, "running")]


def test_tables_are_shown_in_notebooks() -> None:
    shown = lcm.to_frame([{"id": "<w>"}] * 21)._repr_html_()
    assert shown.count("<td>&lt;w&gt;</td>") == 20 and "1 more rows" in shown


@pytest.mark.parametrize("items", ["w-1", {"id": "w-1"}, [7], [*FLEET, lcm.decide(FLEET[0], lcm.Observation())]])
def test_other_items_are_refused(items: Any) -> None:
    with pytest.raises(TypeError, match="accepted: "):
        lcm.to_frame(items)


def test_naive_times_are_refused() -> None:
    with pytest.raises(ValueError, match="at is 2026-02-06 00:00:00, which has no time zone"):
        pyarrow.table(lcm.to_frame([{"at": datetime(2026, 2, 6)}]))


def shown(workers: list[lcm.Worker]) -> list[dict[str, Any]]:
    return [worker.to_dict() for worker in workers]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_workers_survive_a_library(library: str) -> None:
    assert shown(lcm.from_frame(READERS[library](lcm.to_frame(FLEET)))) == shown(FLEET)


def test_records_come_from_duckdb() -> None:
    relation = duckdb.sql("SELECT 'w-' || range AS id, 'running' AS status, NULL AS version FROM range(2)")
    assert [worker.id for worker in lcm.from_frame(relation)] == ["w-0", "w-1"]


def test_missing_values_of_pandas_are_absent() -> None:
    rows = [
        {"id": "w-1", "status": "running", "version": 3, "ec2_instance_id": "i-1", "created_at": NOW},
        {"id": "w-2", "status": "pending", "public_ip": pandas.NA, "created_at": pandas.NaT},
    ]
    first, second = lcm.from_frame(pandas.DataFrame(rows))
    assert (first.version, first.created_at) == (3, NOW)
    assert second == lcm.Worker("w-2", "pending")


def test_unknown_columns_are_kept() -> None:
    (worker,) = lcm.from_frame(polars.DataFrame({"id": ["w-1"], "status": ["running"], "rack": [9]}))
    assert worker.to_dict()["rack"] == 9


def test_other_tables_are_refused() -> None:
    with pytest.raises(TypeError, match="frame is a int; accepted: a table of pandas"):
        lcm.from_frame(7)


def test_tables_need_no_library() -> None:
    script = """
import sys
for name in ("pandas", "polars", "pyarrow", "duckdb", "numpy"):
    sys.modules[name] = None
import lcm
frame = lcm.to_frame([lcm.Worker("w-1", "running")])
print(type(frame.__arrow_c_stream__()).__name__, type(frame.__arrow_c_schema__()).__name__)
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=100)
    assert (run.stdout.split(), run.stderr) == (["PyCapsule", "PyCapsule"], "")
