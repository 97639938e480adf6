"""What the README shows runs as it stands, beside the cloud that it tells the reader to start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lcm.testing import FakeCloud

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = [block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if not block.startswith("make ")]
CLOUDS = re.findall(r'make fake-cloud ARGS="--scenario (\S+) --clock (\S+)"', README)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A shell's environment with the exports of that cloud, and nothing else of AWS or etcd."""
    [(scenario, clock)] = CLOUDS
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ETCD"))}
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with FakeCloud(scenario=scenario, clock=clock) as cloud:
        yield {**own, "HOME": "/nonexistent", "PATH": tools, **cloud.env}


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", PYTHON)
def test_a_python_example_runs(example: str, environment: dict[str, str]) -> None:
    # virl2_client hands httpx the authority in a way that httpx would rather not see any more.
    warnings = ["-W", "error", "-W", "ignore::DeprecationWarning:httpx._config"]
    assert run([sys.executable, *warnings, "-c", example], environment)


@pytest.mark.parametrize("example", SHELL)
def test_the_commands_find_the_workers_of_the_cloud(example: str, environment: dict[str, str]) -> None:
    told = run(["bash", "-euo", "pipefail", "-c", example], environment)
    assert len(re.findall(r"^i-\w+\s+running\s+127\.", told, re.MULTILINE)) == 2, told
    assert "/lcm/workers/w-blue/" in told and "/lcm/workers/w-green/" in told, told


def test_there_are_examples() -> None:
    assert (len(PYTHON), len(SHELL), len(CLOUDS)) == (2, 1, 1)
