"""The happy path on the fakes of EC2 that people choose between, and their differences.

docs/other-fakes.md lists the differences; change it together with these tests.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionError
from botocore.parsers import ResponseParserError
from conftest import FakeCloud, start, stop

PATIENCE = 60.0
UNKNOWN = "i-0123456789abcdef0"
# An answer that is not an error of EC2.
BROKEN = "a page of HTML"

Clients = dict[str, Any]
"""A client of EC2 for each fake."""


def client_of(url: str, service: str = "ec2", region: str = "us-east-1") -> Any:
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=region,
        aws_access_key_id="fake",
        aws_secret_access_key="fake",
        config=Config(retries={"total_max_attempts": 1}),
    )


@contextmanager
def served(name: str, module: str, *arguments: str, **env: str) -> Iterator[str]:
    """Runs another fake on a free port; `{port}` in an argument or a variable is replaced by it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", module, *(argument.format(port=port) for argument in arguments)]
    environment = {**os.environ, **{key: value.format(port=port) for key, value in env.items()}}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            client = client_of(url)
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    client.describe_regions()
                    break
                except (ClientError, ConnectionError):
                    assert process.poll() is None and time.monotonic() < deadline, f"{name} does not start"
                    time.sleep(0.05)
            yield url
        finally:
            process.terminate()


@contextmanager
def ours(*arguments: str) -> Iterator[FakeCloud]:
    cloud = start(*arguments)
    try:
        yield cloud
    finally:
        assert stop(cloud) == 0


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """The three fakes; ours without delays, as the others."""
    with ExitStack() as stack:
        moto = served("moto", "moto.server", "-H", "127.0.0.1", "-p", "{port}")
        ministack = served("ministack", "ministack", BIND_HOST="127.0.0.1", GATEWAY_PORT="{port}")
        yield {
            "ours": stack.enter_context(ours("--clock", "real", "--delays", "none")).url,
            "moto": stack.enter_context(moto),
            "ministack": stack.enter_context(ministack),
        }


@pytest.fixture(scope="module")
def fakes(urls: dict[str, str]) -> Clients:
    return {name: client_of(url) for name, url in urls.items()}


@functools.cache
def image_of(ec2: Any) -> str:
    return str(ec2.describe_images()["Images"][0]["ImageId"])


def launch(ec2: Any, count: int = 1, **options: Any) -> str:
    """Launches instances and returns the id of the first one."""
    options = {"ImageId": image_of(ec2), "InstanceType": "m5.large", "MinCount": count, "MaxCount": count, **options}
    return str(ec2.run_instances(**options)["Instances"][0]["InstanceId"])


def described(ec2: Any, instance: str) -> Any:
    [reservation] = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    return reservation["Instances"][0]


def state(ec2: Any, instance: str) -> str:
    return str(described(ec2, instance)["State"]["Name"])


def answer(call: Callable[[], Any]) -> Any:
    """The value that a call returns, or the code of its error."""
    try:
        return call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    except (BotoCoreError, ResponseParserError):
        return BROKEN


def answers(fakes: Clients, call: Callable[[Any], Any]) -> dict[str, Any]:
    """The answer of each fake."""
    return {name: answer(lambda ec2=ec2: call(ec2)) for name, ec2 in fakes.items()}  # type: ignore[misc]


@pytest.mark.parametrize("which", ["ours", "moto", "ministack"])
def test_happy_path_is_the_same(fakes: Clients, which: str) -> None:
    ec2 = fakes[which]
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
    tagged = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [instance]}])["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tagged} == {"lcm:worker_id": "w-1", "color": "blue"}
    ec2.stop_instances(InstanceIds=[instance])
    assert state(ec2, instance) == "stopped"
    ec2.start_instances(InstanceIds=[instance])
    assert state(ec2, instance) == "running"
    ec2.terminate_instances(InstanceIds=[instance])
    assert state(ec2, instance) == "terminated"
    assert answer(lambda: state(ec2, UNKNOWN)) == "InvalidInstanceID.NotFound"
    elsewhere = client_of(ec2.meta.endpoint_url, region="eu-west-1")
    assert answer(lambda: state(elsewhere, instance)) == "InvalidInstanceID.NotFound"


def test_launch_token_is_honored_only_here(fakes: Clients) -> None:
    def again(ec2: Any) -> bool:
        return launch(ec2, ClientToken="one") == launch(ec2, ClientToken="one")

    def with_other_parameters(ec2: Any) -> str:
        return launch(ec2, 2, ClientToken="one") and "launched"

    assert answers(fakes, again) == {"ours": True, "moto": False, "ministack": False}
    assert answers(fakes, with_other_parameters) == {
        "ours": "IdempotentParameterMismatch",
        "moto": "launched",
        "ministack": "launched",
    }


def test_terminated_instance_stays_terminated_only_here(fakes: Clients) -> None:
    def start_terminated(ec2: Any) -> str:
        instance = launch(ec2)
        ec2.terminate_instances(InstanceIds=[instance])
        ec2.start_instances(InstanceIds=[instance])
        return state(ec2, instance)

    assert answers(fakes, start_terminated) == {
        "ours": "IncorrectInstanceState",
        "moto": "running",
        "ministack": "running",
    }


def test_malformed_id_has_its_own_error(fakes: Clients) -> None:
    assert answers(fakes, lambda ec2: state(ec2, "banana")) == {
        "ours": "InvalidInstanceID.Malformed",
        "moto": "InvalidInstanceID.NotFound",
        "ministack": "InvalidInstanceID.Malformed",
    }


@pytest.mark.parametrize(
    ("option", "here", "moto", "ministack"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound", "launched", "launched"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound", "InvalidSubnetID.NotFound", "launched"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound", "InvalidGroup.NotFound", "launched"),
        ({"KeyName": "missing"}, "InvalidKeyPair.NotFound", "launched", "launched"),
        (
            {"Placement": {"AvailabilityZone": "eu-west-1a"}},
            "InvalidParameterValue",
            "InvalidParameterValue",
            "launched",
        ),
        ({"MinCount": 3, "MaxCount": 2}, "InvalidParameterValue", "launched", "InvalidParameterCombination"),
        ({"DryRun": True}, "DryRunOperation", "DryRunOperation", "launched"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_launch_that_ec2_refuses(fakes: Clients, option: dict[str, Any], here: str, moto: str, ministack: str) -> None:
    found = answers(fakes, lambda ec2: launch(ec2, **option) and "launched")
    assert found == {"ours": here, "moto": moto, "ministack": ministack}


def test_protected_instance_is_terminated_elsewhere(fakes: Clients) -> None:
    def terminate(ec2: Any, instance: str) -> str:
        ec2.terminate_instances(InstanceIds=[instance])
        return state(ec2, instance)

    def protected_at_launch(ec2: Any) -> str:
        return terminate(ec2, launch(ec2, DisableApiTermination=True))

    def protected_later(ec2: Any) -> str:
        instance = launch(ec2)
        ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": True})
        return terminate(ec2, instance)

    refused = "OperationNotPermitted"
    assert answers(fakes, protected_at_launch) == {"ours": refused, "moto": "terminated", "ministack": "terminated"}
    assert answers(fakes, protected_later) == {"ours": refused, "moto": refused, "ministack": "InvalidAction"}


def test_stopped_instance_has_no_public_address(fakes: Clients) -> None:
    def addresses(ec2: Any) -> list[bool]:
        """Whether the address is gone after a stop, and another one after the next start."""
        instance = launch(ec2)
        first = described(ec2, instance)["PublicIpAddress"]
        ec2.stop_instances(InstanceIds=[instance])
        stopped = described(ec2, instance).get("PublicIpAddress")
        ec2.start_instances(InstanceIds=[instance])
        return [stopped is None, described(ec2, instance)["PublicIpAddress"] != first]

    assert answers(fakes, addresses) == {"ours": [True, True], "moto": [True, True], "ministack": [False, False]}


def test_unknown_filter_is_refused_only_here(fakes: Clients) -> None:
    def find(ec2: Any) -> str:
        launch(ec2)
        bogus = [{"Name": "bogus", "Values": ["x"]}]
        return "instances" if ec2.describe_instances(Filters=bogus)["Reservations"] else "none"

    assert answers(fakes, find) == {"ours": "InvalidParameterValue", "moto": BROKEN, "ministack": "instances"}


def test_list_has_pages_only_with_a_token(fakes: Clients) -> None:
    def first_page(ec2: Any) -> tuple[bool, bool]:
        """Whether a page has at most five instances, and a token of the next one."""
        launch(ec2, 8)
        page = ec2.describe_instances(MaxResults=5)
        return sum(len(one["Instances"]) for one in page["Reservations"]) <= 5, bool(page.get("NextToken"))

    def with_ids(ec2: Any) -> str:
        return ec2.describe_instances(InstanceIds=[launch(ec2)], MaxResults=5) and "instances"

    assert answers(fakes, first_page)["ours"] == (True, True)
    assert answers(fakes, first_page)["ministack"] == (False, False)
    assert answers(fakes, with_ids) == {
        "ours": "InvalidParameterCombination",
        "moto": "InvalidParameterCombination",
        "ministack": "instances",
    }


def test_tags_of_an_unknown_instance_are_refused_only_here(fakes: Clients) -> None:
    def tag(ec2: Any) -> str:
        return ec2.create_tags(Resources=[UNKNOWN], Tags=[{"Key": "team", "Value": "blue"}]) and "tagged"

    assert answers(fakes, tag) == {"ours": "InvalidInstanceID.NotFound", "moto": "tagged", "ministack": "tagged"}


def test_running_instance_has_metrics_only_here(urls: dict[str, str], fakes: Clients) -> None:
    def has_metric(url: str, instance: str, now: datetime) -> bool:
        response = client_of(url, "cloudwatch").get_metric_statistics(
            Namespace="AWS/EC2",
            MetricName="CPUUtilization",
            Dimensions=[{"Name": "InstanceId", "Value": instance}],
            StartTime=now - timedelta(hours=1),
            EndTime=now + timedelta(hours=1),
            Period=60,
            Statistics=["Average"],
        )
        return bool(response["Datapoints"])

    with ours("--clock", "manual") as cloud:
        [instance] = cloud.launch()
        cloud.advance(600)
        assert has_metric(cloud.url, instance, cloud.now())
    for name in ("moto", "ministack"):
        assert not has_metric(urls[name], launch(fakes[name]), datetime.now(UTC)), name


def test_state_changes_take_time_and_follow_a_clock_only_here(fakes: Clients) -> None:
    with ours("--clock", "manual") as cloud:
        timed = {**fakes, "ours": cloud.client("ec2")}
        instances = {name: launch(ec2) for name, ec2 in timed.items()}
        states = {name: state(ec2, instances[name]) for name, ec2 in timed.items()}
        assert states == {"ours": "pending", "moto": "running", "ministack": "running"}
        cloud.advance(60)
        assert state(timed["ours"], instances["ours"]) == "running"
        for name, ec2 in timed.items():
            ec2.terminate_instances(InstanceIds=[instances[name]])
        cloud.advance(24 * 3600)
        # A day later EC2 has forgotten it. The others have no clock to move.
        found = {name: answer(lambda name=name: state(timed[name], instances[name])) for name in timed}  # type: ignore[misc]
        assert found == {"ours": "InvalidInstanceID.NotFound", "moto": "terminated", "ministack": "terminated"}


def test_calls_fail_on_request_only_here(fakes: Clients) -> None:
    with ours("--clock", "manual") as cloud:
        ec2 = cloud.client("ec2", config=Config(retries={"total_max_attempts": 1}))
        cloud.fault({"kind": "error", "code": "InsufficientInstanceCapacity"}, operation="RunInstances", times=1)
        assert answer(lambda: launch(ec2)) == "InsufficientInstanceCapacity"
        assert launch(ec2)
        cloud.fault({"kind": "reset"}, operation="DescribeInstances", times=1)
        assert answer(lambda: ec2.describe_instances()) == BROKEN
        assert ec2.describe_instances()["Reservations"]
