"""The stub is generated, native values have its types, and `help()` documents every public name.

Stubtest compares the names and signatures of the stub with the native module. It does not see the type of a value.
"""

from __future__ import annotations

import ast
import asyncio
import collections.abc
import dataclasses
import datetime
import inspect
import itertools
import os
import pydoc
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lcm
import native_stub
import pytest
from lcm import _lcm, ports, testing
from lcm.ports import Patch
from lcm.testing import FakeCloud
from python_control_plane import PythonControlPlane

STUB = ast.parse(native_stub.PATH.read_text(encoding="utf-8"))
NAMES = {**vars(typing), **vars(collections.abc), **vars(datetime), **vars(_lcm)}
NAMES |= {name: getattr(lcm, name) for name in lcm.__all__}
NOW = datetime.datetime(2026, 2, 6, 8, tzinfo=datetime.UTC)


@pytest.mark.timeout(900)
def test_stub_is_up_to_date(tmp_path: Path) -> None:
    """With `UPDATE_DOCS=1` the stub is written first."""
    expected = native_stub.generated(tmp_path)
    if os.environ.get("UPDATE_DOCS"):
        native_stub.PATH.write_text(expected, encoding="utf-8")
    written = native_stub.PATH.read_text(encoding="utf-8")
    assert written == expected, "the stub is out of date: run this test with UPDATE_DOCS=1 and commit it"


def property_types() -> dict[str, dict[str, Any]]:
    """Return the types of the properties of each class in the stub."""
    classes = [node for node in STUB.body if isinstance(node, ast.ClassDef)]
    types = {
        cls.name: {
            node.name: eval(ast.unparse(node.returns), NAMES)
            for node in cls.body
            if isinstance(node, ast.FunctionDef) and node.returns
            if [ast.unparse(decorator) for decorator in node.decorator_list] == ["property"]
        }
        for cls in classes
    }
    return {name: properties for name, properties in types.items() if properties}


TYPES = property_types()


def conforms(value: object, expected: Any) -> bool:
    """Return whether a value, and every item in it, is of a type."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return True
    if origin is types.UnionType:
        return any(conforms(value, choice) for choice in arguments)
    if origin is None:
        return isinstance(value, expected) and not (expected is int and isinstance(value, bool))
    if isinstance(value, tuple):
        return origin is tuple and all(conforms(item, arguments[0]) for item in value)
    if isinstance(value, collections.abc.Mapping):
        items = ((conforms(key, arguments[0]), conforms(item, arguments[1])) for key, item in value.items())
        return issubclass(type(value), origin) and all(map(all, items))
    return False


def native_values(value: Any) -> Iterator[Any]:
    """Yield a value and those in its properties, as far as their classes have properties in the stub."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from native_values(item)
    elif type(value).__name__ in TYPES:
        yield value
        for name in TYPES[type(value).__name__]:
            yield from native_values(getattr(value, name))


def check(value: Any) -> set[str]:
    """Compare every property with the stub. Return the names of the classes found."""
    found = set()
    for native in native_values(value):
        found.add(type(native).__name__)
        for name, expected in TYPES[type(native).__name__].items():
            given = getattr(native, name)
            assert conforms(given, expected), f"{type(native).__name__}.{name} is {given!r}; the stub gives {expected}"
    return found


def test_workers_have_the_types_of_the_stub() -> None:
    times: dict[str, Any] = dict.fromkeys((name for name in TYPES["Worker"] if name.endswith("_at")), NOW)
    optional = [name for name, expected in TYPES["Worker"].items() if expected == str | None and name != "address"]
    texts: dict[str, Any] = dict.fromkeys(optional, "text")
    full = lcm.Worker(
        "w-1",
        "running",
        desired_status="stopped",
        version=3,
        aws_tags={"team": "blue"},
        metadata={"rack": {"row": 9}},
        license={"status": "registered", "token": "s3cret"},
        **times,
        **texts,
    )
    assert check([full, lcm.Worker("w-2", "pending")]) == {"Worker"}


def test_decisions_have_the_types_of_the_stub() -> None:
    failure = lcm.CallFailure("throttled", "slow down", "RequestLimitExceeded")
    states: list[Any] = ["pending", "running", "stopping", "stopped", "terminated", lcm.ABSENT, failure, None]
    seen = [lcm.Observation(ec2=state) for state in states]
    decisions = [
        lcm.decide(worker.replace(status=status, desired_status=desired), observation, now=NOW)
        for worker, status, desired, observation in itertools.product(
            [lcm.Worker("w-1", "pending"), lcm.Worker("w-2", "running", ec2_instance_id="i-2", created_at=NOW)],
            lcm.WorkerStatus,
            [*lcm.DesiredStatus, None],
            seen,
        )
    ]
    assert any(decision.after for decision in decisions)
    decisions.append(lcm.initiate_drain(lcm.Worker("w-1", "running"), reason="maintenance", requested_by="alice"))
    assert check([decisions, list(lcm.transitions())]) == {"Decision", "Effect", "Reason", "Transition"}


class Recorder(PythonControlPlane):
    """A control plane that keeps the patches it was given."""

    def __init__(self, *records: dict[str, Any]) -> None:
        super().__init__(*records)
        self.patches: list[Patch] = []

    async def write(self, patch: Patch, /) -> int:
        self.patches.append(patch)
        return await super().write(patch)


def test_results_and_patches_have_the_types_of_the_stub() -> None:
    with FakeCloud() as cloud:
        instance = cloud.run()
        cloud.advance(60)
        stopping = {"id": "w-1", "status": "stopping", "desired_status": "stopped", "aws_region": "us-east-1"}
        control_plane = Recorder({**stopping, "ec2_instance_id": instance.id, "version": 1})
        clients = cloud.clients(control_plane=control_plane)
        record = control_plane.records["w-1"]
        results = [lcm.reconcile(record, clients=clients, dry_run=dry_run) for dry_run in (True, False)]
        cloud.advance(600)
        results.append(lcm.reconcile(record, clients=clients))
        assert results[-1].to_status == "stopped"
        gone = {"status": "running", "ec2_instance_id": "i-0dead000000000001", "aws_region": "us-east-1"}
        for id, created_at in (("w-2", "2020-01-01T00:00:00Z"), ("w-3", cloud.now.isoformat())):
            control_plane.records[id] = {**gone, "id": id, "created_at": created_at, "version": 1}
            results.append(lcm.reconcile(control_plane.records[id], clients=clients))
        assert control_plane.patches[-1].termination and results[-1].after
        cloud.fail_next("DescribeInstances", times=9)
        results.append(lcm.reconcile(record, clients=clients))
        assert results[-1].error is not None
    assert check(results) == {"ReconcileResult", "Reason", "Effect"}
    assert check(control_plane.patches) == {"Patch"}


def test_discovery_reports_have_the_types_of_the_stub() -> None:
    with FakeCloud(scenario="orphans") as cloud:
        reports = [lcm.collect_orphans(clients=cloud.clients(), dry_run=dry_run) for dry_run in (True, False)]
        cloud.fail_next("DescribeInstances", times=9)
        reports.append(lcm.collect_orphans(clients=cloud.clients()))
        cloud.inject({"kind": "error", "code": "500"}, service="control-plane", operation="list_workers")
        reports.append(lcm.collect_orphans(clients=cloud.clients()))
    assert reports[-1].error is not None and reports[-2].regions[0].error is not None
    assert check(reports) == {"DiscoveryReport", "RegionReport", "Verdict"}


def test_orphan_reports_have_the_types_of_the_stub() -> None:
    record = {"id": "w-1", "status": "running", "aws_region": "us-east-1", "ec2_instance_id": "i-1"}
    for verified in ({}, {"i-1": lcm.ABSENT}):
        report = lcm.find_orphans([record], [], region="us-east-1", verified=verified, now=NOW)
        assert check(report) == {"OrphanReport", "Verdict"}


def test_sweep_reports_have_the_types_of_the_stub() -> None:
    async def sweep(cloud: FakeCloud) -> lcm.SweepReport:
        async with lcm.Controller(cloud.clients()) as controller:
            return await asyncio.wait_for(controller.ready(), 60)

    with FakeCloud(clock="real") as cloud:
        cloud.add_worker(id="w-1", status="stopped", aws_region="us-east-1")
        assert check(asyncio.run(sweep(cloud))) == {"SweepReport"}


def test_conforms_rejects_other_types() -> None:
    assert conforms(("a", "b"), tuple[str, ...]) and conforms(None, str | None)
    assert not conforms(("a", 1), tuple[str, ...])
    assert not conforms("a", lcm.WorkerStatus) and not conforms(True, int)
    assert not conforms({"a": 1}, dict[str, str])


def public_names() -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions, and the public methods and properties of the classes."""
    for module in (lcm, ports, testing):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                yield f"{module.__name__}.{name}", value
            for member, defined in vars(value).items() if inspect.isclass(value) else ():
                is_described = inspect.isroutine(defined) or inspect.isdatadescriptor(defined)
                if not member.startswith("_") and is_described and not inspect.ismemberdescriptor(defined):
                    yield f"{module.__name__}.{name}.{member}", defined


def test_help_documents_every_field() -> None:
    classes = {name: getattr(lcm, name) for name in lcm.__all__ if dataclasses.is_dataclass(getattr(lcm, name))}
    assert len(classes) > 12
    for name, cls in classes.items():
        shown = pydoc.plain(pydoc.render_doc(cls))
        for field in dataclasses.fields(cls):
            if field.repr:
                text = re.search(rf"^ \|      {field.name}: .*\n \|          (.*)", shown, re.MULTILINE)
                assert text is not None and len(text[1].split()) > 1, f"{name}.{field.name}"


def test_help_documents_every_public_name() -> None:
    undocumented = [name for name, value in public_names() if len((inspect.getdoc(value) or "").split()) < 3]
    assert not undocumented
