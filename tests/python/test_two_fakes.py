"""The happy path on two fakes of EC2, and their differences.

docs/other-fakes.md lists the differences; change it together with these tests.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectionError
from conftest import start, stop

PATIENCE = 60.0


def client_of(url: str) -> Any:
    return boto3.client(
        "ec2", endpoint_url=url, region_name="us-east-1", aws_access_key_id="fake", aws_secret_access_key="fake"
    )


@contextmanager
def moto() -> Iterator[Any]:
    """A client of a moto server on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            client = client_of(f"http://127.0.0.1:{port}")
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    client.describe_regions()
                    break
                except (ClientError, ConnectionError):
                    assert process.poll() is None and time.monotonic() < deadline, "moto does not start"
            yield client
        finally:
            process.terminate()


@contextmanager
def ours() -> Iterator[Any]:
    """A client of the fake cloud without delays, as in moto."""
    cloud = start("--clock", "real", "--delays", "none")
    try:
        yield client_of(cloud.url)
    finally:
        assert stop(cloud) == 0


@pytest.fixture(scope="module")
def both() -> Iterator[dict[str, Any]]:
    with ours() as fake, moto() as other:
        yield {"ours": fake, "moto": other}


def launch(ec2: Any, **options: Any) -> str:
    image = ec2.describe_images()["Images"][0]["ImageId"]
    run = ec2.run_instances(ImageId=image, InstanceType="m5.large", MinCount=1, MaxCount=1, **options)
    return str(run["Instances"][0]["InstanceId"])


def state(ec2: Any, instance: str) -> str:
    [reservation] = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    return str(reservation["Instances"][0]["State"]["Name"])


def code_of(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


@pytest.mark.parametrize("which", ["ours", "moto"])
def test_happy_path_is_the_same(both: dict[str, Any], which: str) -> None:
    ec2 = both[which]
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "lcm:worker_id", "Value": "w-1"}]}]
    instance = launch(ec2, TagSpecifications=tags)
    assert state(ec2, instance) == "running"
    found = ec2.describe_instances(
        Filters=[
            {"Name": "tag:lcm:worker_id", "Values": ["w-*"]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
    )
    assert [i["InstanceId"] for r in found["Reservations"] for i in r["Instances"]] == [instance]
    ec2.create_tags(Resources=[instance], Tags=[{"Key": "color", "Value": "blue"}])
    described = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [instance]}])["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in described} == {"lcm:worker_id": "w-1", "color": "blue"}
    ec2.stop_instances(InstanceIds=[instance])
    assert state(ec2, instance) == "stopped"
    ec2.start_instances(InstanceIds=[instance])
    assert state(ec2, instance) == "running"
    ec2.terminate_instances(InstanceIds=[instance])
    assert state(ec2, instance) == "terminated"
    assert code_of(lambda: ec2.describe_instances(InstanceIds=["i-0123456789abcdef0"])) == "InvalidInstanceID.NotFound"
    assert code_of(lambda: ec2.describe_instances(InstanceIds=[instance], MaxResults=5)) == (
        "InvalidParameterCombination"
    )


def test_launch_token_launches_once_only_here(both: dict[str, Any]) -> None:
    again = {which: launch(ec2, ClientToken="one") == launch(ec2, ClientToken="one") for which, ec2 in both.items()}
    assert again == {"ours": True, "moto": False}


def test_terminated_instance_stays_terminated_only_here(both: dict[str, Any]) -> None:
    ours, other = both["ours"], both["moto"]
    instances = {which: launch(ec2) for which, ec2 in both.items()}
    for which, ec2 in both.items():
        ec2.terminate_instances(InstanceIds=[instances[which]])
    refused = code_of(lambda: ours.start_instances(InstanceIds=[instances["ours"]]))
    assert refused == "IncorrectInstanceState"
    other.start_instances(InstanceIds=[instances["moto"]])
    assert state(other, instances["moto"]) == "running"


def test_malformed_id_has_its_own_error_only_here(both: dict[str, Any]) -> None:
    codes = {w: code_of(lambda ec2=ec2: ec2.describe_instances(InstanceIds=["banana"])) for w, ec2 in both.items()}  # type: ignore[misc]
    assert codes == {"ours": "InvalidInstanceID.Malformed", "moto": "InvalidInstanceID.NotFound"}


def test_missing_image_is_refused_only_here(both: dict[str, Any]) -> None:
    def run(ec2: Any) -> Any:
        return ec2.run_instances(ImageId="ami-0123456789abcdef0", MinCount=1, MaxCount=1, InstanceType="m5.large")

    assert code_of(lambda: run(both["ours"])) == "InvalidAMIID.NotFound"
    assert run(both["moto"])["Instances"]
