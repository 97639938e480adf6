"""Exceptions of the package.

A reconcile does not raise when a call to EC2 or the control plane fails: it returns a :class:`~lcm.ReconcileResult`
with the outcome RETRY and the failure.
"""

from __future__ import annotations

from lcm.enums import FailureKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lcm._vocabulary import AnyFailureKind

__all__ = [
    "ConfigError",
    "FakeCloudError",
    "ForkError",
    "InvalidRecord",
    "InvalidTransition",
    "LcmError",
    "PortError",
    "RecordWarning",
]


class LcmError(Exception):
    """Base class of the exceptions of this package."""


class ConfigError(LcmError, ValueError):
    """Invalid settings. The message lists every variable, its value and the accepted values."""


class InvalidRecord(LcmError, ValueError):
    """A record that cannot be parsed.

    >>> import lcm
    >>> try:
    ...     lcm.Worker.from_dict({"id": "w-1", "status": "asleep"})
    ... except lcm.InvalidRecord as error:
    ...     print(error.field)
    status
    """

    def __init__(self, message: str, field: str = "", accepted: str = "") -> None:
        super().__init__(message, field, accepted)
        self.field = field
        """Path of the invalid field, separated by dots."""
        self.accepted = accepted
        """The accepted values."""

    def __str__(self) -> str:
        return str(self.args[0])


class RecordWarning(UserWarning):
    """A field of a record that has no effect: its value cannot be read, or its name is probably misspelled.

    >>> import lcm, warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     worker = lcm.Worker.from_dict({"id": "w-1", "status": "running", "desiredstatus": "stopped"})
    >>> print(caught[0].message)
    worker "w-1": field `desiredstatus` is unknown and has no effect; probably meant: `desired_status`
    """


class InvalidTransition(LcmError, ValueError):
    """A change of status that is not in the transition table. The record is unchanged."""


class PortError(LcmError):
    """A failed call to a remote service.

    Raise it from a port written in Python to report the kind of failure. Any other exception counts as ``unclear``: the
    call may or may not have had an effect.

    >>> PortError("closed for lunch", "unreachable").kind
    <FailureKind.UNREACHABLE: 'unreachable'>
    >>> PortError("closed for lunch", "hungry")
    Traceback (most recent call last):
    ...
    ValueError: 'hungry' is not a kind of failure; accepted: throttled, no_capacity, refused_for_now, ...
    """

    def __init__(self, message: str, kind: AnyFailureKind = "unclear", code: str | None = None) -> None:
        if kind not in list(FailureKind):
            accepted = ", ".join(FailureKind)
            raise ValueError(f"{kind!r} is not a kind of failure; accepted: {accepted}")
        super().__init__(message, str(kind), code)
        self.message = message
        """Error message for people."""
        self.kind: FailureKind = FailureKind(kind)
        """Kind of failure."""
        self.code = code
        """Error code of the remote service, such as ``RequestLimitExceeded``, or None."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


class ForkError(LcmError, RuntimeError):
    """A forked process used objects of its parent. Threads do not survive a fork: create new objects in the child."""


class FakeCloudError(LcmError):
    """The fake cloud rejected a request of the test, or could not start."""
