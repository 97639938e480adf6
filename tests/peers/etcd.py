"""Runs the suites of etcd clients, as their packages ship them, against a real etcd and against the fake one.

Only suites that come with a package: those of `etcd-client` (the crate), and of `aetcd` and `etcd3` (the source
distributions). All expect etcd on port 2379 of this machine, which must be free. The same tests must pass on both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "target" / "peers"
PORT = 2379
PATIENCE = 30.0

Outcomes = dict[str, str]


def output(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command, which may fail, and return what it prints."""
    result = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return result.stdout


@contextlib.contextmanager
def server(*command: str) -> Iterator[None]:
    """Run a server on port 2379 during the block."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            sys.exit(f"port {PORT} is in use: the suites expect their server there")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while socket.socket().connect_ex(("127.0.0.1", PORT)) != 0:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{command[0]} does not listen on port {PORT}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def etcd_client() -> Callable[[], Outcomes]:
    """The suite of the crate `etcd-client`, in the version of this workspace."""
    metadata = json.loads(
        subprocess.check_output(["cargo", "metadata", "--locked", "--format-version", "1"], cwd=ROOT, text=True)
    )
    [manifest] = [p["manifest_path"] for p in metadata["packages"] if p["name"] == "etcd-client"]
    crate = PEERS / "etcd-client"
    shutil.rmtree(crate, ignore_errors=True)
    shutil.copytree(Path(manifest).parent, crate)
    # A package inside another workspace needs a workspace of its own.
    with (crate / "Cargo.toml").open("a") as toml:
        toml.write("\n[workspace]\n")
    build = ["cargo", "test", "--no-run", "--tests", "--target-dir", str(PEERS / "target")]
    subprocess.run(build, cwd=crate, check=True)

    def run() -> Outcomes:
        printed = output(*(word for word in build if word != "--no-run"), "--", "--test-threads", "4", cwd=crate)
        return dict(re.findall(r"^test (\S+) \.\.\. (ok|FAILED|ignored)", printed, re.MULTILINE))

    return run


def python_suite(package: str, requirements: str) -> Callable[[], Outcomes]:
    """The suite in the source distribution of a Python package, which is pinned in a file of requirements."""
    venv = PEERS / f"{package}-venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    file = Path(__file__).with_name(requirements)
    subprocess.run([*pip, "install", "--requirement", file], check=True)
    [pinned] = [line for line in file.read_text().splitlines() if line.startswith(f"{package}==")]
    with tempfile.TemporaryDirectory() as downloads:
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", package, "--dest", downloads, pinned], check=True)
        [archive] = Path(downloads).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(PEERS, filter="data")
    suite = PEERS / pinned.replace("==", "-")

    def run() -> Outcomes:
        path = os.pathsep.join([os.environ["LCM_ETCD_BIN"], os.environ["PATH"]])
        options = ["-v", "-W", "ignore", "--timeout", "60", "-p", "no:cacheprovider", "--override-ini=addopts="]
        command = [str(venv / "bin" / "python"), "-m", "pytest", *options, "tests"]
        found = output(*command, cwd=suite, PATH=path, ETCDCTL_API="3", PYTHON_ETCD_HTTP_URL="http://localhost:2379")
        return {
            name: how for name, how in re.findall(r"^(tests/\S+) (PASSED|FAILED|ERROR|SKIPPED)", found, re.MULTILINE)
        }

    return run


SUITES: dict[str, Callable[[], Callable[[], Outcomes]]] = {
    "etcd-client": etcd_client,
    "aetcd": lambda: python_suite("aetcd", "requirements.txt"),
    "etcd3": lambda: python_suite("etcd3", "requirements-etcd3.txt"),
}


def main() -> int:
    """Run the suites and print a table. The exit code is 1 if a test differs between the servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake-cloud", default=str(ROOT / "target" / "debug" / "fake-cloud"), metavar="PROGRAM")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all by default")
    arguments = parser.parse_args()
    real = str(Path(os.environ["LCM_ETCD_BIN"]) / "etcd")
    PEERS.mkdir(parents=True, exist_ok=True)
    differences = 0
    print("| suite | fake | etcd 3.5.1 |\n|---|---|---|")
    for name in arguments.suites or SUITES:
        run = SUITES[name]()
        with tempfile.TemporaryDirectory() as data, server(real, "--data-dir", data, "--log-level", "error"):
            theirs = run()
        with server(arguments.fake_cloud, "etcd"):
            ours = run()
        passed = [sum(how in {"ok", "PASSED"} for how in outcomes.values()) for outcomes in (ours, theirs)]
        print(f"| {name} | {passed[0]} of {len(ours)} | {passed[1]} of {len(theirs)} |", flush=True)
        for test in sorted(ours.keys() | theirs.keys()):
            if ours.get(test) != theirs.get(test):
                differences += 1
                print(f"  {test}: {ours.get(test)} on the fake, {theirs.get(test)} on etcd", file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
