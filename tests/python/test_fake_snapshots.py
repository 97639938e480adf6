"""Snapshots of the fake cloud: real clients go on with a restored cloud, in the command and in Python."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import aetcd
import boto3
import pytest
from conftest import AdminError, eventually, fake_cloud_binary, start, stop
from conftest import FakeCloud as Command
from lcm import Ec2State, FakeCloudError
from lcm.testing import FakeCloud, Snapshot


def ec2(cloud: FakeCloud) -> Any:
    return boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=cloud.endpoints["aws_url"],
        aws_access_key_id="fake",
        aws_secret_access_key="fake",
    )


def etcd(cloud: FakeCloud) -> aetcd.Client:
    host, port = cloud.endpoints["etcd_endpoint"].split(":")
    return aetcd.Client(host=host, port=int(port))


def test_same_actions_after_a_restore_have_the_same_results() -> None:
    with FakeCloud(seed=7) as cloud:
        cloud.run(tags={"Name": "blue"})
        saved = cloud.snapshot(secrets=True)

        def history() -> tuple[Any, ...]:
            launched = cloud.run(tags={"Name": "green"})
            cloud.add_worker(id="w-1", status="running")
            cloud.advance(90)
            cloud.stop_instance("green")
            return launched.id, cloud.now, [(seen.id, seen.state) for seen in cloud.instances()], cloud.audit()

        first = history()
        assert cloud.restore(saved) == []
        assert [seen.tags["Name"] for seen in cloud.instances()] == ["blue"]
        assert history() == first


def test_real_clients_go_on_with_a_restored_cloud(tmp_path: Path) -> None:
    file = tmp_path / "cloud.json"
    with FakeCloud() as cloud:
        instance = cloud.run(tags={"team": "blue"}).id
        cloud.advance(60)

        async def write() -> None:
            async with etcd(cloud) as client:
                await client.put(b"/app/name", b"blue", lease=await client.lease(3600))

        asyncio.run(write())
        cloud.snapshot().save(file)
    with FakeCloud(restore=file) as other:
        client = ec2(other)
        [reservation] = client.describe_instances()["Reservations"]
        assert [(one["InstanceId"], one["State"]["Name"]) for one in reservation["Instances"]] == [
            (instance, "running")
        ]
        client.stop_instances(InstanceIds=[instance])
        other.advance(60)
        [reservation] = client.describe_instances(InstanceIds=[instance])["Reservations"]
        assert reservation["Instances"][0]["State"]["Name"] == "stopped"

        async def read() -> None:
            async with etcd(other) as client:
                found = await client.get(b"/app/name")
                assert found is not None and found.value == b"blue" and found.lease != 0
                await client.put(b"/app/name", b"green")

        asyncio.run(read())
        assert [one["secret"] for one in other.masked] == ["passwords of CML users"]


def test_branch_is_another_running_cloud() -> None:
    with FakeCloud() as cloud:
        cloud.run(tags={"Name": "blue"})
        with cloud.branch() as branch:
            assert branch.now == cloud.now and branch.endpoints["aws_url"] != cloud.endpoints["aws_url"]
            branch.terminate("blue")
            branch.advance(600)
            assert [seen.state for seen in branch.instances()] == [Ec2State.TERMINATED]
            assert [seen.state for seen in cloud.instances()] == [Ec2State.PENDING]
        assert not branch.is_running and cloud.is_running


def test_invalid_snapshots_are_refused(tmp_path: Path) -> None:
    with FakeCloud() as cloud:
        cloud.run(tags={"Name": "blue"})
        document = json.loads(cloud.snapshot().text)
        for change, problem in [
            ({"version": 9}, "has version 9"),
            ({"format": "tar"}, 'its format is "tar"'),
            ({"etcd": None}, "invalid at etcd"),
        ]:
            with pytest.raises(FakeCloudError, match=problem):
                cloud.restore(Snapshot(json.dumps(document | change)))
        with pytest.raises(FakeCloudError, match="cannot read the snapshot"):
            cloud.restore(tmp_path / "missing.json")
        assert [seen.tags["Name"] for seen in cloud.instances()] == ["blue"]
    with pytest.raises(FakeCloudError, match="restore takes the place of scenario"):
        FakeCloud(restore=Snapshot("{}"), scenario="drain")


def test_command_starts_from_a_snapshot(fake_cloud: Command, tmp_path: Path) -> None:
    fake_cloud.launch()
    snapshot = fake_cloud.admin("POST", "snapshot")
    file = tmp_path / "cloud.json"
    file.write_text(json.dumps(snapshot))
    other = start("--restore", str(file))
    try:
        assert other.admin("GET", "state")["regions"] == fake_cloud.admin("GET", "state")["regions"]
        with pytest.raises(AdminError, match="not a snapshot"):
            other.admin("POST", "restore", {})
        assert "now" in other.admin("POST", "restore", snapshot)
        branch = other.admin("POST", "branch")
        assert branch["page"].startswith("http://127.0.0.1:")
        eventually(lambda: other.admin("GET", "branches")[0]["number"] == branch["number"])
    finally:
        assert stop(other) == 0
    file.write_text(json.dumps(snapshot | {"version": 9}))
    ended = subprocess.run(
        [fake_cloud_binary(), "--ephemeral", "--restore", str(file)], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1 and "the snapshot has version 9" in ended.stderr
