"""Builds and runs the Rust benchmarks of `bench/rust` and parses their JSON lines."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import native

HERE = Path(__file__).parent
ROOT = HERE.parent


@functools.cache
def programs() -> Path:
    """Directory of the release binaries. The first build takes minutes."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target" / "bench" / "rust"))
    print("      building bench/rust (minutes the first time) …", file=sys.stderr, flush=True)
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", str(target)]
    # The etcd client is generated at build time; protoc comes with the virtual environment.
    compiler = {"PROTOC": str(Path(sys.executable).with_name("protoc"))}
    subprocess.run(command, cwd=HERE / "rust", env=compiler | os.environ, check=True)
    return target / "release"


def measure(program: str, *words: str, given: object = None) -> list[dict[str, Any]]:
    """Runs a program; returns its JSON lines."""
    servers = {"LCM_ETCD_BIN": str(Path(sys.executable).parent), "LCM_FAKE_CLOUD": native()[0]}
    run = subprocess.run(
        [programs() / program, *words],
        env=servers | os.environ,
        input=None if given is None else json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


def bench(name: str, *, quick: bool, given: object = None) -> list[dict[str, Any]]:
    """Runs one benchmark of `lcm-bench`; returns its JSON lines."""
    return measure("lcm-bench", name, *(["--quick"] if quick else []), given=given)
