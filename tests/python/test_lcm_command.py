"""The command `lcm` of the package is the same program as the binary."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from conftest import built_program
from lcm.testing import FakeCloud

MODULE = [sys.executable, "-m", "lcm"]


def run(
    *arguments: str, env: dict[str, str] | None = None, program: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(program or MODULE), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["workers", "--help"],
        ["workers", "--wach"],
        ["fake-cloud", "--list-scenarios"],
        ["completions", "bash"],
    ],
)
def test_offline_commands_match_the_binary(arguments: list[str]) -> None:
    ours, theirs = run(*arguments), run(*arguments, program=[str(built_program("lcm"))])
    assert ours.returncode == theirs.returncode
    renamed = [text.replace("python -m lcm", "lcm") for text in (ours.stdout, ours.stderr)]
    assert renamed == [theirs.stdout, theirs.stderr]
    assert ours.stdout or ours.stderr


def test_workers_match_the_binary() -> None:
    with FakeCloud(scenario="drain", clock="real") as cloud:
        ours = run("workers", "-o", "json", env=cloud.env)
        theirs = run("workers", "-o", "json", env=cloud.env, program=[str(built_program("lcm"))])
    assert (ours.returncode, ours.stderr) == (0, "")
    assert [worker["id"] for worker in json.loads(ours.stdout)] == ["w-blue", "w-green"]
    assert ours.stdout == theirs.stdout


@pytest.mark.parametrize(
    "program",
    [[*MODULE, "controller"], [sys.executable, "-c", "from lcm.command import worker_controller as run; run()"]],
    ids=["lcm controller", "worker-controller"],
)
def test_controller_of_the_package_plans_and_logs(program: list[str]) -> None:
    with FakeCloud(scenario="drain", clock="real") as cloud:
        plan = run("--once", "--dry-run", env={**cloud.env, "LCM_LOG_LEVEL": "info"}, program=program)
    assert plan.returncode == 0, plan.stderr
    assert "2 workers in " in plan.stdout and " INFO " in plan.stderr


def test_verbose_adds_the_logs() -> None:
    with FakeCloud(scenario="drain", clock="real") as cloud:
        listed = run("plan", "--verbose", env={**cloud.env, "LCM_LOG_LEVEL": "debug"})
    assert listed.returncode == 0 and " DEBUG " in listed.stderr, listed.stderr


def test_failed_calls_are_one_sentence() -> None:
    gone = {"CONTROL_PLANE_API_URL": "http://127.0.0.1:1", "CONTROL_PLANE_API_RETRIES": "0", "ETCD_ENDPOINTS": ""}
    failed = run("workers", env=gone)
    assert (failed.returncode, failed.stdout) == (1, "")
    [line] = failed.stderr.splitlines()
    assert line.startswith("lcm: the workers could not be listed: ")


def test_fake_cloud_help_names_the_command() -> None:
    assert "Usage: python -m lcm fake-cloud [OPTIONS]" in run("fake-cloud", "--help").stdout


def test_fake_cloud_stops_cleanly_on_a_signal() -> None:
    command = [*MODULE, "fake-cloud", "--ephemeral", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["control_plane_url"].startswith("http://127.0.0.1:")
            process.send_signal(signal.SIGINT)
            rest, complaints = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, rest, complaints) == (0, "", "")


@pytest.mark.parametrize(("no_color", "is_colored"), [("", True), ("1", False)])
def test_color_appears_on_a_terminal_only(no_color: str, is_colored: bool) -> None:
    with FakeCloud(scenario="drain", clock="real") as cloud:
        primary, secondary = pty.openpty()
        environment = {**os.environ, **cloud.env, "NO_COLOR": no_color}
        ended = subprocess.run([*MODULE, "workers"], stdout=secondary, env=environment, timeout=60)
        os.close(secondary)
        shown = os.read(primary, 65536).decode()
        os.close(primary)
    assert ended.returncode == 0
    assert ("\x1b[32mrunning" in shown) == is_colored
    assert "w-blue" in shown


def read_terminal(terminal: int) -> str:
    """Reads a pseudo-terminal until no process has it open, and closes it."""
    read = bytearray()
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 4096):
            read += part
    os.close(terminal)
    return read.decode()


def test_sweep_shows_a_bar_with_its_total() -> None:
    with FakeCloud(scenario="bad-day", clock="real") as cloud:
        cloud.inject({"kind": "latency", "seconds": 1.0}, service="ec2", operation="Describe*")
        primary, secondary = pty.openpty()
        environment = {**os.environ, **cloud.env, "TERM": "xterm"}
        command = [*MODULE, "plan", "-o", "name"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=secondary, env=environment) as running:
            os.close(secondary)
            shown = read_terminal(primary)
            assert running.stdout is not None
            printed = running.stdout.read().decode()
    assert "w-" in printed
    assert re.search(r"\d+/10 workers decided", shown), shown
    # The line is cleared before the result is printed.
    assert shown.rstrip().endswith("\x1b[2K"), shown
