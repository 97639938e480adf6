"""`python -m lcm.fake_etcd` is the command `fake-cloud etcd`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

MODULE = [sys.executable, "-m", "lcm.fake_etcd"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MODULE, *arguments], capture_output=True, text=True, timeout=60)


def test_help_shows_examples() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    assert "Usage: python -m lcm.fake_cloud etcd [OPTIONS]" in ended.stdout
    assert "etcdctl --user root:secret snapshot save" in ended.stdout


@pytest.mark.parametrize("arguments", [["--clock", "manual"], ["--key-file", "x.pem"], ["--host", "0.0.0.0"]])
def test_invalid_arguments_exit_with_2(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr


def test_missing_certificate_exits_with_1() -> None:
    ended = run("--port", "0", "--cert-file", "nowhere.pem", "--key-file", "nowhere.pem")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("fake-cloud: invalid PEM file 'nowhere.pem': ")


def test_signal_stops_the_server() -> None:
    with subprocess.Popen([*MODULE, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            endpoint = json.loads(process.stdout.readline())["endpoint"]
            with urllib.request.urlopen(f"{endpoint}/health", timeout=30) as response:
                assert json.load(response) == {"health": "true", "reason": ""}
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "")
