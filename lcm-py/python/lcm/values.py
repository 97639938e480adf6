"""Values shared by inputs and results: immutable mappings, secrets and the absent marker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final, TypeVar

    _Mapping = Mapping[str, Any]
    _T = TypeVar("_T")
else:
    _Mapping = Mapping

__all__ = ["ABSENT", "Absent", "Data", "FrozenMap", "Secret"]


class FrozenMap(_Mapping):
    """An immutable, hashable mapping.

    >>> details = FrozenMap({"instance": "i-1"})
    >>> details["instance"], details == {"instance": "i-1"}, len({details, details})
    ('i-1', True, 1)
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[type[FrozenMap], tuple[dict[str, Any]]]:
        return FrozenMap, (self._items,)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Describe the class to pydantic."""
        from lcm._pydantic import map_schema

        return map_schema(cls)


def plain(value: Any) -> Any:
    """Convert a value to JSON types: times to ISO 8601 text, durations to seconds."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return value


class Data:
    """Base class of the input dataclasses."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds."""
        from dataclasses import fields

        shown = (item for item in fields(self) if item.repr)  # type: ignore[arg-type]
        return {item.name: plain(getattr(self, item.name)) for item in shown}


class _Documentation:
    """Documentation of a class, followed by that of its fields, which is read from the source when it is needed."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._whole = ""

    def __get__(self, instance: object, cls: type) -> str:
        if not self._whole:
            # `help` imports `inspect` too.
            import ast
            import inspect

            try:
                (node,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
            except (OSError, TypeError):
                return self._about
            assert isinstance(node, ast.ClassDef)
            lines = [self._about.rstrip(), "", "    Fields:"]
            for declared, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr):
                    lines.append(f"        {ast.unparse(declared)}")
                    lines.append(f"            {ast.literal_eval(text.value)}")
            self._whole = "\n".join(lines)
        return self._whole


def with_field_docs(cls: type[_T]) -> type[_T]:
    """Show the documentation of the fields of a class in ``help()``. Editors read it from the source."""
    cls.__doc__ = _Documentation(cls.__doc__ or "")  # type: ignore[assignment]
    return cls


def refuse_naive(name: str, moment: datetime | None) -> None:
    """Raise ``ValueError`` for a datetime without a time zone, which is ambiguous."""
    if isinstance(moment, datetime) and moment.utcoffset() is None:
        accepted = "a datetime with one, such as datetime.now(timezone.utc)"
        raise ValueError(f"{name} is {moment}, which has no time zone; accepted: {accepted}")


class Secret:
    """A password or token. ``print``, ``repr`` and logs show ``[redacted]``; :meth:`expose` returns the text.

    >>> password = Secret("hunter2")
    >>> print(password, [password], password.expose())
    [redacted] [[redacted]] hunter2
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a secret is a {type(text).__name__}; accepted: text")
        self._text = text

    def expose(self) -> str:
        """Return the secret text. Review every call."""
        return self._text

    def __repr__(self) -> str:
        return "[redacted]"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)


class Absent(Enum):
    """Marks a lookup that found nothing, which differs from a lookup without a response."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "lcm.ABSENT"


ABSENT: Final = Absent.ABSENT
"""The requested object does not exist."""
