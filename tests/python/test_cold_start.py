"""What keeps the way to the first answer short, and that nobody can tell from what comes out."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from lcm.testing import FakeCloud

# What takes longer to import than it takes to reconcile a worker.
HEAVY = ["asyncio", "dataclasses", "inspect", "logging", "re", "threading", "typing"]
PASS = "import lcm; assert lcm.reconcile(lcm.Worker('w-1', 'stopped')).error is None"


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """The package's own, in place of the command that the other tests use."""
    with FakeCloud() as cloud:
        yield cloud


def say(script: str, cloud: FakeCloud | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python process that nothing is imported in yet, and what it says."""
    environment = {**os.environ, **(cloud.env if cloud else {}), **variables}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return ended


def imported_by(script: str, cloud: FakeCloud | None = None) -> set[str]:
    before = set(say("import sys; print(*sys.modules)").stdout.split())
    return set(say(f"{script}; import sys; print(*sys.modules)", cloud).stdout.split()) - before


def test_an_import_brings_nothing_that_is_not_needed_yet() -> None:
    imported = imported_by("from lcm import Clients, Worker, decide, reconcile")
    assert imported.isdisjoint([*HEAVY, "datetime", "enum", "lcm.enums", "lcm.values"]), imported


def test_a_pass_brings_no_more_than_its_outcome_is_made_of(fake_cloud: FakeCloud) -> None:
    imported = imported_by(PASS, fake_cloud)
    assert "lcm.enums" in imported
    assert imported.isdisjoint([*HEAVY, "lcm.observation", "lcm.policy", "lcm.failure"]), imported


def test_a_warning_is_shown_also_where_nobody_has_imported_logging(fake_cloud: FakeCloud) -> None:
    said = say(PASS, fake_cloud, CML_PROT="443")
    assert "CML_PROT is not a setting; did you mean CML_PORT?" in said.stderr


def test_whoever_begins_to_listen_hears_of_the_next_pass(fake_cloud: FakeCloud) -> None:
    script = """
        {0}
        import logging, sys
        print("now", file=sys.stderr)
        logging.basicConfig(level="INFO", format="%(name)s")
        {0}
    """
    said = say(script.format(PASS), fake_cloud)
    before, _, after = said.stderr.partition("now")
    assert before == "" and "lcm.reconcile" in after.splitlines()
