"""The fake etcd, called by aetcd."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aetcd
import pytest
from conftest import built_program

PATIENCE = 10


@pytest.fixture(scope="module")
def etcd() -> Iterator[tuple[str, int]]:
    """A fake etcd on a free port."""
    command = [str(built_program("examples/etcd")), "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        host, port = line.removeprefix("etcd on ").split(",")[0].split(":")
        yield host, int(port)
        process.terminate()


@asynccontextmanager
async def connected(etcd: tuple[str, int]) -> AsyncIterator[aetcd.Client]:
    """Connect a client during the block."""
    host, port = etcd
    async with aetcd.Client(host=host, port=port) as client:
        yield client


def run(etcd: tuple[str, int], scenario: Callable[[aetcd.Client], Awaitable[None]]) -> None:
    """Run a test with a client and a time limit."""

    async def connect_and_run() -> None:
        async with connected(etcd) as client:
            await asyncio.wait_for(scenario(client), PATIENCE)

    asyncio.run(connect_and_run())


def test_keys_are_put_read_replaced_and_deleted(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        assert await client.get(b"/k/none") is None
        await client.put(b"/k/1", b"one")
        await client.put(b"/k/2", b"two")
        found: Any = await client.get(b"/k/1")
        assert (found.value, found.version) == (b"one", 1)
        pairs = [(kv.key, kv.value) for kv in await client.get_prefix(b"/k/", sort_order="descend", sort_target="key")]
        assert pairs == [(b"/k/2", b"two"), (b"/k/1", b"one")]
        assert await client.replace(b"/k/1", b"one", b"eins")
        assert not await client.replace(b"/k/1", b"one", b"uno")
        before: Any = await client.put(b"/k/2", b"zwei", prev_kv=True)
        assert before.prev_kv.value == b"two"
        await client.delete_prefix(b"/k/")
        assert list(await client.get_prefix(b"/k/")) == []

    run(etcd, scenario)


def test_transaction_creates_a_key_once(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        async def create(value: bytes) -> bool:
            succeeded, _ = await client.transaction(
                compare=[client.transactions.version(b"/once") == 0],
                success=[client.transactions.put(b"/once", value)],
                failure=[client.transactions.get(b"/once")],
            )
            return bool(succeeded)

        assert await create(b"first")
        assert not await create(b"second")
        created: Any = await client.get(b"/once")
        assert created.value == b"first"

    run(etcd, scenario)


def test_revoked_lease_deletes_its_keys(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        lease = await client.lease(60)
        await client.put(b"/leased", b"x", lease=lease)
        info = await client.get_lease_info(lease.id)
        assert list(info.keys) == [b"/leased"]
        assert 50 <= await lease.remaining_ttl() <= 60
        await lease.refresh()
        await lease.revoke()
        assert await client.get(b"/leased") is None

    run(etcd, scenario)


def test_watch_returns_puts_and_deletes_in_order(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        watch = await client.watch_prefix(b"/seen/")
        await client.put(b"/seen/1", b"a")
        await client.put(b"/seen/2", b"b")
        await client.delete(b"/seen/1")
        events = []
        async for event in watch:
            events.append((event.kind, event.kv.key))
            if len(events) == 3:
                break
        await watch.cancel()
        assert events == [("PUT", b"/seen/1"), ("PUT", b"/seen/2"), ("DELETE", b"/seen/1")]

    run(etcd, scenario)


def test_lock_has_one_holder(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        first, second = client.lock(b"door"), client.lock(b"door")
        assert await first.acquire(timeout=5)
        assert not await second.acquire(timeout=1)
        await first.release()
        assert await second.acquire(timeout=5)
        await second.release()

    run(etcd, scenario)


def test_cluster_has_one_member_that_leads(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        status: Any = await client.status()
        members = [member async for member in client.members()]
        assert len(members) == 1
        assert status.leader.id == members[0].id

    run(etcd, scenario)
