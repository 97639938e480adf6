"""Logs of LCM as JSON, with the formatter of structlog that docs/embedding.md shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

GUIDE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")


def test_formatter_of_structlog_writes_json() -> None:
    (example,) = re.findall(r"```python\n(import logging\n.*?)```", GUIDE, re.DOTALL)
    run = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert any(line["event"].startswith("A drain was asked for.") for line in lines)
    assert all({"event", "level", "logger", "timestamp"} <= line.keys() for line in lines)
    assert all(line["logger"].startswith("lcm") for line in lines)
