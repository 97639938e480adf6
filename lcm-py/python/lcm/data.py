"""What all values have in common: frozen, hashable, picklable, ready for JSON and for ``match``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum

from lcm._frozen import fields
from lcm.exceptions import PortError
from lcm.words import FailureKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from dataclasses import dataclass, field
    from typing import Any, Final

    _Mapping = Mapping[str, Any]
else:
    from lcm._frozen import dataclass, field

    _Mapping = Mapping

__all__ = ["ABSENT", "Absent", "CallFailure", "Data", "FrozenMap", "Secret"]


class FrozenMap(_Mapping):
    """A mapping that cannot be changed, and so can be hashed.

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


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Data):
        return value.to_dict()
    return value


class Data:
    """What all our dataclasses can do."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict that JSON can hold; times are ISO 8601, durations seconds."""
        shown = (item for item in fields(self) if item.repr)
        return {item.name: plain(getattr(self, item.name)) for item in shown}


def refuse_naive(name: str, moment: datetime | None) -> None:
    """Refuse a moment without a time zone: it could mean any hour."""
    if isinstance(moment, datetime) and moment.utcoffset() is None:
        accepted = "a datetime with one, such as datetime.now(timezone.utc)"
        raise ValueError(f"{name} is {moment}, which has no time zone; accepted: {accepted}")


class Secret:
    """A password or token. It is not shown by ``print``, ``repr`` or a log; :meth:`expose` gives the text itself.

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
        """The secret itself. Every call of this is a place to look at in a review."""
        return self._text

    def __repr__(self) -> str:
        return "[redacted]"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)


class Absent(Enum):
    """The answer *there is none*, which is not the same as no answer."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "lcm.ABSENT"


ABSENT: Final = Absent.ABSENT
"""EC2, or whoever was asked, answered that there is none."""


@dataclass(frozen=True, slots=True)
class CallFailure(Data):
    """A call that gave no answer, and why.

    >>> CallFailure("throttled", "slow down", "RequestLimitExceeded").kind
    <FailureKind.THROTTLED: 'throttled'>
    >>> CallFailure("tired", "slow down")
    Traceback (most recent call last):
    ...
    ValueError: 'tired' is not a valid FailureKind
    """

    kind: FailureKind | str
    """What kind of failure."""
    message: str = ""
    """What happened, for a person."""
    code: str | None = None
    """The far side's own code, such as ``RequestLimitExceeded``."""
    cause: BaseException | None = field(default=None, kw_only=True, repr=False, compare=False)
    """What a port that is written in Python raised. It stays in this process: no copy or pickle has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", FailureKind(self.kind))

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message

    def __reduce__(self) -> tuple[type[CallFailure], tuple[FailureKind | str, str, str | None]]:
        # An exception may not be picklable, and its traceback never is.
        return CallFailure, (self.kind, self.message, self.code)

    def to_exception(self) -> PortError:
        """The same as an exception that can be raised, with what it came from as its ``__cause__``.

        >>> raise CallFailure("throttled", "slow down").to_exception()
        Traceback (most recent call last):
        ...
        lcm.exceptions.PortError: slow down
        """
        error = PortError(self.message, self.kind, self.code)
        error.__cause__ = self.cause
        return error
