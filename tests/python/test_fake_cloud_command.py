"""`python -m lcm.fake_cloud` is the same command as the binary."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import fake_cloud_binary, start, stop

MODULE = [sys.executable, "-m", "lcm.fake_cloud"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MODULE, *arguments], capture_output=True, text=True, timeout=60)


def binary(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([fake_cloud_binary(), *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--speed", "11"], ["--clock", "soon"]])
def test_usage_matches_the_binary_except_for_the_name(arguments: list[str]) -> None:
    ours, theirs = run(*arguments), binary(*arguments)
    assert ours.returncode == theirs.returncode == (0 if "h" in arguments[0][:3] else 2)
    renamed = {"Usage: fake-cloud": "Usage: python -m lcm.fake_cloud"}
    for one, other in [(ours.stdout, theirs.stdout), (ours.stderr, theirs.stderr)]:
        for name, our_name in renamed.items():
            other = other.replace(name, our_name)
        assert one == other
    assert bool(ours.stdout) != bool(ours.stderr), "results go to stdout, errors to stderr"


@pytest.mark.parametrize("arguments", [["--version"], ["--list-scenarios"], ["--scenario", "nowhere.yaml"]])
def test_offline_commands_match_the_binary(arguments: list[str]) -> None:
    ours, theirs = run(*arguments), binary(*arguments)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.stdout or ours.stderr


def test_port_in_use_prints_one_line_and_exits_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("--aws-port", port, "--etcd-port=0", "--control-plane-port=0", "--cml-port=0")
    assert (ended.returncode, ended.stdout) == (1, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"fake-cloud: cannot listen on 127.0.0.1:{port} for AWS: ") and "--ephemeral" in line


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_the_command_cleanly(sent: signal.Signals) -> None:
    command = [*MODULE, "--ephemeral", "--json", "--scenario", "orphans", "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            endpoints = json.loads(process.stdout.readline())
            with urllib.request.urlopen(f"{endpoints['admin_url']}state", timeout=30) as response:
                assert len(json.load(response)["workers"]) == 13
            headers = {"X-API-Key": endpoints["control_plane_api_key"]}
            request = urllib.request.Request(f"{endpoints['control_plane_url']}/api/internal/workers", headers=headers)
            urllib.request.urlopen(request, timeout=30).close()
            logged = process.stderr.readline()
            process.send_signal(sent)
            rest, complaints = process.communicate(timeout=20)
        finally:
            process.kill()
    assert "control-plane" in logged, "-v logs every request"
    assert (process.returncode, rest, complaints) == (0, "", "")
    assert not Path(endpoints["cml_ca_file"]).exists(), "the certificate is removed"


def test_closed_stdout_does_not_end_the_command() -> None:
    with subprocess.Popen(
        [*MODULE, "--ephemeral"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("EC2, CloudWatch  http://127.0.0.1:")
            process.stdout.close()
            process.stdout = None
            process.send_signal(signal.SIGTERM)
            _, complaints = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, complaints) == (0, "")


@pytest.mark.parametrize(("arguments", "generation"), [([], "original"), (["--control-plane", "extended"], "extended")])
def test_chosen_control_plane_is_served(arguments: list[str], generation: str) -> None:
    cloud = start(*arguments)
    try:
        assert cloud.admin("GET", "state")["control_plane"] == {"generation": generation}
    finally:
        assert stop(cloud) == 0
