"""Every Python example of every page runs, and every command of a page exists with its options."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lcm.testing import FakeCloud

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CLOUD = re.findall(
    r'make fake-cloud ARGS="--scenario (\S+) --clock (\S+)"',
    (ROOT / "docs" / "fake-cloud.md").read_text(encoding="utf-8"),
)
OWN = {"fake-cloud", "lcm", "worker-controller"}
# Commands that other tests run, or that change the machine of the reader.
OTHERS = {"aws", "cargo", "cp", "curl", "docker", "etcdctl", "kubectl", "make", "pip", "sudo", "twine"}


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of a language, each with the name of its page and its number."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        texts = re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
        found += [(f"{page.relative_to(ROOT)}-{number}", text) for number, text in enumerate(texts, 1)]
    return found


PYTHON = blocks("python")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Environment of a shell with the exports of a fake cloud, without other variables of AWS or etcd."""
    [(scenario, clock)] = CLOUD
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ETCD", "PYTEST_"))}
    with FakeCloud(scenario=scenario, clock=clock) as cloud:
        yield {**own, "HOME": "/nonexistent", **cloud.env}


@pytest.mark.parametrize("example", [pytest.param(text, id=name) for name, text in PYTHON])
def test_python_example_runs(example: str, environment: dict[str, str], tmp_path: Path) -> None:
    # virl2_client passes the authority to httpx in a deprecated way.
    warnings = ["-W", "error", "-W", "ignore::DeprecationWarning:httpx._config"]
    command = [sys.executable, *warnings, "-c", example]
    if "def test_" in example:
        file = tmp_path / "test_example.py"
        file.write_text(example, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--rootdir", str(tmp_path), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_searched_for_examples() -> None:
    assert len(PAGES) > 35 and len(PYTHON) > 20


def options(program: str) -> str:
    """Return the help of a program of ours."""
    if program == "fake-cloud":
        commands = [[sys.executable, "-m", f"lcm.{module}", "--help"] for module in ("fake_cloud", "fake_etcd")]
        return "".join(subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in commands)
    source = ROOT / "lcm-cli" / "src" / "arguments.rs"
    pattern = r"#\[arg\((?:short, )?long\b[^\]]*\)\]\s+pub\(crate\) (\w+):"
    names = re.findall(pattern, source.read_text(encoding="utf-8"))
    return " ".join(["--help", *(f"--{name.replace('_', '-')}" for name in names), options("fake-cloud")])


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of every command line of every page, with its place."""
    for name, text in blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words:
                yield name, words


def test_commands_of_pages_exist_with_their_options() -> None:
    help_of = {program: options(program) for program in OWN}
    wrong = []
    for place, words in commands():
        program = words[0].removeprefix(".venv/bin/")
        if program in help_of:
            wrong += [f"{place}: {word}" for word in words if word.startswith("--") and word not in help_of[program]]
        elif program == "python":
            wrong += [] if words[1:3] in (["-m", "lcm.fake_cloud"], ["-m", "lcm.fake_etcd"]) else [f"{place}: {words}"]
        elif program not in OTHERS and not (ROOT / program).exists() and program not in {"maturin", "jupyter-lab"}:
            wrong.append(f"{place}: {program}")
    assert not wrong
