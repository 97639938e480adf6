"""Failed calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from lcm.enums import FailureKind
from lcm.exceptions import PortError
from lcm.values import Data, with_field_docs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lcm._vocabulary import AnyFailureKind

__all__ = ["CallFailure"]


@with_field_docs
@dataclass(frozen=True, slots=True)
class CallFailure(Data):
    """A call that failed, and the reason.

    >>> CallFailure("throttled", "slow down", "RequestLimitExceeded").kind
    <FailureKind.THROTTLED: 'throttled'>
    >>> CallFailure("tired", "slow down")
    Traceback (most recent call last):
    ...
    ValueError: 'tired' is not a valid FailureKind
    """

    kind: AnyFailureKind
    """Kind of failure, a :class:`FailureKind`. It determines whether the call may have had an effect."""
    message: str = ""
    """Error message for people."""
    code: str | None = None
    """Error code of the remote service, such as ``RequestLimitExceeded``, or None."""
    cause: BaseException | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The exception of a port written in Python, or None. Copies and pickles do not include it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", FailureKind(self.kind))

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message

    def __reduce__(self) -> tuple[type[CallFailure], tuple[AnyFailureKind, str, str | None]]:
        # An exception may not be picklable, and its traceback never is.
        return CallFailure, (self.kind, self.message, self.code)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Describe the class to pydantic, so that a model can hold it and a route can return it."""
        from lcm._pydantic import fields_schema

        return fields_schema(cls, [("kind", "FailureKind"), ("message", "str"), ("code", "str | None")], handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """Describe the JSON form."""
        from lcm._pydantic import described

        return described(cls, schema, handler)

    def to_exception(self) -> PortError:
        """Return the failure as an exception. Its ``__cause__`` is :attr:`cause`.

        >>> raise CallFailure("throttled", "slow down").to_exception()
        Traceback (most recent call last):
        ...
        lcm.exceptions.PortError: slow down
        """
        error = PortError(self.message, self.kind, self.code)
        error.__cause__ = self.cause
        return error
