"""Every parameter of the served CloudWatch and STS operations, as botocore's models of the APIs name them."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from datetime import timedelta
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape
from conftest import FakeCloud

OPERATIONS = ["GetMetricData", "GetMetricStatistics", "ListMetrics", "PutMetricData"]
OWN, OTHER = "123456789012", "999999999999"


@cache
def model(service: str) -> ServiceModel:
    return ServiceModel(
        botocore.session.get_session().get_component("data_loader").load_service_model(service, "service-2")
    )


def input_shape(operation: str) -> StructureShape:
    shape: Any = model("cloudwatch").operation_model(operation).input_shape
    assert isinstance(shape, StructureShape)
    return shape


def example(shape: Shape) -> Any:
    """Return a value with every member that the model knows."""
    if isinstance(shape, StructureShape):
        members: Any = shape.members
        return {name: example(member) for name, member in members.items()}
    if isinstance(shape, ListShape):
        member: Any = shape.member
        return [example(member)]
    if isinstance(shape, MapShape):
        return {"Name": "x"}
    return {"boolean": True, "string": "x"}.get(shape.type_name, 60)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all structures in a value. The keys of a map are data."""
    if isinstance(value, list):
        return [place for index, item in enumerate(value) for place in places(item, (*path, index))]
    if isinstance(value, dict) and not {"KeyAttributes", "Attributes"} & set(path):
        return [path, *(place for name, item in value.items() for place in places(item, (*path, name)))]
    return []


def send(cloud: FakeCloud, operation: str, value: Any) -> tuple[int, str]:
    """Send a request in JSON, and return its status and message."""
    headers = {
        "x-amz-target": f"GraniteServiceVersion20100801.{operation}",
        "content-type": "application/x-amz-json-1.0",
    }
    request = AWSRequest("POST", cloud.url + "/", data=json.dumps(value), headers=headers)
    SigV4Auth(Credentials("fake", "fake"), "monitoring", "us-east-1").add_auth(request)
    prepared = request.prepare()
    raw = urllib.request.Request(prepared.url, json.dumps(value).encode(), dict(prepared.headers.items()))
    try:
        with urllib.request.urlopen(raw, timeout=30) as response:
            return response.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["message"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_parameter_of_the_model_is_known(fake_cloud: FakeCloud, operation: str) -> None:
    assert "unknown field" not in send(fake_cloud, operation, example(input_shape(operation)))[1]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unknown_parameter_is_refused_at_every_place(fake_cloud: FakeCloud, operation: str) -> None:
    found = places(example(input_shape(operation)))
    assert () in found
    for path in found:
        value = inner = example(input_shape(operation))
        for step in path:
            inner = inner[step]
        inner["Banana"] = "x"
        status, message = send(fake_cloud, operation, value)
        assert status == 400 and "unknown field `Banana`" in message, path


def query(**more: Any) -> list[dict[str, Any]]:
    stat = {"Metric": {"Namespace": "Mine", "MetricName": "Load"}, "Period": 60, "Stat": "Average"}
    return [{"Id": "load", "MetricStat": stat, **more}]


def window(cloud: FakeCloud) -> dict[str, Any]:
    return {"StartTime": cloud.now() - timedelta(hours=1), "EndTime": cloud.now() + timedelta(minutes=1)}


def refused(call: Any, hint: str, **arguments: Any) -> None:
    with pytest.raises(ClientError, match=hint) as raised:
        call(**arguments)
    assert raised.value.response["Error"]["Code"] in ("InvalidParameterValue", "InvalidParameterValueException")


def test_list_metrics_of_linked_accounts(fake_cloud: FakeCloud) -> None:
    client = fake_cloud.client("cloudwatch")
    client.put_metric_data(Namespace="Mine", MetricData=[{"MetricName": "Load", "Value": 1}])
    assert client.list_metrics(Namespace="Mine").get("OwningAccounts", []) == []
    assert client.list_metrics(Namespace="Mine", IncludeLinkedAccounts=True)["OwningAccounts"] == [OWN]
    assert len(client.list_metrics(Namespace="Mine", OwningAccount=OWN)["Metrics"]) == 1
    assert client.list_metrics(Namespace="Mine", OwningAccount=OTHER)["Metrics"] == []


def test_list_metrics_that_are_recently_active(fake_cloud: FakeCloud) -> None:
    client = fake_cloud.client("cloudwatch")
    client.put_metric_data(Namespace="Mine", MetricData=[{"MetricName": "Load", "Value": 1}])
    assert len(client.list_metrics(Namespace="Mine", RecentlyActive="PT3H")["Metrics"]) == 1
    fake_cloud.advance(4 * 3600)
    assert client.list_metrics(Namespace="Mine", RecentlyActive="PT3H")["Metrics"] == []
    assert len(client.list_metrics(Namespace="Mine")["Metrics"]) == 1
    status, message = send(fake_cloud, "ListMetrics", {"RecentlyActive": "PT1H"})
    assert status == 400 and "PT3H" in message


def test_metric_data_of_accounts_and_labels(fake_cloud: FakeCloud) -> None:
    client = fake_cloud.client("cloudwatch")
    client.put_metric_data(Namespace="Mine", MetricData=[{"MetricName": "Load", "Value": 1}])
    get, times = client.get_metric_data, window(fake_cloud)
    assert get(MetricDataQueries=query(AccountId=OWN), **times)["MetricDataResults"][0]["Values"] == [1.0]
    refused(get, "not linked", MetricDataQueries=query(AccountId=OTHER), **times)
    refused(get, "dynamic labels", MetricDataQueries=query(Label="${MAX}"), **times)
    assert get(MetricDataQueries=query(), LabelOptions={"Timezone": "+0130"}, **times)["MetricDataResults"]
    refused(get, "Timezone", MetricDataQueries=query(), LabelOptions={"Timezone": "CET"}, **times)


def test_storage_resolution_keeps_seconds_or_minutes(fake_cloud: FakeCloud) -> None:
    client = fake_cloud.client("cloudwatch")
    at = fake_cloud.now().replace(second=42, microsecond=0) - timedelta(minutes=5)
    for name, resolution in (("fine", 1), ("coarse", 60)):
        datum = {"MetricName": name, "Value": 1, "Timestamp": at, "StorageResolution": resolution}
        client.put_metric_data(Namespace="Mine", MetricData=[datum])
        found = client.get_metric_statistics(
            Namespace="Mine", MetricName=name, Period=1, Statistics=["Sum"],
            StartTime=at.replace(second=0), EndTime=at + timedelta(minutes=1),
        )  # fmt: skip
        [point] = found["Datapoints"]
        assert point["Timestamp"] == (at if resolution == 1 else at.replace(second=0)), name
    bad = [{"MetricName": "odd", "Value": 1, "StorageResolution": 7}]
    refused(client.put_metric_data, "it must be 1 or 60", Namespace="Mine", MetricData=bad)


def test_caller_identity_has_no_parameter(fake_cloud: FakeCloud) -> None:
    shape: Any = model("sts").operation_model("GetCallerIdentity").input_shape
    assert shape.members == {}

    def call(**more: str) -> int:
        body = urllib.parse.urlencode({"Action": "GetCallerIdentity", "Version": "2011-06-15", **more})
        request = AWSRequest("POST", fake_cloud.url + "/", data=body)
        SigV4Auth(Credentials("fake", "fake"), "sts", "us-east-1").add_auth(request)
        headers = dict(request.prepare().headers.items())
        try:
            raw = urllib.request.Request(fake_cloud.url + "/", body.encode(), headers)
            with urllib.request.urlopen(raw, timeout=30) as response:
                status: int = response.status
                return status
        except urllib.error.HTTPError as error:
            assert b"InvalidQueryParameter" in error.read()
            return error.code

    assert (call(), call(Banana="1")) == (200, 400)
