"""Processes of a benchmark: fake clouds and programs that report in JSON. Resource usage is read from /proc."""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

HERE = Path(__file__).parent
ROOT = HERE.parent
PEERS = ROOT / "target" / "bench" / "peers"
PATIENCE = 120.0


@dataclass(frozen=True)
class Server:
    """A cloud in a separate process."""

    pid: int
    host: str
    port: int

    def cpu(self) -> float:
        """Processor time used so far, in seconds."""
        return cpu_seconds(self.pid)

    def memory(self) -> int:
        """Resident memory in bytes."""
        return resident(self.pid)


@dataclass(frozen=True)
class FakeCloud(Server):
    """The fake cloud, with its request log."""

    url: str
    env: dict[str, str]

    def count(self, **query: str) -> int:
        """Number of logged requests that match."""
        return len(self._admin("GET", f"requests?{urlencode(query)}"))

    def forget(self) -> None:
        """Clears the request log."""
        self._admin("DELETE", "requests")

    def workers(self) -> list[dict[str, Any]]:
        """A summary of every record, terminated ones included."""
        found: list[dict[str, Any]] = self._admin("GET", "state")["workers"]
        return found

    def statuses(self) -> dict[str, str]:
        """Status of each record, by worker id."""
        return {worker["id"]: worker["status"] for worker in self.workers()}

    def listening(self) -> int:
        """Number of CML servers that listen."""
        return sum(server["listening"] for server in self._admin("GET", "state")["cml"])

    def _admin(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/_fake/{path}", data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process in seconds, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_sockets() -> int:
    """Raises the number of open files of this process and its children to the allowed maximum, and returns how many
    sockets that leaves to one child."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most - 500


@contextmanager
def on_one_core(*servers: Server) -> Iterator[None]:
    """Pins this process and the servers to one core.

    Client and server alternate anyway; waking another core in a virtual machine takes longer than a short request and
    would be measured with it.
    """
    before = os.sched_getaffinity(0)
    core = {max(before)}
    for server in servers:
        for thread in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), core)
    os.sched_setaffinity(0, core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@functools.cache
def native() -> tuple[str, ...]:
    """The program `fake-cloud`, built as by `make fake-cloud`. The first build takes minutes."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    print("      building fake-cloud (minutes the first time) …", file=sys.stderr, flush=True)
    command = ["cargo", "build", "--quiet", "--profile", "program", "--locked", "--package", "fake-cloud"]
    subprocess.run([*command, "--target-dir", str(target)], cwd=ROOT, check=True)
    return (str(target / "program" / "fake-cloud"),)


IN_PYTHON = (sys.executable, "-m", "lcm.fake_cloud")
"""The same command started through Python."""


@contextmanager
def fake_cloud(*options: str, program: tuple[str, ...] | None = None, cmls: int = 0) -> Iterator[FakeCloud]:
    """A fake cloud on free ports with at most ``cmls`` CML servers; the native program unless ``program`` is given."""
    command = [*(program or native()), "--json", "--ephemeral", "--cml-limit", str(cmls), *options]
    # It warns about every instance without a CML server, which is intended here.
    with (
        tempfile.TemporaryFile("w+") as notices,
        ending(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=notices, text=True)) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            notices.seek(0)
            raise RuntimeError(f"the fake cloud did not start: {notices.read()}")
        announced = json.loads(line)
        place = urlsplit(announced["aws_url"])
        assert place.hostname and place.port
        yield FakeCloud(process.pid, place.hostname, place.port, announced["aws_url"], announced["env"])


def moto() -> AbstractContextManager[Server]:
    """moto's server."""
    return other_fake("moto", lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])


def ministack() -> AbstractContextManager[Server]:
    """ministack, which is configured by its environment."""
    return other_fake(
        "ministack",
        lambda _: [sys.executable, "-m", "ministack"],
        lambda port: {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1"},
    )


FAKECLOUD = shutil.which("fakecloud")
"""The program `fakecloud` of the crate with this name, if it is on the PATH. Its license is the AGPL, so it is never
built or linked here."""


def fakecloud() -> AbstractContextManager[Server]:
    """fakecloud, with its state in memory and without other processes."""
    assert FAKECLOUD is not None
    program = FAKECLOUD
    return other_fake("fakecloud", lambda port: [program, "--addr", f"127.0.0.1:{port}", "--log-level", "error"])


@contextmanager
def other_fake(
    name: str, command: Callable[[int], list[str]], env: Callable[[int], dict[str, str]] = lambda _: {}
) -> Iterator[Server]:
    """Another fake of AWS on a free port, once it accepts connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = subprocess.Popen(
        command(port), env={**os.environ, **env(port)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with ending(quiet) as process:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{name} does not start") from None
                time.sleep(0.005)
        yield Server(process.pid, "127.0.0.1", port)


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """Terminates the process on exit."""
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def peer(*words: str | int, env: Mapping[str, str]) -> dict[str, Any]:
    """Runs a program of this directory with the alternatives on its path; returns its JSON report."""
    if not PEERS.exists():
        raise RuntimeError(f"{PEERS} is missing: run `make bench`, which installs the alternatives")
    return _report(str(PEERS), *words, env=env)


def alone(*words: str | float, env: Mapping[str, str]) -> dict[str, Any]:
    """Runs a program of this directory with the measured LCM on its path; returns its JSON report."""
    return _report(os.environ.get("PYTHONPATH", ""), *words, env=env)


def _report(libraries: str, *words: str | float, env: Mapping[str, str]) -> dict[str, Any]:
    path = os.pathsep.join([libraries, str(HERE)])
    command = [sys.executable, *(str(word) for word in words)]
    done = subprocess.run(
        command, cwd=HERE, env={**os.environ, **env, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True
    )
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported
