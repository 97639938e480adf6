"""Type checkers find the mistakes in `checkers/wrong.py`, and none in `checkers/right.py`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Checker = Callable[[Path], dict[int, str]]
EXAMPLES = Path(__file__).parent / "checkers"
TOOLS = Path(sys.executable).parent


def run(*command: str | Path) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def mypy(file: Path) -> dict[int, str]:
    """Return the errors of mypy by line."""
    shown = run(TOOLS / "mypy", "--no-error-summary", "--hide-error-context", file)
    found = re.findall(rf"^[^:\n]*{file.name}:(\d+): error: (.*)$", shown, re.MULTILINE)
    assert len(found) == shown.count(": error: "), shown
    return {int(line): problem for line, problem in found}


def pyright(file: Path) -> dict[int, str]:
    """Return the errors of pyright by line."""
    # The examples are excluded in the configuration of the project, which counts for files that are named too.
    options = {"venvPath": str(ROOT), "venv": ".venv", "pythonVersion": "3.11"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(file, folder)
        configuration = Path(folder) / "pyrightconfig.json"
        configuration.write_text(json.dumps(options), encoding="utf-8")
        shown = json.loads(run(TOOLS / "pyright", "--outputjson", "--project", configuration))
    assert shown["summary"]["filesAnalyzed"] == 1
    found = [problem for problem in shown["generalDiagnostics"] if problem["severity"] == "error"]
    return {problem["range"]["start"]["line"] + 1: problem["message"] for problem in found}


each_checker = pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)


@each_checker
def test_checker_finds_every_mistake(checker: Checker) -> None:
    source = (EXAMPLES / "wrong.py").read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(source, 1) if line.endswith("# wrong")}
    assert len(wrong) > 30
    assert set(checker(EXAMPLES / "wrong.py")) == wrong


@each_checker
def test_checker_accepts_right_uses(checker: Checker) -> None:
    assert checker(EXAMPLES / "right.py") == {}
