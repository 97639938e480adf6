"""Imports are lazy, without a difference in behavior."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from lcm.testing import FakeCloud

# Modules that take longer to import than a worker takes to reconcile.
HEAVY = ["asyncio", "dataclasses", "inspect", "logging", "re", "threading", "typing"]
PASS = "import lcm; assert lcm.reconcile(lcm.Worker('w-1', 'stopped')).error is None"


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """The fake cloud of the package instead of the command's."""
    with FakeCloud() as cloud:
        yield cloud


def run_fresh(script: str, cloud: FakeCloud | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh Python process."""
    environment = {**os.environ, **(cloud.env if cloud else {}), **variables}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return ended


def imported_by(script: str, cloud: FakeCloud | None = None) -> set[str]:
    before = set(run_fresh("import sys; print(*sys.modules)").stdout.split())
    return set(run_fresh(f"{script}; import sys; print(*sys.modules)", cloud).stdout.split()) - before


def test_import_loads_no_heavy_modules() -> None:
    imported = imported_by("from lcm import Clients, Worker, decide, reconcile")
    assert imported.isdisjoint([*HEAVY, "datetime", "enum", "lcm.enums", "lcm.values"]), imported


def test_reconcile_loads_no_heavy_modules(fake_cloud: FakeCloud) -> None:
    imported = imported_by(PASS, fake_cloud)
    assert "lcm.enums" in imported
    assert imported.isdisjoint([*HEAVY, "lcm.observation", "lcm.policy", "lcm.failure"]), imported


def test_warnings_are_shown_before_logging_is_imported(fake_cloud: FakeCloud) -> None:
    result = run_fresh(PASS, fake_cloud, CML_PROT="443")
    assert "CML_PROT is not a setting; did you mean CML_PORT?" in result.stderr


def test_logging_set_up_later_receives_the_next_reconcile(fake_cloud: FakeCloud) -> None:
    script = """
        {0}
        import logging, sys
        print("now", file=sys.stderr)
        logging.basicConfig(level="DEBUG", format="%(name)s")
        {0}
    """
    result = run_fresh(script.format(PASS), fake_cloud)
    before, _, after = result.stderr.partition("now")
    assert before == "" and "lcm.reconcile" in after.splitlines()
