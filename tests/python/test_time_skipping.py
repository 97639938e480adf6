"""Moving the clock together with the timers of controllers."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta
from typing import Any

import lcm
import pytest
from lcm.testing import FakeCloud

SCENARIO: dict[str, Any] = {
    "fleet": [{"name": "blue", "state": "running"}],
    "workers": [
        {"id": "w-1", "status": "running", "desired_status": "running", "instance": "blue"},
        {"id": "w-2", "status": "pending", "desired_status": "running", "template": "metal"},
    ],
    "timeline": [{"at": "20m", "stop": "blue"}, {"at": "40m", "worker": {"id": "w-2", "desired_status": "stopped"}}],
}


def test_hour_of_reconciles_passes_in_seconds() -> None:
    async def story(cloud: FakeCloud) -> float:
        async with lcm.Controller(cloud.clients()) as controller:
            await controller.ready()
            start, began = cloud.now, time.perf_counter()
            await cloud.advance_async(timedelta(hours=1), controllers=[controller])
            took = time.perf_counter() - began
            assert cloud.now - start == timedelta(hours=1)
            assert controller.stats["role"] == "leader"
        return took

    with FakeCloud(scenario=SCENARIO) as cloud:
        took = asyncio.run(story(cloud))
        assert took < 60, f"an hour took {took:.1f} s"
        # The instance that the timeline stopped was started again, once; the other was launched and stopped, once.
        cloud.assert_worker("w-1", status="running")
        cloud.assert_worker("w-2", status="stopped")
        for operation in ("StartInstances", "RunInstances", "StopInstances"):
            cloud.assert_called(operation, times=1)
        times = [datetime.fromisoformat(seen["at"]) for seen in cloud.requests(operation="list_workers")]
        assert times == sorted(times)
        assert len(set(times)) >= 118, "a cycle every 30 s"


class Job:
    """One job that requests its next reconcile after ten minutes, and notes when it ran."""

    def __init__(self, cloud: FakeCloud) -> None:
        self.cloud = cloud
        self.ran: list[datetime] = []

    def key(self, job: str, /) -> str:
        return job

    async def list(self, everything: bool, /) -> list[str]:
        return ["job"]

    async def fetch(self, key: str, /) -> str | None:
        return key

    async def reconcile(self, job: str, /) -> timedelta:
        await asyncio.sleep(0.005)
        self.ran.append(self.cloud.now)
        return timedelta(minutes=10)


def settings(cloud: FakeCloud) -> dict[str, str]:
    return {**cloud.env, "RECONCILE_INTERVAL": "86400", "INITIAL_DELAY": "0"}


def test_controller_of_resources_moves_along() -> None:
    with FakeCloud() as cloud:
        jobs = Job(cloud)

        async def story() -> None:
            async with lcm.ResourceController(jobs, name="jobs", settings=settings(cloud)) as controller:
                while not jobs.ran:
                    await asyncio.sleep(0.01)
                await cloud.advance_async(3600, controllers=[controller])

        asyncio.run(story())
        assert len(jobs.ran) in (6, 7)
        gaps = [later - earlier for earlier, later in zip(jobs.ran[1:], jobs.ran[2:], strict=False)]
        assert all(abs(gap - timedelta(minutes=10)) < timedelta(seconds=5) for gap in gaps), gaps


def test_sync_form_moves_a_controller_of_another_thread() -> None:
    with FakeCloud() as cloud:
        jobs = Job(cloud)
        controller = lcm.ResourceController(jobs, name="jobs", settings=settings(cloud))
        thread = threading.Thread(target=lambda: asyncio.run(controller.run()))
        thread.start()
        try:
            cloud.until(lambda: jobs.ran)
            cloud.advance(1800, controllers=[controller])
        finally:
            controller.stop()
            thread.join()
        assert len(jobs.ran) in (3, 4)


def test_sync_form_refuses_to_block_the_loop_of_its_controllers() -> None:
    async def story(cloud: FakeCloud) -> None:
        controller = lcm.ResourceController(Job(cloud), name="jobs", settings=settings(cloud))
        with pytest.raises(lcm.FakeCloudError, match=r"await cloud\.advance_async"):
            cloud.advance(60, controllers=[controller])

    with FakeCloud() as cloud:
        asyncio.run(story(cloud))


def test_negative_step_is_refused() -> None:
    async def story(cloud: FakeCloud) -> None:
        with pytest.raises(lcm.FakeCloudError, match="from 0 up"):
            await cloud.advance_async(-1)

    with FakeCloud() as cloud:
        asyncio.run(story(cloud))
