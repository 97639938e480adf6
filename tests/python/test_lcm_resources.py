"""Controllers of Python resources."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import lcm
import pytest
from controller_helpers import eventually
from lcm.testing import FakeCloud


def settings(cloud: FakeCloud, **more: str) -> dict[str, str]:
    quick = {"RECONCILE_INTERVAL": "3600", "INITIAL_DELAY": "0", "BACKOFF_BASE": "0.05", "DEBOUNCE_SECONDS": "0.05"}
    return {**cloud.env, **quick, **more}


class Jobs:
    """Jobs with a fixed result each."""

    def __init__(self, **results: Any) -> None:
        self.results = results
        self.passes: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()

    def key(self, job: str, /) -> str:
        return job

    async def list(self, everything: bool, /) -> list[str]:
        return list(self.results)

    def fetch(self, key: str, /) -> str | None:
        return key if key in self.results else None

    async def reconcile(self, job: str, /) -> Any:
        self.busy[job] += 1
        assert self.busy[job] == 1, "one reconcile per resource at a time"
        await asyncio.sleep(0.01)
        self.busy[job] -= 1
        self.passes[job] += 1
        result = self.results[job]
        if isinstance(result, Exception):
            raise result
        return result


def test_result_of_a_reconcile_sets_the_next_one(live_cloud: FakeCloud) -> None:
    jobs = Jobs(
        done=None,
        soon=timedelta(milliseconds=20),
        again=lcm.Outcome.RETRY,
        parked="skip",
        broken=KeyError("shelf"),
        nonsense=42,
    )

    async def story() -> None:
        async with lcm.ResourceController(jobs, name="jobs", settings=settings(live_cloud)) as controller:
            await eventually(lambda: all(jobs.passes[job] >= 3 for job in ("soon", "again", "broken", "nonsense")))
            assert jobs.passes["done"] == jobs.passes["parked"] == 1
            assert controller.trigger("parked")
            await eventually(lambda: jobs.passes["parked"] == 2)
            assert controller.stats["role"] == "leader"
            resources = controller.stats["resources"]
            errors = {key: (shown["last"] and shown["last"]["error"]) or "" for key, shown in resources.items()}
            assert errors["broken"] == "KeyError: 'shelf'"
            assert "reconcile returned 42; accepted: None, a timedelta" in errors["nonsense"]
            assert "reconciliation_reconcile_total" in controller.metrics()
        assert controller.stats["role"] == "standby" and not controller.trigger("done")

    asyncio.run(story())


def test_exception_of_a_reconcile_is_logged_with_traceback(
    live_cloud: FakeCloud, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Jobs(broken=KeyError("shelf"))

    async def story() -> None:
        async with lcm.ResourceController(jobs, name="jobs", settings=settings(live_cloud)):
            await eventually(lambda: jobs.passes["broken"] >= 2)

    asyncio.run(story())
    reported = [record for record in caplog.records if record.name == "lcm.controller" and record.exc_info]
    assert reported and reported[0].getMessage() == "the reconcile of broken raised: KeyError: 'shelf'"
    assert "raise result" in caplog.text, "the traceback is logged"


def test_standby_takes_over_after_a_stop(live_cloud: FakeCloud) -> None:
    first, second = Jobs(one=None), Jobs(one=None)

    async def story() -> None:
        patient = settings(live_cloud, LEASE_TTL="600")
        leader = lcm.ResourceController(first, name="jobs", settings=patient)
        leading = asyncio.create_task(leader.run())
        await eventually(lambda: first.passes["one"] == 1)
        async with lcm.ResourceController(second, name="jobs", settings=patient) as standby:
            await asyncio.sleep(0.5)
            assert second.passes["one"] == 0 and standby.stats["role"] == "standby"
            leader.stop()
            await leading
            # Far less than the ten minutes that the lease would have lasted.
            await eventually(lambda: second.passes["one"] == 1)

    asyncio.run(story())


def test_two_controllers_share_the_resources(live_cloud: FakeCloud) -> None:
    names = {f"job-{number}": None for number in range(20)}
    first, second = Jobs(**names), Jobs(**names)

    async def story() -> None:
        shared = settings(live_cloud, LEASE_TTL="600", LEADER_SHARDS="6", RECONCILE_INTERVAL="0.2")
        one = lcm.ResourceController(first, name="jobs", settings=shared)
        other = lcm.ResourceController(second, name="jobs", settings=shared)
        async with one, other:
            await eventually(lambda: all("lcm_shards_held 3" in each.metrics() for each in (one, other)))
            # Earlier reconciles have ended by then.
            await asyncio.sleep(1)
            first.passes.clear()
            second.passes.clear()
            await eventually(lambda: len(first.passes) + len(second.passes) == len(names))
            await asyncio.sleep(1)
            assert first.passes and second.passes and not first.passes.keys() & second.passes.keys()

    asyncio.run(story())


def test_etcd_watch_triggers_a_reconcile(live_cloud: FakeCloud) -> None:
    jobs = Jobs(**{"w-1": None})

    async def story() -> None:
        watched = lcm.ResourceController(jobs, name="jobs", watch=["/lcm/workers/"], settings=settings(live_cloud))
        async with watched:
            await eventually(lambda: jobs.passes["w-1"] >= 1)
            await asyncio.sleep(1)
            before, began = jobs.passes["w-1"], time.monotonic()
            # The control plane mirrors its records to etcd.
            live_cloud.add_worker(id="w-1", status="pending")
            await eventually(lambda: jobs.passes["w-1"] > before)
            assert time.monotonic() - began < 60, "polling would have taken an hour"

    asyncio.run(story())


def test_invalid_arguments_are_refused(live_cloud: FakeCloud) -> None:
    with pytest.raises(
        TypeError, match=r"object does not implement lcm.ports.Resources: missing key, list, fetch, reconcile"
    ):
        lcm.ResourceController(object(), name="jobs")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"watch is '/jobs/'; accepted: a list of prefixes"):
        lcm.ResourceController(Jobs(), name="jobs", watch="/jobs/")
    with pytest.raises(lcm.ConfigError, match="SERVICE_NAME"):
        lcm.ResourceController(Jobs(), name="/", settings=settings(live_cloud))
