"""Versions of the package and of everything that it works with, for bug reports."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

__all__ = ["__version__", "show_versions"]

__version__: str = metadata.version("lcm-sdk")
"""Version of the installed package."""

_OPTIONAL = ("pydantic", "neuroglia-python", "fastapi", "pytest", "boto3", "aetcd", "virl2_client")


def show_versions() -> None:
    """Print the versions of the package, of Python, of the system, and of the packages that LCM works with.

    >>> show_versions()
    lcm-sdk           ...
    python            3...
    """
    libc = " ".join(platform.libc_ver())
    rows = {
        "lcm-sdk": __version__,
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": libc.strip() or "not known",
    }
    for name in _OPTIONAL:
        try:
            rows[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            rows[name] = "not installed"
    for name, version in rows.items():
        print(f"{name:<17} {version}")
