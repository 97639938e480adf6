"""A CML port with ``async`` methods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import lcm
from lcm.ports import CmlTarget

TAKES = timedelta(seconds=10)


class PythonCml:
    """A CML system at one address."""

    def __init__(self, address: str = "198.18.0.1", password: str = "s3cret") -> None:
        self.address = address
        self.password = lcm.Secret(password)
        self.now = datetime(2026, 2, 6, 8, tzinfo=UTC)
        self.is_booting = False
        self.telemetry_: list[dict[str, Any]] = []
        self.ends = "COMPLETED"
        self.attempt: tuple[datetime, str] | None = None
        self.tokens: list[lcm.Secret] = []

    async def system(self, at: CmlTarget, /) -> lcm.CmlMetrics | dict[str, Any]:
        self._check_available(at)
        open_to_all = {"cml_version": "2.9.1+build.7", "ready": True}
        return lcm.CmlMetrics(1, 2, **open_to_all) if self._is_signed_in(at) else open_to_all  # type: ignore[arg-type]

    async def telemetry(self, at: CmlTarget, /) -> list[dict[str, Any]]:
        self._authenticate(at)
        return self.telemetry_

    async def registration(self, at: CmlTarget, /) -> str | dict[str, Any]:
        self._authenticate(at)
        if self.attempt is None:
            return "NOT_REGISTERED"
        return {"word": self._stage(), "attempted": str(self.attempt[0])}

    async def register(self, at: CmlTarget, token: lcm.Secret, /) -> None:
        self._authenticate(at)
        if self._stage() == "COMPLETED":
            raise lcm.PortError("already registered", "refused", "400")
        await self.reregister(at, token)

    async def reregister(self, at: CmlTarget, token: lcm.Secret, /) -> None:
        self._authenticate(at)
        if self._stage() == "IN_PROGRESS":
            raise lcm.PortError("one is in progress", "conflict", "409")
        self.attempt = (self.now, self.ends)
        self.tokens.append(token)

    async def deregister(self, at: CmlTarget, /) -> None:
        self._authenticate(at)
        self.attempt = None

    def _stage(self) -> str | None:
        if self.attempt is None:
            return None
        begun, end = self.attempt
        return "IN_PROGRESS" if self.now - begun < TAKES else end

    def _check_available(self, at: CmlTarget) -> None:
        if at.address != self.address:
            raise lcm.PortError("connection refused", "unreachable")
        if self.is_booting:
            raise lcm.PortError("502 Bad Gateway", "unclear", "502")

    def _is_signed_in(self, at: CmlTarget) -> bool:
        return (at.username, at.password) == ("admin", self.password)

    def _authenticate(self, at: CmlTarget) -> None:
        self._check_available(at)
        if not self._is_signed_in(at):
            # The binding redacts the password in this message.
            raise lcm.PortError(f"{at.password.expose()} is not the password of {at.username}", "unreachable", "403")


class CmlWorld:
    """World of the CML port."""

    def __init__(self, cml: PythonCml | None = None) -> None:
        self.own = cml or PythonCml()

    def cml(self) -> PythonCml:
        return self.own

    def target(self) -> CmlTarget:
        return CmlTarget(self.own.address, "admin", self.own.password)

    def nowhere(self) -> CmlTarget:
        return CmlTarget("198.18.9.9", "admin", self.own.password)

    def set_booting(self, booting: bool, /) -> None:
        self.own.is_booting = booting

    async def pass_time(self, time: timedelta, /) -> None:
        self.own.now += time

    def start_lab(self) -> None:
        self.own.telemetry_.append({"category": "start_lab"})

    def end_logins(self) -> None:
        """This port has no tokens."""

    def next_registration(self, end: str, /) -> None:
        self.own.ends = {"completes": "COMPLETED", "fails": "FAILED"}[end]
