"""Selection of benchmarks and result files. The figures themselves are not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
DOCS = BENCH.parent / "docs"

REPORT = """
import sys
from pathlib import Path
from report import Row, Sample, better, write

rows = [
    better("a `sweep`", "s", [0.1, 0.1, 0.2], [3.0, 2.0, 4.0], "asyncio", at_least=20, note="of a thousand"),
    better("a start", "ms", [10.0], [50.0], "boto3", at_least=10),
    Row("growth", "exponent", Sample.exact(1.01), None, "linear", None, "≤ 1.05", True),
]
where = Path(sys.argv[1])
write(rows, {"processor": "a fast one", "Python": "3.11"}, where, where)
"""


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=BENCH, env={**os.environ, **env}, capture_output=True, text=True, timeout=100
    )


def results() -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in [*BENCH.glob("results.*"), *DOCS.glob("benchmarks.*")]}


def test_unknown_benchmark_is_refused_with_the_known_ones() -> None:
    refused = run("run.py", "sweeep", "decide")
    assert refused.returncode == 2
    _, _, accepted = refused.stderr.partition("unknown benchmark sweeep; accepted: ")
    assert {"decide", "sweep", "orphans", "growth", "cold-start", "fake-ec2", "simulate"} <= set(
        accepted.strip().split(", ")
    )
    assert refused.stdout == ""


def test_selected_benchmark_writes_no_results() -> None:
    before = results()
    done = run("run.py", "--quick", "decide")
    assert done.returncode == 0, done.stderr
    assert "[1/1] decide: " in done.stderr
    assert "| `lcm.decide_many`" in done.stdout
    assert results() == before


def test_simulation_is_measured() -> None:
    done = run("run.py", "--quick", "simulate")
    assert done.returncode == 0, done.stderr
    assert "| simulation of 1,000 workers for 3 days |" in done.stdout
    assert "inputs " in done.stdout


def test_results_are_written_as_json_page_and_plot(tmp_path: Path) -> None:
    done = run("-c", REPORT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert kept["about"]["processor"] == "a fast one"
    assert [(row["what"], row["met"]) for row in kept["rows"]] == [
        ("a `sweep`", True),
        ("a start", False),
        ("growth", True),
    ]
    assert kept["rows"][0]["ours"] == {"median": 0.1, "low": 0.1, "high": 0.2, "turns": 3}
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "2 of 3 goals are met." in page
    assert "| a `sweep` | 0.1 s (0.1 … 0.2) | 3 s (2 … 4) | asyncio | 30 | ≥ 20 | met |" in page
    assert "| a start | 10 ms | 50 ms | boto3 | 5 | ≥ 10 | **missed** |" in page
    assert "| growth | 1.01 exponent | none | linear | none | ≤ 1.05 | met |" in page
    assert "- a `sweep`: of a thousand" in page
    drawn = ElementTree.parse(tmp_path / "benchmarks.svg").getroot()
    texts = ["".join(element.itertext()) for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a sweep", "a start"} <= set(texts) and "growth" not in texts


@pytest.mark.parametrize(("power", "expected"), [(1, "1.000"), (2, "2.000")])
def test_growth_is_an_exponent(power: int, expected: str) -> None:
    sizes = [1_000, 3_000, 10_000]
    script = f"from growth import exponent; print(format(exponent({sizes}, {[n**power for n in sizes]}), '.3f'))"
    assert run("-c", script).stdout.strip() == expected


def test_fakecloud_is_measured_where_its_program_is_on_the_path(tmp_path: Path) -> None:
    script = "from fake_ec2 import peers; print([peer.name for peer in peers()])"
    others = ["moto server", "ministack"]
    assert run("-c", script, PATH=str(tmp_path)).stdout.strip() == str(others)
    program = tmp_path / "fakecloud"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert run("-c", script, PATH=str(tmp_path)).stdout.strip() == str([*others, "fakecloud"])


@pytest.mark.parametrize(("held", "expected"), [(19.9, "met"), (20.1, "missed")])
def test_memory_goal_is_absolute(held: float, expected: str, tmp_path: Path) -> None:
    script = (
        "from fake_ec2 import memory_rows, peers\n"
        f"print(['met' if row.met else 'missed' for row in memory_rows(peers(), [{held}, 200.0, 15.0])])"
    )
    assert run("-c", script, PATH=str(tmp_path)).stdout.strip() == str([expected] * 2)
