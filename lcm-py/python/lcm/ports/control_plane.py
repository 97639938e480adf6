"""Port to the control plane, which owns the records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from lcm._lcm import Patch, Worker
from lcm.exceptions import PortError
from lcm.observation import IdleReport, Session, Template
from lcm.ports.bridge import MaybeAwaitable

__all__ = ["ControlPlane", "Patch"]


class ControlPlane(Protocol):
    """The control plane, which owns the records. Subclasses may omit the methods with a default implementation.

    Required are ``workers``, ``worker``, ``write``, ``template`` and ``sessions``.

    Every method is idempotent. :func:`lcm.ports.fence` returns the fencing token of the calling leader.

    Records hold the notes of LCM, such as ``launch_plan``. For records that cannot, set ``NOTES_STORE`` in the settings
    of :class:`lcm.Clients` to ``etcd`` or ``memory``: patches then arrive without notes.
    """

    @abstractmethod
    def workers(
        self, region: str | None, with_terminated: bool, /
    ) -> MaybeAwaitable[Iterable[Worker | Mapping[str, Any]]]:
        """List the records. The caller filters them again, so extra records are accepted."""

    @abstractmethod
    def worker(self, id: str, /) -> MaybeAwaitable[Worker | Mapping[str, Any] | None]:
        """Read a record; None if it does not exist."""

    @abstractmethod
    def write(self, patch: Patch, /) -> MaybeAwaitable[int | None]:
        """Write a record and return its new version, or None if records have no versions.

        The drain of a worker that is not running is a ``conflict``; the termination of a terminated one is a success.
        """

    @abstractmethod
    def template(self, name: str, /) -> MaybeAwaitable[Template | Mapping[str, Any] | None]:
        """Read a template; None if it does not exist."""

    @abstractmethod
    def sessions(self, worker_id: str, /) -> MaybeAwaitable[Iterable[Session | Mapping[str, Any]]]:
        """List all sessions of a worker. A drain stops the worker when no active session is left."""

    def hand_back_session(self, session_id: str, /) -> MaybeAwaitable[None]:
        """Return an unstarted session to the scheduler. An ended session is ``refused``, as the default is."""
        raise _unsupported("moving sessions")

    def retry_session(self, session_id: str, attempt: int, /) -> MaybeAwaitable[None]:
        """Retry a failed session on the same worker. The default is ``refused``."""
        raise _unsupported("moving sessions")

    def terminate_session(self, session_id: str, reason: str, /) -> MaybeAwaitable[None]:
        """Terminate a session. An ended session is a success. The default is ``refused``."""
        raise _unsupported("terminating sessions")

    def report_metrics(
        self, id: str, cloud: dict[str, Any] | None, cml: dict[str, Any] | None, at: datetime, /
    ) -> MaybeAwaitable[int | None]:
        """Store the utilization of a worker; None was not read. Returns the record's version if it changed."""
        return None

    def report_license(self, id: str, report: str, /) -> MaybeAwaitable[int | None]:
        """Store the progress of a license operation, such as ``complete-registration``.

        The default is ``refused``, which keeps the operation from starting.
        """
        raise _unsupported("license reports")

    def detect_idle(
        self, id: str, telemetry: list[dict[str, Any]] | None, auto_pause: str, /
    ) -> MaybeAwaitable[IdleReport | Mapping[str, Any]]:
        """Check whether a worker is idle. The default has no result, which never counts as idle."""
        return IdleReport(telemetry_fetched=False, idle_check_performed=False)

    def idle_status(self, id: str, /) -> MaybeAwaitable[IdleReport | Mapping[str, Any]]:
        """Return the result of the last idle check."""
        return IdleReport(telemetry_fetched=False, idle_check_performed=False)

    def import_instances(self, region: str, instances: list[dict[str, Any]], /) -> MaybeAwaitable[int]:
        """Create records for unknown instances; returns their number."""
        return 0

    def discovery_settings(self) -> MaybeAwaitable[Mapping[str, Any] | None]:
        """Return the discovery settings: ``enabled``, ``regions``, ``ami_name_pattern``, ``scan_interval`` in seconds.

        None selects the settings of the clients.
        """
        return None

    def audit(self, id: str, label: str, detail: str, /) -> MaybeAwaitable[None]:
        """Add a scaling decision to the audit log."""
        return None

    def clear_sync(self, id: str, /) -> MaybeAwaitable[None]:
        """Delete the request to synchronize a worker, which was done. The default has no such requests."""
        return None

    def capabilities(self) -> Mapping[str, bool]:
        """Return the optional features that the records have or lack; without a feature, its first use finds out.

        The features are ``versions``, ``notes``, ``desired_status``, ``cancel_drain``, ``session_moves``,
        ``pause_suppression`` and ``audits``. Called once, when the clients are created.
        """
        return {}


def _unsupported(feature: str) -> PortError:
    return PortError(f"this control plane does not support {feature}", "refused")
