"""Type aliases used only for static checking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from lcm._lcm import Worker

__all__ = ["AnyRecord", "AnyWorker", "WorkerT"]


class DataclassRecord(Protocol):
    """An instance of a dataclass with the fields of a record."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class ModelRecord(Protocol):
    """A model of pydantic with the fields of a record."""

    def model_dump(self) -> dict[str, Any]: ...


AnyRecord: TypeAlias = Mapping[str, Any] | DataclassRecord | ModelRecord
"""The control plane's record: a dict, a dataclass or a model of pydantic."""
AnyWorker: TypeAlias = Worker | AnyRecord
"""A worker, or its record."""
WorkerT = TypeVar("WorkerT", bound=AnyWorker)
