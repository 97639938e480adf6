"""Facts about the machine and the software that produced the results."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from processes import FAKECLOUD, HERE


def facts() -> dict[str, str]:
    """Processor, memory, operating system and the versions of the alternatives."""
    peers = dict(line.split("==") for line in (HERE / "requirements.txt").read_text().splitlines() if "==" in line)
    against = [f"{name} {peers[name]}" for name in ("boto3", "aiobotocore", "aiohttp")]
    against += [f"{name} {version(name)}" for name in ("moto", "ministack")]
    if FAKECLOUD:
        against.append(
            subprocess.run([FAKECLOUD, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        )
    return {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": f"{_field('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) / 1e6:.0f} GB",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": f"{platform.python_version()}; {', '.join(against)}",
    }


def _field(file: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.+)$", Path(file).read_text(), re.MULTILINE)
    return found[1] if found else "unknown"
