"""What tests of running controllers share."""

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
"""A controller that does not keep a test waiting."""

QUICK_AND_LASTING = {**QUICK, "LEASE_TTL": "600"}
"""The same with a lease that outlasts the test: whoever leads next was let."""


async def eventually(holds: Callable[[], bool], limit: float = 60.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(limit):
        while not holds():
            await asyncio.sleep(0.02)


def assert_ctrl_c_ends(script: str, env: Mapping[str, str]) -> None:
    """Press Ctrl-C while a script that said "ready" waits for an answer that takes a minute."""
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
        # A request is on record only when it has ended. Early or late, the signal has to end the process.
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        # Far less than the minute that the answer takes.
        assert process.wait(timeout=30) != 0
        assert "KeyboardInterrupt" in process.stderr.read()
