"""Explains a missing package of an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needed"]


@contextmanager
def needed(package: str, *, by: str, extra: str) -> Iterator[None]:
    """Import the packages of an extra. A missing one raises an error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{by} needs {package}: pip install 'lcm-sdk[{extra}]' ({missing})", name=missing.name
        ) from missing
