"""The fake CloudWatch in all three protocols, called by botocore."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError
from conftest import FakeCloud

PROTOCOLS = ["json", "smithy-rpc-v2-cbor", "query"]


def cloudwatch(cloud: FakeCloud, protocol: str) -> Any:
    """Return a client that uses only this protocol."""
    session = botocore.session.Session()
    loader = session.get_component("data_loader")
    load = loader.load_service_model

    def load_with_protocol(service: str, kind: str, *arguments: Any, **options: Any) -> Any:
        model = load(service, kind, *arguments, **options)
        if service == "cloudwatch" and kind == "service-2":
            model = {**model, "metadata": {**model["metadata"], "protocol": protocol, "protocols": [protocol]}}
        return model

    loader.load_service_model = load_with_protocol
    client = session.create_client(
        "cloudwatch",
        region_name="us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id="fake",
        aws_secret_access_key="fake",
    )
    assert client.meta.service_model.resolved_protocol == protocol
    return client


@pytest.fixture(params=PROTOCOLS)
def client(request: pytest.FixtureRequest, fake_cloud: FakeCloud) -> Any:
    return cloudwatch(fake_cloud, request.param)


def by_instance(instance: str) -> list[dict[str, str]]:
    return [{"Name": "InstanceId", "Value": instance}]


def query(identifier: str, namespace: str, name: str, dimensions: list[dict[str, str]]) -> dict[str, Any]:
    metric = {"Namespace": namespace, "MetricName": name, "Dimensions": dimensions}
    return {"Id": identifier, "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Average"}}


def test_running_instance_has_metrics(fake_cloud: FakeCloud, client: Any) -> None:
    [instance] = fake_cloud.launch(Monitoring={"Enabled": True})
    fake_cloud.advance(1800)
    now = fake_cloud.now()
    response = client.get_metric_data(
        MetricDataQueries=[
            query("cpu", "AWS/EC2", "CPUUtilization", by_instance(instance)),
            query("mem", "CWAgent", "mem_used_percent", by_instance(instance)),
            query("disk", "CWAgent", "disk_used_percent", by_instance(instance)),
            query("none", "CWAgent", "mem_used_percent", by_instance("i-12345678")),
        ],
        StartTime=now - timedelta(hours=1),
        EndTime=now,
    )
    results = {result["Id"]: result for result in response["MetricDataResults"]}
    assert list(results) == ["cpu", "mem", "disk", "none"]
    for name in ("cpu", "mem", "disk"):
        result = results[name]
        assert len(result["Values"]) == len(result["Timestamps"]) >= 25
        assert all(isinstance(value, float) and 0 <= value <= 100 for value in result["Values"])
        assert result["Timestamps"] == sorted(result["Timestamps"], reverse=True), "newest first"
        assert result["StatusCode"] == "Complete"
    assert results["none"]["Values"] == []
    assert results["none"]["StatusCode"] == "Complete"


def test_put_metrics_have_statistics(fake_cloud: FakeCloud, client: Any) -> None:
    now = fake_cloud.now().replace(second=0, microsecond=0)
    for value in (2.0, 4.0, 9.0):
        client.put_metric_data(
            Namespace="Mine",
            MetricData=[
                {"MetricName": "load", "Timestamp": now - timedelta(minutes=2), "Value": value, "Unit": "Count"}
            ],
        )
    client.put_metric_data(
        Namespace="Mine",
        MetricData=[
            {
                "MetricName": "load",
                "Timestamp": now - timedelta(minutes=1),
                "StatisticValues": {"SampleCount": 2, "Sum": 10, "Minimum": 4, "Maximum": 6},
                "Unit": "Count",
            },
            {"MetricName": "other", "Values": [1.0, 5.0], "Counts": [98.0, 2.0]},
        ],
    )
    response = client.get_metric_statistics(
        Namespace="Mine",
        MetricName="load",
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=1),
        Period=60,
        Statistics=["Average", "Sum", "Minimum", "Maximum", "SampleCount"],
    )
    points = sorted(response["Datapoints"], key=lambda point: point["Timestamp"])
    numbers = [[p["Average"], p["Sum"], p["Minimum"], p["Maximum"], p["SampleCount"]] for p in points]
    assert numbers == [[5.0, 15.0, 2.0, 9.0, 3.0], [5.0, 10.0, 4.0, 6.0, 2.0]]
    assert points[0]["Timestamp"] == now - timedelta(minutes=2)
    assert points[0]["Unit"] == "Count"
    response = client.get_metric_statistics(
        Namespace="Mine",
        MetricName="other",
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=5),
        Period=300,
        ExtendedStatistics=["p50", "p99"],
    )
    assert [point["ExtendedStatistics"] for point in response["Datapoints"]] == [{"p50": 1.0, "p99": 5.0}]


def test_large_bodies_are_compressed(fake_cloud: FakeCloud, client: Any) -> None:
    data = [{"MetricName": f"metric-{number}", "Value": float(number)} for number in range(600)]
    client.put_metric_data(Namespace="Many", MetricData=data)
    pages = list(client.get_paginator("list_metrics").paginate(Namespace="Many"))
    assert [len(page["Metrics"]) for page in pages] == [500, 100]


def test_data_points_are_unordered(fake_cloud: FakeCloud, client: Any) -> None:
    [instance] = fake_cloud.launch(Monitoring={"Enabled": True})
    fake_cloud.advance(3600)
    now = fake_cloud.now()
    response = client.get_metric_statistics(
        Namespace="AWS/EC2",
        MetricName="CPUUtilization",
        Dimensions=by_instance(instance),
        StartTime=now - timedelta(hours=1),
        EndTime=now,
        Period=60,
        Statistics=["Average"],
    )
    moments = [point["Timestamp"] for point in response["Datapoints"]]
    assert len(moments) > 50
    assert moments != sorted(moments)


def test_data_points_are_paged_on_request(fake_cloud: FakeCloud, client: Any) -> None:
    [instance] = fake_cloud.launch(Monitoring={"Enabled": True})
    fake_cloud.advance(1800)
    now = fake_cloud.now()
    request = {
        "MetricDataQueries": [
            query("cpu", "AWS/EC2", "CPUUtilization", by_instance(instance)),
            query("mem", "CWAgent", "mem_used_percent", by_instance(instance)),
        ],
        "StartTime": now - timedelta(hours=1),
        "EndTime": now,
    }
    whole = {result["Id"]: result["Values"] for result in client.get_metric_data(**request)["MetricDataResults"]}
    parts: dict[str, list[float]] = {}
    pages = client.get_paginator("get_metric_data").paginate(**request, MaxDatapoints=7)
    for page in pages:
        for result in page["MetricDataResults"]:
            parts.setdefault(result["Id"], []).extend(result["Values"])
    assert parts == whole


@pytest.mark.parametrize(
    ("operation", "parameters", "error"),
    [
        ("put_metric_data", {"Namespace": "AWS/EC2", "MetricData": [{"MetricName": "x", "Value": 1.0}]}, "Value"),
        ("put_metric_data", {"Namespace": "A", "MetricData": [{"MetricName": "x"}]}, "Missing"),
        (
            "put_metric_data",
            {"Namespace": "A", "MetricData": [{"MetricName": "x", "Value": 1.0, "Values": [1.0]}]},
            "Combination",
        ),
        (
            "put_metric_data",
            {"Namespace": "A", "MetricData": [{"MetricName": "x", "Value": 1.0, "Timestamp": datetime(2001, 1, 1)}]},
            "Value",
        ),
        (
            "get_metric_statistics",
            {
                "Namespace": "A",
                "MetricName": "x",
                "StartTime": datetime(2026, 1, 1, tzinfo=UTC),
                "EndTime": datetime(2026, 1, 3, tzinfo=UTC),
                "Period": 60,
                "Statistics": ["Average"],
            },
            "Combination",
        ),
        ("get_metric_data", {"MetricDataQueries": [], "StartTime": 0, "EndTime": 60, "NextToken": "x"}, "Missing"),
    ],
)
def test_errors_are_typed(client: Any, operation: str, parameters: dict[str, Any], error: str) -> None:
    code, exception = {
        "Value": ("InvalidParameterValue", "InvalidParameterValueException"),
        "Missing": ("MissingParameter", "MissingRequiredParameterException"),
        "Combination": ("InvalidParameterCombination", "InvalidParameterCombinationException"),
    }[error]
    with pytest.raises(getattr(client.exceptions, exception)) as refused:
        getattr(client, operation)(**parameters)
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert refused.value.response["ResponseMetadata"]["RequestId"]


def test_window_that_ends_before_it_starts_is_refused(client: Any) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    metric = {"Namespace": "A", "MetricName": "x"}
    query = {"Id": "m", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
    for end in (start, start - timedelta(hours=1)):
        window = {"StartTime": start, "EndTime": end}
        with pytest.raises(ClientError, match=r"InvalidParameterValue.*StartTime must be less than"):
            client.get_metric_statistics(**metric, **window, Period=60, Statistics=["Sum"])
        with pytest.raises(ClientError, match=r"ValidationError.*StartTime must be less than"):
            client.get_metric_data(MetricDataQueries=[query], **window)


def test_unknown_operation_is_refused_in_the_protocol(client: Any) -> None:
    with pytest.raises(ClientError, match="ListDashboards"):
        client.list_dashboards()


def test_metric_can_be_set_by_the_admin_api(fake_cloud: FakeCloud, client: Any) -> None:
    [instance] = fake_cloud.launch(Monitoring={"Enabled": True})
    fake_cloud.advance(600)
    now = fake_cloud.now()
    fake_cloud.admin(
        "POST",
        "console/metric",
        {
            "region": "us-east-1",
            "namespace": "AWS/EC2",
            "name": "CPUUtilization",
            "dimensions": {"InstanceId": instance},
            "value": 99.5,
        },
    )
    response = client.get_metric_data(
        MetricDataQueries=[query("cpu", "AWS/EC2", "CPUUtilization", by_instance(instance))],
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=1),
    )
    assert response["MetricDataResults"][0]["Values"][0] == 99.5


def test_arithmetic_over_ids_is_evaluated(fake_cloud: FakeCloud) -> None:
    cloudwatch = fake_cloud.client("cloudwatch")
    now = fake_cloud.now()
    for name, value in (("errors", 3.0), ("calls", 12.0)):
        cloudwatch.put_metric_data(Namespace="Mine", MetricData=[{"MetricName": name, "Value": value}])

    def metric(name: str) -> dict[str, Any]:
        stat = {"Metric": {"Namespace": "Mine", "MetricName": name}, "Period": 60, "Stat": "Sum"}
        return {"Id": name, "MetricStat": stat, "ReturnData": False}

    def evaluate(expression: str, **options: Any) -> list[dict[str, Any]]:
        queries = [metric("errors"), metric("calls"), {"Id": "e1", "Expression": expression, **options}]
        window = {"StartTime": now - timedelta(minutes=3), "EndTime": now + timedelta(minutes=2)}
        return list(cloudwatch.get_metric_data(MetricDataQueries=queries, **window)["MetricDataResults"])

    (rate,) = evaluate("errors / calls * 100", Label="error rate")
    assert (rate["Id"], rate["Label"], rate["Values"]) == ("e1", "error rate", [25.0])
    (total,) = evaluate("SUM(METRICS())")
    assert total["Values"] == [15.0]
    (filled,) = evaluate("FILL(errors, 0)")
    assert sorted(set(filled["Values"])) == [0.0, 3.0]
    assert [part["Label"] for part in evaluate("METRICS() * 2", Label="twice")] == ["twice errors", "twice calls"]
    for expression in ("errors +", "unknown", "RATE(errors)", "SUM(errors)", "e1"):
        with pytest.raises(ClientError) as refusal:
            evaluate(expression)
        assert refusal.value.response["Error"]["Code"] == "ValidationError"
        assert "'e1'" in refusal.value.response["Error"]["Message"]


def test_search_and_insights_select_metrics(fake_cloud: FakeCloud) -> None:
    cloudwatch = fake_cloud.client("cloudwatch")
    now = fake_cloud.now()
    for host, value in (("blue", 3.0), ("green", 5.0)):
        dimensions = [{"Name": "Host", "Value": host}]
        data = [{"MetricName": "Load", "Dimensions": dimensions, "Value": value}]
        entity = {"KeyAttributes": {"Type": "Service", "Name": host}}
        cloudwatch.put_metric_data(Namespace="Mine", EntityMetricData=[{"Entity": entity, "MetricData": data}])
    window = {"StartTime": now - timedelta(minutes=3), "EndTime": now + timedelta(minutes=2)}

    def evaluate(expression: str, **options: Any) -> dict[str, list[float]]:
        queries = [{"Id": "e1", "Expression": expression, "Period": 60, **options}]
        results = cloudwatch.get_metric_data(MetricDataQueries=queries, **window)["MetricDataResults"]
        return {str(result["Label"]): list(result["Values"]) for result in results}

    assert evaluate("SEARCH('{Mine,Host} MetricName=\"Load\"', 'Sum')") == {
        "e1 blue Load": [3.0],
        "e1 green Load": [5.0],
    }
    assert evaluate("SUM(SEARCH('{Mine,Host} blue', 'Sum', 60))") == {"e1": [3.0]}
    assert evaluate('SELECT AVG(Load) FROM SCHEMA("Mine", Host)') == {"e1": [4.0]}
    grouped = "SELECT MAX(Load) FROM Mine WHERE Host != 'x' GROUP BY Host ORDER BY MAX() DESC LIMIT 1"
    assert evaluate(grouped, Label="top") == {"top green": [5.0]}
    swapped = {"StartTime": window["EndTime"], "EndTime": window["StartTime"]}
    queries = [{"Id": "e1", "Expression": grouped, "Period": 60}]
    with pytest.raises(ClientError) as refusal:
        cloudwatch.get_metric_data(MetricDataQueries=queries, **swapped)
    assert refusal.value.response["Error"]["Code"] == "ValidationError"
