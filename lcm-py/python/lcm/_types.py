"""Type aliases used only for static checking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from lcm._lcm import Worker

__all__ = ["AnyWorker", "WorkerT"]

AnyWorker: TypeAlias = Worker | Mapping[str, Any]
"""A worker, or the control plane's dict."""
WorkerT = TypeVar("WorkerT", bound=AnyWorker)
