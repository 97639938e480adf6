"""Injected faults, and the retries of boto3."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, HTTPClientError
from conftest import AdminError, FakeCloud, eventually

ONE_ATTEMPT = Config(retries={"total_max_attempts": 1})


def ids(response: dict[str, Any]) -> list[str]:
    return [i["InstanceId"] for r in response["Reservations"] for i in r["Instances"]]


@pytest.mark.parametrize(
    ("code", "status", "attempts"),
    [
        ("RequestLimitExceeded", 503, 3),
        ("RequestLimitExceeded", 400, 3),
        ("InsufficientInstanceCapacity", 500, 3),
        ("InsufficientInstanceCapacity", 400, 1),
        ("InternalError", 500, 3),
        ("Unavailable", 503, 3),
        ("AuthFailure", 401, 1),
        ("UnauthorizedOperation", 403, 1),
        ("InvalidInstanceID.NotFound", 400, 1),
    ],
)
def test_boto3_retries_as_with_aws(fake_cloud: FakeCloud, code: str, status: int, attempts: int) -> None:
    fake_cloud.fault({"kind": "error", "code": code, "status": status}, service="ec2", operation="DescribeInstances")
    with pytest.raises(ClientError) as refused:
        fake_cloud.client("ec2").describe_instances()
    assert refused.value.response["Error"]["Code"] == code
    records = fake_cloud.requests(operation="DescribeInstances")
    assert [record["attempt"] for record in records] == list(range(1, attempts + 1))
    assert len({record["call"] for record in records}) == 1
    assert {record["outcome"]["status"] for record in records} == {status}


def test_error_codes_have_their_http_status(fake_cloud: FakeCloud) -> None:
    ec2 = fake_cloud.client("ec2", config=ONE_ATTEMPT)
    for code, status in [("RequestLimitExceeded", 503), ("InsufficientInstanceCapacity", 500), ("AuthFailure", 401)]:
        rule = fake_cloud.fault({"kind": "error", "code": code})
        with pytest.raises(ClientError) as refused:
            ec2.describe_instances()
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        fake_cloud.admin("DELETE", f"faults/{rule}")


def test_failed_attempts_are_retried_within_a_call(fake_cloud: FakeCloud) -> None:
    ec2 = fake_cloud.client("ec2")
    rule = fake_cloud.fault({"kind": "error", "code": "InternalError"}, times=2, per="attempt")
    ec2.describe_instances()
    assert len(fake_cloud.requests()) == 3
    fake_cloud.admin("DELETE", f"faults/{rule}")
    fake_cloud.fault({"kind": "error", "code": "InternalError"}, times=2, per="call")
    for _ in range(2):
        with pytest.raises(ClientError):
            ec2.describe_instances()
    ec2.describe_instances()


def test_lost_response_launches_once(fake_cloud: FakeCloud) -> None:
    fake_cloud.fault({"kind": "drop-response"}, operation="RunInstances", times=1)
    [instance] = fake_cloud.launch()
    assert ids(fake_cloud.client("ec2").describe_instances()) == [instance]
    outcomes = [record["outcome"]["result"] for record in fake_cloud.requests(operation="RunInstances")]
    assert outcomes == ["response-dropped", "served"]


def test_reset_connection_has_no_effect(fake_cloud: FakeCloud) -> None:
    image = fake_cloud.image()
    fake_cloud.fault({"kind": "reset"}, operation="RunInstances")
    ec2 = fake_cloud.client("ec2", config=ONE_ATTEMPT)
    with pytest.raises((ConnectionClosedError, EndpointConnectionError, HTTPClientError)):
        ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1)
    assert ids(ec2.describe_instances()) == []
    assert fake_cloud.requests(operation="RunInstances")[0]["outcome"] == {"result": "reset"}


def test_latency_follows_the_fake_clock(fake_cloud: FakeCloud) -> None:
    fake_cloud.fault({"kind": "latency", "seconds": 300}, operation="DescribeRegions")
    done = threading.Event()

    def ask() -> None:
        fake_cloud.client("ec2").describe_regions()
        done.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    eventually(lambda: fake_cloud.admin("GET", "faults")[0]["applied"] == 1)
    assert not done.wait(0.2)
    fake_cloud.advance(300)
    assert done.wait(20)


def test_new_instance_becomes_visible_later(fake_cloud: FakeCloud) -> None:
    fake_cloud.fault({"kind": "visibility-lag", "seconds": 30})
    ec2 = fake_cloud.client("ec2")
    [instance] = fake_cloud.launch(settle=False)
    for call in (ec2.describe_instances, ec2.terminate_instances):
        with pytest.raises(ClientError, match="does not exist"):
            call(InstanceIds=[instance])
    assert ids(ec2.describe_instances()) == []
    fake_cloud.advance(30)
    assert ids(ec2.describe_instances(InstanceIds=[instance])) == [instance]


def test_list_faults_omit_cut_and_shuffle(fake_cloud: FakeCloud) -> None:
    ec2 = fake_cloud.client("ec2")
    launched = fake_cloud.launch(20)

    def with_fault(action: dict[str, Any], **rule: Any) -> list[dict[str, Any]]:
        number = fake_cloud.fault(action, operation="DescribeInstances", **rule)
        pages = list(ec2.get_paginator("describe_instances").paginate())
        fake_cloud.admin("DELETE", f"faults/{number}")
        return pages

    [page] = with_fault({"kind": "omit"}, instance=launched[3])
    assert ids(page) == launched[:3] + launched[4:]
    [page] = with_fault({"kind": "omit", "fraction": 0.5})
    assert 0 < len(ids(page)) < 20
    pages = with_fault({"kind": "empty-page"}, times=1)
    assert [len(ids(page)) for page in pages] == [0, 20]
    pages = with_fault({"kind": "partial-page", "limit": 7})
    assert [len(ids(page)) for page in pages] == [7, 7, 6]
    [page] = with_fault({"kind": "shuffle"})
    assert ids(page) != launched
    assert sorted(ids(page)) == sorted(launched)


def test_known_id_can_have_an_empty_response(fake_cloud: FakeCloud) -> None:
    [instance] = fake_cloud.launch()
    fake_cloud.fault({"kind": "empty-page"}, instance=instance)
    assert fake_cloud.client("ec2").describe_instances(InstanceIds=[instance])["Reservations"] == []


def test_cloudwatch_can_be_throttled(fake_cloud: FakeCloud) -> None:
    fake_cloud.fault({"kind": "error", "code": "ThrottlingException"}, service="cloudwatch")
    with pytest.raises(ClientError, match="Rate exceeded"):
        fake_cloud.client("cloudwatch").list_metrics()
    assert [record["attempt"] for record in fake_cloud.requests(service="cloudwatch")] == [1, 2, 3]
    fake_cloud.client("ec2").describe_regions()


def test_fault_can_select_one_instance(fake_cloud: FakeCloud) -> None:
    good, bad = fake_cloud.launch(2)
    fake_cloud.fault({"kind": "error", "code": "InternalServiceError"}, service="cloudwatch", instance=bad)
    cloudwatch, now = fake_cloud.client("cloudwatch", config=ONE_ATTEMPT), fake_cloud.now()

    def statistics(instance: str) -> Any:
        return cloudwatch.get_metric_statistics(
            Namespace="AWS/EC2",
            MetricName="CPUUtilization",
            Dimensions=[{"Name": "InstanceId", "Value": instance}],
            StartTime=now - timedelta(hours=1),
            EndTime=now,
            Period=300,
            Statistics=["Average"],
        )

    statistics(good)
    with pytest.raises(cloudwatch.exceptions.InternalServiceFault):
        statistics(bad)


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ({"action": {"kind": "explode"}}, "unknown variant `explode`"),
        ({"acton": {}, "action": {"kind": "reset"}}, "unknown field `acton`"),
        ({"probability": 2, "action": {"kind": "reset"}}, "probability must be between 0 and 1"),
        ({"service": "ec2"}, "missing field `action`"),
    ],
)
def test_invalid_rule_is_explained(fake_cloud: FakeCloud, rule: dict[str, Any], hint: str) -> None:
    with pytest.raises(AdminError, match=hint):
        fake_cloud.admin("POST", "faults", rule)


def test_secrets_are_not_recorded(fake_cloud: FakeCloud) -> None:
    fake_cloud.launch(UserData="the password is hush")
    [record] = fake_cloud.requests(operation="RunInstances")
    parameters = dict(record["parameters"])
    assert parameters["UserData"] == "[redacted]"
    assert parameters["InstanceType"] == "m5.large"
    assert record["region"] == "us-east-1"
    assert "Boto3" in record["client"]
    assert "hush" not in str(fake_cloud.requests())
