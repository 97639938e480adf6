"""The fake etcd, called by aetcd."""

import asyncio
import base64
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aetcd
import pytest
from conftest import fake_cloud_binary

PATIENCE = 10


@pytest.fixture(scope="module")
def etcd() -> Iterator[tuple[str, int]]:
    """A fake etcd on a free port."""
    command = [str(fake_cloud_binary()), "etcd", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = urllib.parse.urlsplit(json.loads(process.stdout.readline())["endpoint"])
        assert url.hostname is not None and url.port is not None
        yield url.hostname, url.port
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


def test_alarm_rejects_puts_until_disarmed(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        await client.create_alarm()
        with pytest.raises(aetcd.ClientError, match="database space exceeded"):
            await client.put(b"/full", b"x")
        assert len([alarm async for alarm in client.list_alarms()]) == 1
        await client.disarm_alarm()
        await client.put(b"/full", b"x")

    run(etcd, scenario)


def post(etcd: tuple[str, int], path: str, **fields: Any) -> Any:
    """Make a call over the JSON gateway."""
    host, port = etcd
    request = urllib.request.Request(f"http://{host}:{port}/v3/{path}", json.dumps(fields).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.load(response)


def test_password_is_required_once_authentication_is_enabled(etcd: tuple[str, int]) -> None:
    host, port = etcd

    async def scenario(anonymous: aetcd.Client) -> None:
        with pytest.raises(aetcd.ClientError, match="user name is empty"):
            await anonymous.put(b"/secret", b"x")
        async with aetcd.Client(host=host, port=port, username="root", password="hunter2") as root:
            await root.put(b"/secret", b"x")

    post(etcd, "auth/user/add", name="root", password="hunter2")
    post(etcd, "auth/user/grant", user="root", role="root")
    post(etcd, "auth/enable")
    try:
        run(etcd, scenario)
    finally:
        token = post(etcd, "auth/authenticate", name="root", password="hunter2")["token"]
        request = urllib.request.Request(
            f"http://{host}:{port}/v3/auth/disable", b"{}", {"Authorization": token}, method="POST"
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()


def test_json_gateway_reads_what_grpc_wrote(etcd: tuple[str, int]) -> None:
    async def scenario(client: aetcd.Client) -> None:
        await client.put(b"/json", b"x")

    run(etcd, scenario)
    found = post(etcd, "kv/range", key=base64.b64encode(b"/json").decode())
    assert [base64.b64decode(kv["value"]) for kv in found["kvs"]] == [b"x"]
