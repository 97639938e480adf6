"""Helpers for tests of running controllers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

QUICK = {
    "RECONCILE_INTERVAL": "1",
    "INITIAL_DELAY": "0",
    "STARTUP_RECONCILE_DELAY": "0",
    "WORKER_DISCOVERY_ENABLED": "false",
}
"""Settings of a controller without startup delays."""

QUICK_AND_LASTING = {**QUICK, "LEASE_TTL": "600"}
"""QUICK with a lease that outlasts the test: another controller leads only if the lease is released."""


async def eventually(holds: Callable[[], bool], limit: float = 60.0) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(limit):
        while not holds():
            await asyncio.sleep(0.02)


def assert_ctrl_c_ends(script: str, env: Mapping[str, str]) -> None:
    """Send SIGINT to a script that printed "ready" and waits for a response that takes a minute."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        # Requests are logged at their end, so the start cannot be awaited. The signal must work at any time.
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        # Far less than the minute that the response takes.
        assert process.wait(timeout=30) != 0
        assert "KeyboardInterrupt" in process.stderr.read()
