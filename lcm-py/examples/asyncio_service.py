"""A service that stores worker records and reconciles them with LCM: python asyncio_service.py w-1 w-2 …"""

import asyncio
import signal
import sys

import lcm


class Records(lcm.ports.ControlPlane):
    def __init__(self, names: list[str]) -> None:
        self.rows = {name: lcm.Worker(name, "pending", template_name="small", version=1) for name in names}

    async def workers(self, region: str | None, with_terminated: bool, /) -> list[lcm.Worker]:
        return list(self.rows.values())

    async def worker(self, id: str, /) -> lcm.Worker | None:
        return self.rows.get(id)

    async def write(self, patch: lcm.ports.Patch, /) -> int | None:
        if (row := self.rows[patch.worker_id]).version != patch.expected_version:
            raise lcm.PortError("the record changed in between", "conflict")
        row = self.rows[row.id] = patch.apply_to(row).replace(version=(row.version or 0) + 1)
        print(row.id, row.status, row.ec2_instance_id, flush=True)
        return row.version

    def template(self, name: str, /) -> lcm.Template:
        return lcm.Template(name, "m5.large")

    def sessions(self, worker_id: str, /) -> list[lcm.Session]:
        return []

    def hand_back_session(self, session_id: str, /) -> None: ...
    def retry_session(self, session_id: str, attempt: int, /) -> None: ...
    def terminate_session(self, session_id: str, reason: str, /) -> None: ...


controller = lcm.Controller(lcm.Clients(control_plane=Records(sys.argv[1:])))
signal.signal(signal.SIGTERM, lambda *_: controller.stop())
asyncio.run(controller.run())
