"""Commands of docs/fake-cloud.md run unchanged, on the fake cloud that the page starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lcm.testing import FakeCloud

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fake-cloud.md").read_text(encoding="utf-8")
SHELL = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if not block.startswith("make ")]
CLOUDS = re.findall(r'make fake-cloud ARGS="--scenario (\S+) --clock (\S+)"', PAGE)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Environment of a shell with the exports of that cloud, without other variables of AWS or etcd."""
    [(scenario, clock)] = CLOUDS
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ETCD"))}
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with FakeCloud(scenario=scenario, clock=clock) as cloud:
        yield {**own, "HOME": "/nonexistent", "PATH": tools, **cloud.env}


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_find_the_workers(environment: dict[str, str]) -> None:
    output = run(["bash", "-euo", "pipefail", "-c", SHELL[0]], environment)
    assert len(re.findall(r"^i-\w+\s+running\s+127\.", output, re.MULTILINE)) == 2, output
    assert "/lcm/workers/w-blue/" in output and "/lcm/workers/w-green/" in output, output


def test_commands_use_another_account(environment: dict[str, str]) -> None:
    output = run(["bash", "-euo", "pipefail", "-c", SHELL[1]], environment)
    assert '"Account": "999999999999"' in output


def test_all_commands_are_collected() -> None:
    assert (len(SHELL), len(CLOUDS)) == (2, 1)
