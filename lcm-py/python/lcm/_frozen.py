"""Frozen, slotted dataclasses that are quick to make.

To import :mod:`dataclasses`, and to have it write thirty classes, takes longer than a pass over a worker. What is made
here is the same to whoever uses it, type checkers included: they are shown the original. A constructor is written when
the first object is made, and what :func:`dataclasses.fields` and its siblings want to see when they first ask for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

__all__ = ["dataclass", "field", "fields"]

_MISSING: Any = object()
_FACTORY: Any = type("_Factory", (), {"__repr__": lambda self: "<factory>"})()
"""What a signature shows in place of a default that is made anew each time."""


class Field:
    """What is known of one field; the same as :func:`dataclasses.field`, as far as we need it."""

    __slots__ = ("compare", "default", "default_factory", "init", "kw_only", "name", "repr", "type")

    name: str
    type: str

    def __init__(
        self,
        *,
        default: object = _MISSING,
        default_factory: Any = _MISSING,
        init: bool = True,
        repr: bool = True,
        compare: bool = True,
        kw_only: bool = False,
    ) -> None:
        self.default = default
        self.default_factory = default_factory
        self.init = init
        self.repr = repr
        self.compare = compare
        self.kw_only = kw_only


field = Field


def fields(of: object) -> tuple[Any, ...]:
    """The same as :func:`dataclasses.fields`, which is asked about classes that somebody derived from ours."""
    cls = of if isinstance(of, type) else type(of)
    own: tuple[Field, ...] | None = cls.__dict__.get("_frozen_fields")
    if own is not None:
        return own
    import dataclasses

    derived: Any = cls
    return dataclasses.fields(derived)


def dataclass(*, frozen: Literal[True], slots: Literal[True]) -> Callable[[type], type]:
    """The same as :func:`dataclasses.dataclass`, for classes that are frozen and slotted."""
    return _make


def _make(cls: type) -> type:
    own = dict(cls.__dict__)
    for name in ("__dict__", "__weakref__"):
        own.pop(name, None)
    known = {item.name: item for base in cls.__mro__[:0:-1] for item in base.__dict__.get("_frozen_fields", ())}
    slots = tuple(name for name in cls.__annotations__ if name not in known)
    for name, type_ in cls.__annotations__.items():
        default = own.pop(name, _MISSING)
        item = default if isinstance(default, Field) else Field(default=default)
        item.name, item.type = name, type_
        known[name] = item
    all_ = tuple(known.values())
    own.update(
        __slots__=slots,
        _frozen_fields=all_,
        __match_args__=tuple(item.name for item in all_ if item.init and not item.kw_only),
        __init__=_Later(_write_constructor),
        __setattr__=_refuse_to_set,
        __delattr__=_refuse_to_delete,
        __getstate__=_state,
        __setstate__=_restore,
        __dataclass_fields__=_Later(_take_from_twin),
        __dataclass_params__=_Later(_take_from_twin),
    )
    for name, method in _UNLESS_DEFINED.items():
        own.setdefault(name, method)
    made = type(cls)(cls.__name__, cls.__bases__, own)
    made.__qualname__ = cls.__qualname__
    return made


class _Later:
    """What a class gets when it is first asked for it."""

    def __init__(self, bring: Callable[[type], None]) -> None:
        self._bring = bring

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        self._bring(self._owner)
        brought = self._owner.__dict__[self._name]
        return brought.__get__(instance, owner) if hasattr(brought, "__get__") else brought


def _write_constructor(owner: type) -> None:
    taken = [item for item in fields(owner) if item.init]
    taken.sort(key=lambda item: item.kw_only)
    known: dict[str, Any] = {"__put": object.__setattr__, "__factory": _FACTORY}
    parameters, lines = ["self"], []
    for item in fields(owner):
        value = item.name
        if item.default_factory is not _MISSING:
            known[f"__make_{item.name}"] = item.default_factory
            made = f"__make_{item.name}()"
            value = f"{made} if {item.name} is __factory else {item.name}" if item.init else made
        elif not item.init:
            continue
        lines.append(f" __put(self, {item.name!r}, {value})")
    for item in taken:
        if item.kw_only and "*" not in parameters:
            parameters.append("*")
        parameters.append(item.name)
        if item.default_factory is not _MISSING:
            parameters[-1] += "=__factory"
        elif item.default is not _MISSING:
            known[f"__default_{item.name}"] = item.default
            parameters[-1] += f"=__default_{item.name}"
    if hasattr(owner, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines or [" pass"]), known)
    written = known["__init__"]
    written.__qualname__ = f"{owner.__qualname__}.__init__"
    written.__module__ = owner.__module__
    written.__annotations__ = {item.name: item.type for item in taken} | {"return": None}
    owner.__init__ = written  # type: ignore[misc]


def _take_from_twin(owner: type) -> None:
    """What `dataclasses` keeps of its own classes, taken from one that it makes."""
    import dataclasses

    def original(item: Field) -> Any:
        given = {name: getattr(item, name) for name in ("init", "repr", "compare", "kw_only")}
        for name in ("default", "default_factory"):
            if getattr(item, name) is not _MISSING:
                given[name] = getattr(item, name)
        return dataclasses.field(**given)

    described = [(item.name, item.type, original(item)) for item in fields(owner)]
    twin: Any = dataclasses.make_dataclass(owner.__name__, described, frozen=True, slots=True)
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        setattr(owner, name, getattr(twin, name))


def _compared(of: object) -> tuple[object, ...]:
    return tuple([getattr(of, item.name) for item in fields(of) if item.compare])


def _equal(self: object, other: object) -> bool:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: object) -> int:
    return hash(_compared(self))


def _repr(self: object) -> str:
    shown = ", ".join([f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr])
    return f"{type(self).__qualname__}({shown})"


def _replace(self: object, /, **changes: Any) -> Any:
    import dataclasses

    return dataclasses.replace(self, **changes)  # type: ignore[type-var]


_UNLESS_DEFINED = {"__eq__": _equal, "__hash__": _hash, "__repr__": _repr}
if sys.version_info >= (3, 13):
    _UNLESS_DEFINED["__replace__"] = _replace


def _refuse_to_set(self: object, name: str, value: object) -> None:
    _refuse(self, name, "cannot assign to field")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: object, name: str) -> None:
    _refuse(self, name, "cannot delete field")
    object.__delattr__(self, name)


def _refuse(self: object, name: str, text: str) -> None:
    # A class that somebody derives from ours may have attributes of its own.
    if "_frozen_fields" in type(self).__dict__ or any(name == item.name for item in fields(self)):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"{text} {name!r}")


def _state(self: object) -> list[object]:
    return [getattr(self, item.name) for item in fields(self)]


def _restore(self: object, state: list[object]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)
