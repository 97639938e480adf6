"""The frame around the benches: what is asked for, what is written. What they measure is not tested here."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"

REPORT = """
import sys
from pathlib import Path
from report import BEGIN, END, Row, better, write

rows = [
    better("a `sweep`", "s", 0.1, 3.0, "asyncio", at_least=20, note="of a thousand"),
    better("a start", "ms", 10.0, 50.0, "boto3", at_least=10),
    Row("growth", "exponent", 1.01, 1.0, "linear", None, "≤ 1.05", True),
]
where = Path(sys.argv[1])
readme = where / "README.md"
readme.write_text(f"before\\n{BEGIN}old\\n{END}after\\n", encoding="utf-8")
write(rows, {"processor": "a fast one", "Python": "3.11"}, where, readme)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=BENCH, capture_output=True, text=True, timeout=100)


def test_a_bench_that_is_none_is_refused_with_those_there_are() -> None:
    refused = run("run.py", "sweeep", "decide")
    assert refused.returncode == 2
    _, _, accepted = refused.stderr.partition("there is no bench sweeep; accepted: ")
    assert {"decide", "sweep", "orphans", "growth", "cold-start", "fake-ec2"} <= set(accepted.strip().split(", "))
    assert refused.stdout == ""


def test_one_bench_can_be_run_alone_and_writes_nothing() -> None:
    before = {path: path.stat().st_mtime for path in BENCH.glob("results.*")}
    done = run("run.py", "--quick", "decide")
    assert done.returncode == 0, done.stderr
    assert "[1/1] decide: " in done.stderr
    assert "| `lcm.decide_many`, a mixed fleet of 2,000, per worker |" in done.stdout
    assert {path: path.stat().st_mtime for path in BENCH.glob("results.*")} == before


def test_results_are_written_for_people_and_for_programs(tmp_path: Path) -> None:
    done = run("-c", REPORT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert kept["about"]["processor"] == "a fast one"
    assert [(row["what"], row["met"]) for row in kept["rows"]] == [
        ("a `sweep`", True),
        ("a start", False),
        ("growth", True),
    ]
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "2 of 3 goals are met." in page
    assert "| a `sweep` | 0.1 s | 3 s | asyncio | 30 | ≥ 20 | met |" in page
    assert "| a start | 10 ms | 50 ms | boto3 | 5 | ≥ 10 | **short** |" in page
    assert "| growth | 1.01 exponent | 1 exponent | linear | none | ≤ 1.05 | met |" in page
    assert "- a `sweep`: of a thousand" in page
    drawn = ElementTree.parse(tmp_path / "results.svg").getroot()
    texts = ["".join(element.itertext()) for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a sweep", "a start"} <= set(texts) and "growth" not in texts
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("before\n") and readme.endswith("after\n") and "old" not in readme
    assert "| a start | 10 ms | 50 ms | 5 | ≥ 10 | **short** |" in readme


@pytest.mark.parametrize(("power", "expected"), [(1, "1.000"), (2, "2.000")])
def test_growth_is_told_as_an_exponent(power: int, expected: str) -> None:
    sizes = [1_000, 3_000, 10_000]
    script = f"from growth import exponent; print(format(exponent({sizes}, {[n**power for n in sizes]}), '.3f'))"
    assert run("-c", script).stdout.strip() == expected
