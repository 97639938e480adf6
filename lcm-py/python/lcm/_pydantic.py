"""Describes records, results and failures to pydantic. Imported only when pydantic asks for the schema of a class."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from lcm import _lcm, enums
from lcm.failure import CallFailure
from lcm.values import FrozenMap, plain

__all__ = ["described", "fields_schema", "map_schema", "record_schema"]

Validate = Callable[[Any, ValidatorFunctionWrapHandler], Any]

_TYPES = {
    **vars(enums),
    **vars(_lcm),
    "CallFailure": CallFailure,
    "FrozenMap": FrozenMap,
    "Mapping": Mapping,
    "datetime": datetime,
    # `to_dict` gives durations in seconds.
    "timedelta": Annotated[timedelta, WithJsonSchema({"type": "number", "description": "Duration in seconds."})],
}
"""Names in the annotations of fields."""


def fields_schema(cls: type[Any], fields: list[tuple[str, str]], handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a class whose constructor takes its fields, given as names and annotations.

    The JSON form is that of ``to_dict``. An instance is accepted as it is, and its JSON form is parsed.
    """
    types = typing.get_type_hints(SimpleNamespace(__annotations__=dict(fields)), _TYPES, include_extras=True)
    parsed = {name: core_schema.typed_dict_field(handler.generate_schema(kind)) for name, kind in types.items()}

    def validate(value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, cls) else cls(**{name: _frozen(item) for name, item in parse(value).items()})

    return _schema(cls, validate, core_schema.typed_dict_schema(parsed, extra_behavior="ignore"))


def record_schema(cls: type[_lcm.Worker], handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a record: id, status and any other fields. Its JSON form has no passwords and tokens."""
    optional = {"desired_status": enums.DesiredStatus | None, "ec2_instance_id": str | None, "version": int | None}
    required = {"id": str, "status": enums.WorkerStatus}
    fields = {
        name: core_schema.typed_dict_field(handler.generate_schema(kind), required=name in required)
        for name, kind in {**required, **optional}.items()
    }

    def validate(value: Any, parse: ValidatorFunctionWrapHandler) -> _lcm.Worker:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            parse(value)
        # The record decides itself which values it can read.
        return cls.from_dict(value)

    return _schema(cls, validate, core_schema.typed_dict_schema(fields, extra_behavior="allow"))


def map_schema(cls: type[FrozenMap]) -> CoreSchema:
    """Return the schema of an immutable mapping: a JSON object."""
    parse = core_schema.dict_schema(core_schema.str_schema())
    serialization = core_schema.plain_serializer_function_ser_schema(plain)
    return core_schema.no_info_after_validator_function(_frozen, parse, serialization=serialization)


def described(cls: type[Any], schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """Return the JSON schema of a class, with its documentation and that of its fields."""
    shown = handler.resolve_ref_schema(handler(schema))
    shown |= {"title": cls.__name__, "description": _summary(cls)}
    for name, field in shown["properties"].items():
        if summary := _summary(getattr(cls, name, None)):
            field.setdefault("description", summary)
    return shown


def _schema(cls: type[Any], validate: Validate, parsed: CoreSchema) -> CoreSchema:
    return core_schema.no_info_wrap_validator_function(
        validate,
        parsed,
        # The name in "components" of an OpenAPI document.
        ref=f"{cls.__module__}.{cls.__name__}:{id(cls)}",
        serialization=core_schema.plain_serializer_function_ser_schema(cls.to_dict),
    )


def _summary(documented: Any) -> str:
    """Return the first paragraph of the documentation, on one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def _frozen(value: Any) -> Any:
    """Return the immutable form of a JSON value."""
    if isinstance(value, Mapping):
        return FrozenMap({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
