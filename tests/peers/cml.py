"""Runs the walk through the fake CML with each release of virl2_client, as PyPI has it."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "target" / "peers"
WALK = ROOT / "tests" / "python" / "test_cml_walk.py"
CLIENTS = ["2.9.1", "2.10.1"]


def client(version: str) -> Path:
    """Install a release of the client, whose dependencies the virtual environment has."""
    target = PEERS / f"virl2_client-{version}"
    if not target.is_dir():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
        subprocess.run([*pip, "--target", target, f"virl2_client=={version}"], check=True)
    return target


def main() -> int:
    """Run the walks and print a table. The exit code is 1 if a step fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", default=str(ROOT / "target" / "debug" / "examples" / "lab"), metavar="PROGRAM")
    arguments = parser.parse_args()
    PEERS.mkdir(parents=True, exist_ok=True)
    status = 0
    print("| client | steps |\n|---|---|")
    for version in CLIENTS:
        settings = {"PYTHONPATH": str(client(version)), "FAKE_CLOUD_LAB": arguments.lab}
        # Without conftest.py, which needs the package of this project.
        command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", str(WALK)]
        run = subprocess.run(command, cwd=ROOT, env=os.environ | settings, stdout=subprocess.PIPE, text=True)
        counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", run.stdout)}
        print(f"| virl2_client {version} | {counts.get('passed', 0)} of {sum(counts.values())} |", flush=True)
        if run.returncode != 0:
            status = 1
            print(run.stdout, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
