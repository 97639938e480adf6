"""A worker controller in plain Python: asyncio, one DescribeInstances per worker, a bounded number concurrently.

Used for comparison only; implements the start-up sweep and the garbage collection of the design documents and nothing
else. Runs as a separate process, so that its processor time can be measured, and prints a JSON report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Protocol

import plain_python

# Installed from requirements.txt of this directory, not with the project.
aiohttp: Any = import_module("aiohttp")

REGION = "us-east-1"
GONE = "InvalidInstanceID.NotFound"


class Ec2(Protocol):
    """The EC2 calls of the controller."""

    async def state(self, instance: str) -> str | None: ...
    async def scan(self, pattern: str) -> set[str]: ...


def by_name(pattern: str) -> list[dict[str, Any]]:
    return [{"Name": "name", "Values": [pattern]}]


def by_image(images: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"Name": "image-id", "Values": [image["ImageId"] for image in images]}]


def state_in(response: dict[str, Any]) -> str | None:
    instances = [instance for group in response["Reservations"] for instance in group["Instances"]]
    return instances[0]["State"]["Name"] if instances else None


def ids_in(response: dict[str, Any]) -> set[str]:
    return {instance["InstanceId"] for group in response["Reservations"] for instance in group["Instances"]}


class InThreads:
    """boto3 (blocking) on one thread per concurrent call."""

    def __init__(self, client: Any, concurrency: int) -> None:
        self.client = client
        self.threads = ThreadPoolExecutor(concurrency)

    async def run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    async def state(self, instance: str) -> str | None:
        try:
            return state_in(await self.run(lambda: self.client.describe_instances(InstanceIds=[instance])))
        except self.client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] == GONE:
                return None
            raise

    async def scan(self, pattern: str) -> set[str]:
        seen: set[str] = await self.run(lambda: self._scan(pattern))
        return seen

    def _scan(self, pattern: str) -> set[str]:
        images = self.client.describe_images(Filters=by_name(pattern))["Images"]
        pages = self.client.get_paginator("describe_instances").paginate(
            Filters=by_image(images), PaginationConfig={"PageSize": 1000}
        )
        return {instance for page in pages for instance in ids_in(page)}


class Awaited:
    """aiobotocore (non-blocking)."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def state(self, instance: str) -> str | None:
        try:
            return state_in(await self.client.describe_instances(InstanceIds=[instance]))
        except self.client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] == GONE:
                return None
            raise

    async def scan(self, pattern: str) -> set[str]:
        images = (await self.client.describe_images(Filters=by_name(pattern)))["Images"]
        pages = self.client.get_paginator("describe_instances").paginate(
            Filters=by_image(images), PaginationConfig={"PageSize": 1000}
        )
        return {instance async for page in pages for instance in ids_in(page)}


@asynccontextmanager
async def ec2(library: str, concurrency: int) -> AsyncIterator[Ec2]:
    if library == "boto3":
        config = import_module("botocore.config").Config(max_pool_connections=concurrency)
        yield InThreads(import_module("boto3").client("ec2", region_name=REGION, config=config), concurrency)
    else:
        config = import_module("aiobotocore.config").AioConfig(max_pool_connections=concurrency)
        session = import_module("aiobotocore.session").get_session()
        async with session.create_client("ec2", region_name=REGION, config=config) as client:
            yield Awaited(client)


class ControlPlane:
    """Client of the control plane's internal API."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def get(self, path: str, **query: str) -> Any:
        async with self.session.get(f"/api/internal/{path}", params=query) as response:
            response.raise_for_status()
            return await response.json()

    async def post(self, path: str, body: dict[str, Any], version: int) -> None:
        headers = {"If-Match": f'"{version}"'}
        async with self.session.post(f"/api/internal/{path}", json=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()

    async def workers(self, *without: str) -> list[dict[str, Any]]:
        response = await self.get("workers", aws_region=REGION, exclude_statuses=",".join(without))
        return response if isinstance(response, list) else response["workers"]

    async def terminate(self, worker: dict[str, Any], reason: str, by: str) -> None:
        body = {"reason": reason, "terminated_by": by}
        await self.post(f"workers/{worker['id']}/terminate", body, worker["version"])

    async def write(self, worker: dict[str, Any], status: str) -> None:
        await self.post(f"workers/{worker['id']}/status", {"status": status}, worker["version"])


async def for_each(
    workers: list[dict[str, Any]], concurrency: int, do: Callable[[dict[str, Any]], Awaitable[bool]]
) -> int:
    """Runs ``do`` for every worker with bounded concurrency; returns how many were changed."""
    limit = asyncio.Semaphore(concurrency)

    async def one(worker: dict[str, Any]) -> bool:
        async with limit:
            return await do(worker)

    return sum(await asyncio.gather(*(one(worker) for worker in workers)))


async def sweep(records: ControlPlane, cloud: Ec2, concurrency: int, at_most: int | None) -> dict[str, int]:
    """Verifies every worker that is not terminated in any status."""
    workers = (await records.workers("terminated"))[:at_most]
    now = datetime.now(UTC)

    async def verify(worker: dict[str, Any]) -> bool:
        state = await cloud.state(worker["ec2_instance_id"]) or "terminated"
        decision = plain_python.decide(worker, state, now)
        if decision.target == worker["status"]:
            return False
        if decision.target is plain_python.Status.TERMINATED:
            await records.terminate(worker, decision.reason, "worker-controller")
        else:
            await records.write(worker, decision.target.value)
        return True

    return {"looked_at": len(workers), "changed": await for_each(workers, concurrency, verify)}


async def collect(records: ControlPlane, cloud: Ec2, concurrency: int, at_most: int | None) -> dict[str, int]:
    """Marks the records terminated whose instance neither a scan nor a direct describe returns."""
    seen = await cloud.scan((await records.get("settings/discovery"))["ami_name_pattern"])
    workers = await records.workers("terminated", "pending")
    missing = [worker for worker in workers if worker["ec2_instance_id"] not in seen][:at_most]

    async def verify(worker: dict[str, Any]) -> bool:
        if await cloud.state(worker["ec2_instance_id"]) not in (None, "terminated"):
            return False
        await records.terminate(worker, "EC2 instance not found during discovery", "discovery-gc")
        return True

    return {"looked_at": len(workers), "changed": await for_each(missing, concurrency, verify)}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=["sweep", "collect"])
    parser.add_argument("library", choices=["boto3", "aiobotocore"])
    parser.add_argument("concurrency", type=int)
    parser.add_argument("--at-most", type=int, help="reconcile only this many workers, for extrapolation")
    options = parser.parse_args()
    headers = {"X-API-Key": os.environ["CONTROL_PLANE_API_KEY"]}
    url = os.environ["CONTROL_PLANE_API_URL"]
    async with (
        aiohttp.ClientSession(url, headers=headers) as session,
        ec2(options.library, options.concurrency) as cloud,
    ):
        began, spent = time.monotonic(), time.process_time()
        work = sweep if options.work == "sweep" else collect
        done = await work(ControlPlane(session), cloud, options.concurrency, options.at_most)
        took = {"wall": time.monotonic() - began, "cpu": time.process_time() - spent}
    print(json.dumps({**done, **took}))


if __name__ == "__main__":
    asyncio.run(main())
