"""Compute and metrics ports with plain methods, which many threads may call at once."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import lcm

REGION, ELSEWHERE = "us-east-1", "eu-west-1"
SUBNET = "subnet-1"
ACCOUNT_ID = "123456789012"
IMAGES = [
    lcm.Image("ami-1", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z"),
    lcm.Image("ami-2", "cisco-cml2.8.0", "2025-01-01T00:00:00.000Z"),
]
NEXT = {"pending": "running", "stopping": "stopped", "shutting-down": "terminated"}
Seen = lcm.Instance | lcm.Absent | lcm.CallFailure


@dataclass
class Region:
    """State of one region."""

    subnets: set[str]
    instances: dict[str, lcm.Instance] = field(default_factory=dict)
    launches: dict[str, tuple[lcm.FrozenMap, str]] = field(default_factory=dict)


class PythonCompute:
    """A compute port that stores instances in a dict."""

    def __init__(self) -> None:
        self.regions = defaultdict(lambda: Region(set()), {REGION: Region({SUBNET})})
        self.trouble: lcm.CallFailure | None = None
        self.count = 0
        self.calls: list[str] = []
        self._lock = threading.RLock()

    def instances(self, region: str, ids: list[str], /) -> dict[str, Seen]:
        with self._locked("instances", region) as here:
            return {id: here.instances.get(id) or self._missing(id) for id in ids}

    @staticmethod
    def _missing(id: str) -> Seen:
        return lcm.ABSENT if id.startswith("i-") else lcm.CallFailure("refused", f"{id!r} is not an id")

    def tagged(self, region: str, worker_id: str, /) -> list[lcm.Instance]:
        with self._locked("tagged", region) as here:
            return [seen for seen in here.instances.values() if seen.tags.get("lcm:worker_id") == worker_id]

    def images(self, region: str, pattern: str, /) -> list[lcm.Image]:
        with self._locked("images", region):
            return [image for image in IMAGES if fnmatchcase(image.name, pattern)]

    def scan(
        self, region: str, ami_name_pattern: str | None, tags: list[tuple[str, str | None]], /
    ) -> list[lcm.Instance]:
        with self._locked("scan", region) as here:
            images = {image.id for image in IMAGES if fnmatchcase(image.name, ami_name_pattern or "*")}

            def matches(seen: lcm.Instance) -> bool:
                carried = all(key in seen.tags and value in (None, seen.tags[key]) for key, value in tags)
                return carried and seen.image_id in images

            return list(filter(matches, here.instances.values()))

    def subnet_owner(self, region: str, subnet_id: str, /) -> str | None:
        with self._locked("subnet_owner", region) as here:
            return ACCOUNT_ID if subnet_id in here.subnets else None

    def account_id(self, region: str, /) -> str:
        return ACCOUNT_ID

    def launch(self, plan: lcm.FrozenMap, /) -> str:
        with self._locked("launch", plan["region"]) as here:
            token = plan["client_token"]
            if token in here.launches:
                before, id = here.launches[token]
                if before != plan:
                    raise lcm.PortError("the token belongs to another plan", "refused", "IdempotentParameterMismatch")
                if id not in here.instances or here.instances[id].state in ("shutting-down", "terminated"):
                    raise lcm.PortError(f"{id} is dead", "launch_died", "IdempotentInstanceTerminated")
                return id
            if plan["image_id"] not in {image.id for image in IMAGES}:
                raise lcm.PortError("no such image", "refused_for_now", "InvalidAMIID.NotFound")
            self.count += 1
            id = f"i-{self.count:017x}"
            here.launches[token] = (plan, id)
            here.instances[id] = lcm.Instance(
                "pending",
                id,
                private_ip=f"10.0.0.{self.count}",
                launched_at=datetime.now(UTC),
                client_token=token,
                instance_type=plan["instance_type"],
                image_id=plan["image_id"],
                account_id=ACCOUNT_ID,
                tags=plan["tags"],
            )
            return id

    def start(self, region: str, id: str, /) -> None:
        self._change("start", region, id, "stopped", "pending", ("pending", "running"))

    def stop(self, region: str, id: str, /) -> None:
        self._change("stop", region, id, "running", "stopping", ("stopping", "stopped"))

    def terminate(self, region: str, id: str, /) -> None:
        with self._locked("terminate", region) as here:
            if id in here.instances and here.instances[id].state != "terminated":
                self._enter(here, id, "shutting-down")

    def _change(self, verb: str, region: str, id: str, source: str, target: str, done: tuple[str, str]) -> None:
        with self._locked(verb, region) as here:
            if id not in here.instances:
                raise lcm.PortError(f"no instance {id}", "refused", "InvalidInstanceID.NotFound")
            state = here.instances[id].state
            if state == source:
                self._enter(here, id, target)
            elif state not in done:
                raise lcm.PortError(f"{id} is {state}", "conflict", "IncorrectInstanceState")

    def settle(self) -> None:
        """Finish every pending change of state."""
        with self._lock:
            for here in self.regions.values():
                for id, seen in here.instances.items():
                    self._enter(here, id, NEXT.get(seen.state, seen.state))

    @staticmethod
    def _enter(here: Region, id: str, state: str) -> None:
        seen = here.instances[id]
        public_ip = f"198.18.0.{id[-2:]}" if state == "running" else None
        here.instances[id] = replace(seen, state=lcm.Ec2State(state), public_ip=public_ip)

    def _locked(self, verb: str, region: str) -> LockedRegion:
        self.calls.append(verb)
        if self.trouble is not None:
            raise self.trouble.to_exception()
        return LockedRegion(self._lock, self.regions[region])


@dataclass
class LockedRegion:
    """A region under the lock of the port."""

    lock: threading.RLock
    region: Region

    def __enter__(self) -> Region:
        self.lock.acquire()
        return self.region

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class ComputeWorld:
    """World of the compute port."""

    def __init__(self, cloud: PythonCompute | None = None) -> None:
        self.cloud = cloud or PythonCompute()

    def compute(self) -> PythonCompute:
        return self.cloud

    def region(self) -> str:
        return REGION

    async def other_region(self) -> str:
        return ELSEWHERE

    def plan(self) -> dict[str, Any]:
        return {"image_id": "ami-1", "instance_type": "m5zn.metal", "subnet_id": SUBNET}

    def image_pattern(self) -> str:
        return "cisco-cml2.9*"

    def settle(self) -> None:
        self.cloud.settle()

    def forget_terminated(self) -> None:
        for here in self.cloud.regions.values():
            here.instances = {id: seen for id, seen in here.instances.items() if seen.state != "terminated"}

    def fail(self, failure: lcm.CallFailure, /) -> None:
        self.cloud.trouble = failure

    def recover(self) -> None:
        self.cloud.trouble = None


class PythonMetrics:
    """A metrics port that stores reports in a list."""

    def __init__(self) -> None:
        self.reports: dict[str, list[tuple[datetime, lcm.CloudMetrics]]] = defaultdict(list)
        self.trouble: lcm.CallFailure | None = None

    def utilization(self, region: str, ids: list[str], until: datetime, /) -> Mapping[str, Any]:
        if self.trouble is not None:
            return dict.fromkeys(ids, self.trouble)
        return {id: self._latest(id, until) for id in ids}

    def _latest(self, id: str, until: datetime) -> dict[str, float | None]:
        latest: dict[str, float | None] = {}
        for at, report in sorted(self.reports[id], key=lambda entry: entry[0]):
            if at <= until:
                latest |= {name: value for name, value in report.to_dict().items() if value is not None}
        return latest


class MetricsWorld:
    """World of the metrics port."""

    def __init__(self, gauges: PythonMetrics | None = None) -> None:
        self.gauges = gauges or PythonMetrics()
        self.count = 0

    def metrics(self) -> PythonMetrics:
        return self.gauges

    def region(self) -> str:
        return REGION

    def now(self) -> datetime:
        return datetime(2026, 2, 6, 8, tzinfo=UTC)

    def silent_instances(self, count: int, /) -> list[str]:
        self.count += count
        return [f"i-{number:08x}" for number in range(self.count - count, self.count)]

    async def report(self, id: str, at: datetime, measured: lcm.CloudMetrics, /) -> None:
        self.gauges.reports[id].append((at, measured))

    def fail(self, failure: lcm.CallFailure, /) -> None:
        self.gauges.trouble = failure

    def recover(self) -> None:
        self.gauges.trouble = None
