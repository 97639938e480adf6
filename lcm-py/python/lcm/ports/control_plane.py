"""The owner of the records, as a port that you can write in Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from lcm._lcm import Patch, Worker
from lcm.observation import IdleReport, Session, Template
from lcm.ports.bridge import Answer

__all__ = ["ControlPlane", "Patch"]


class ControlPlane(Protocol):
    """The owner of the records. Methods with a default implementation are optional for subclasses.

    What is asked for twice is done once. :func:`lcm.ports.fence` tells which leader asks.
    """

    @abstractmethod
    def workers(self, region: str | None, with_terminated: bool, /) -> Answer[Iterable[Worker | Mapping[str, Any]]]:
        """List the records. More than was asked for does no harm."""

    @abstractmethod
    def worker(self, id: str, /) -> Answer[Worker | Mapping[str, Any] | None]:
        """Read a record; None if there is none."""

    @abstractmethod
    def write(self, patch: Patch, /) -> Answer[int | None]:
        """Write a record and give its new version, if records have versions.

        A drain of a worker that does not run is a ``conflict``, and a termination of one that is terminated a success.
        """

    @abstractmethod
    def template(self, name: str, /) -> Answer[Template | Mapping[str, Any] | None]:
        """Read a template; None if there is none."""

    @abstractmethod
    def sessions(self, worker_id: str, /) -> Answer[Iterable[Session | Mapping[str, Any]]]:
        """List the sessions of a worker. A drain stops the worker once none is left, so forget none."""

    @abstractmethod
    def hand_back_session(self, session_id: str, /) -> Answer[None]:
        """Give a session that has not begun back to the scheduler. One that is over is refused."""

    @abstractmethod
    def retry_session(self, session_id: str, attempt: int, /) -> Answer[None]:
        """Try a failed session again on the same worker."""

    @abstractmethod
    def terminate_session(self, session_id: str, reason: str, /) -> Answer[None]:
        """End a session. One that has ended already is a success."""

    def report_metrics(
        self, id: str, cloud: dict[str, Any] | None, cml: dict[str, Any] | None, at: datetime, /
    ) -> Answer[int | None]:
        """Take note of a worker's utilisation; gives the record's version if that changes it."""
        return None

    def report_license(self, id: str, report: str, /) -> Answer[int | None]:
        """Take note of how a licence operation goes, such as ``complete-registration``."""
        return None

    def detect_idle(
        self, id: str, telemetry: list[dict[str, Any]] | None, auto_pause: str, /
    ) -> Answer[IdleReport | Mapping[str, Any]]:
        """Judge whether a worker is idle. As it stands: no result, which never means idle."""
        return IdleReport(telemetry_fetched=False, idle_check_performed=False)

    def idle_status(self, id: str, /) -> Answer[IdleReport | Mapping[str, Any]]:
        """Tell the last judgement."""
        return IdleReport(telemetry_fetched=False, idle_check_performed=False)

    def import_instances(self, region: str, instances: list[dict[str, Any]], /) -> Answer[int]:
        """Create records for unknown instances; returns their number."""
        return 0

    def discovery_settings(self) -> Answer[Mapping[str, Any] | None]:
        """How discovery is set: ``enabled``, ``regions``, ``ami_name_pattern``, ``scan_interval`` in seconds.

        None leaves that to the settings.
        """
        return None

    def audit(self, id: str, label: str, detail: str, /) -> Answer[None]:
        """Take note of a scaling decision."""
        return None
