"""Exceptions of the package.

A call to EC2 or the control plane that fails inside a pass is not among them: it is an
:class:`~lcm.outcome.ReconcileResult` that says RETRY and carries the failure.
"""

from __future__ import annotations

from lcm.enums import FailureKind

__all__ = ["ConfigError", "FakeCloudError", "ForkError", "InvalidRecord", "InvalidTransition", "LcmError", "PortError"]


class LcmError(Exception):
    """The root of all exceptions of this package."""


class ConfigError(LcmError, ValueError):
    """Settings that cannot be used. Its text names every variable, its value and what is accepted."""


class InvalidRecord(LcmError, ValueError):
    """A record that cannot be read.

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
        """The field that is wrong, with a dot where it is nested."""
        self.accepted = accepted
        """The accepted values."""

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidTransition(LcmError, ValueError):
    """A change of status that the transition table does not allow. Nothing was changed."""


class PortError(LcmError):
    """A failed call to a remote service.

    Raise it from a port written in Python to say what kind of failure it was; any other exception counts as
    ``unclear``: the call may or may not have been carried out.

    >>> PortError("closed for lunch", "unreachable").kind
    <FailureKind.UNREACHABLE: 'unreachable'>
    >>> PortError("closed for lunch", "hungry")
    Traceback (most recent call last):
    ...
    ValueError: 'hungry' is not a kind of failure; accepted: throttled, no_capacity, unclear, ...
    """

    def __init__(self, message: str, kind: FailureKind | str = "unclear", code: str | None = None) -> None:
        if kind not in list(FailureKind):
            accepted = ", ".join(FailureKind)
            raise ValueError(f"{kind!r} is not a kind of failure; accepted: {accepted}")
        super().__init__(message, str(kind), code)
        self.message = message
        """Error message for people."""
        self.kind: FailureKind = FailureKind(kind)
        """Kind of failure."""
        self.code = code
        """The far side's own code, such as ``RequestLimitExceeded``."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


class ForkError(LcmError, RuntimeError):
    """A forked process used what its parent had started. Threads do not survive a fork: start afresh in the child."""


class FakeCloudError(LcmError):
    """The fake cloud refused an order of the test's, or could not start."""
