"""Every parameter and filter of the served EC2 actions, as botocore's model of the API names them."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.model import ListShape, ServiceModel, Shape, StructureShape
from conftest import ROOT, FakeCloud

TABLE = ROOT / "fake-cloud/src/ec2/parameters.txt"


@cache
def model() -> ServiceModel:
    return ServiceModel(
        botocore.session.get_session().get_component("data_loader").load_service_model("ec2", "service-2")
    )


def table() -> dict[str, dict[str, str]]:
    """Return the treatment of each parameter by action: empty, `= values` or `! code`."""
    actions: dict[str, dict[str, str]] = {}
    action = ""
    for line in TABLE.read_text().splitlines():
        if not line.startswith("  "):
            action = line
            actions[action] = {}
            continue
        name, _, treatment = line.strip().partition(" ")
        actions[action][name] = treatment
    return actions


def members(shape: StructureShape) -> dict[str, Any]:
    """Return the members of a shape. The stubs of botocore do not type cached properties."""
    found: Any = shape.members
    return dict(found)


def element(shape: ListShape) -> Shape:
    found: Any = shape.member
    assert isinstance(found, Shape)
    return found


def input_shape(action: str) -> Shape:
    found: Any = model().operation_model(action).input_shape
    assert isinstance(found, Shape)
    return found


def parameters(shape: Shape, name: str = "", outer: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names that the EC2 protocol gives to the members of a shape, with `N` for numbers."""
    if shape.name in outer:
        return
    if isinstance(shape, StructureShape):
        for member_name, member in members(shape).items():
            given = member.serialization.get("queryName") or member.serialization.get("name") or member_name
            wire = given[0].upper() + given[1:]
            yield from parameters(member, f"{name}.{wire}" if name else wire, (*outer, shape.name))
    elif isinstance(shape, ListShape):
        yield from parameters(element(shape), f"{name}.N", (*outer, shape.name))
    else:
        yield name


def documented_filters(action: str) -> list[str]:
    shape = input_shape(action)
    assert isinstance(shape, StructureShape)
    filters = members(shape).get("Filters")
    documentation = filters.documentation if filters else ""
    names = re.findall(r"<li> <p>\s*<code>([^<]+)</code>(.*?)</li>", documentation, re.DOTALL)
    # Severities of a scan are values in a list of their own, and `tag:<key>` stands for any key.
    severities = {"informational", "low", "medium", "high", "critical"}
    return [name.replace("&lt;key&gt;", "key") for name, _ in names if name not in severities]


def send(fake_cloud: FakeCloud, parameters: dict[str, str], how: str = "body") -> tuple[int, str]:
    """Send a raw request, and return its status and error code."""
    query = urllib.parse.urlencode({"Version": "2016-11-15", **parameters})
    url, body = (fake_cloud.url + "/", query) if how == "body" else (f"{fake_cloud.url}/?{query}", "")
    request = AWSRequest("GET" if how in ("query", "presigned") else "POST", url, data=body or None)
    auth = SigV4QueryAuth if how == "presigned" else SigV4Auth
    auth(Credentials("fake", "fake"), "ec2", "us-east-1").add_auth(request)
    prepared = request.prepare()
    raw = urllib.request.Request(
        prepared.url, body.encode() or None, dict(prepared.headers.items()), method=request.method
    )
    try:
        with urllib.request.urlopen(raw, timeout=30) as response:
            return response.status, ""
    except urllib.error.HTTPError as error:
        found = re.search("<Code>(.*?)</Code>", error.read().decode())
        return error.code, found[1] if found else "no code"


@pytest.mark.parametrize("how", ["body", "query", "query-post", "presigned"])
def test_parameters_are_read_from_body_and_url_alike(fake_cloud: FakeCloud, how: str) -> None:
    image = fake_cloud.image()
    launch = {"Action": "RunInstances", "ImageId": image, "InstanceType": "m5.large", "MinCount": "1", "MaxCount": "1"}
    assert send(fake_cloud, {**launch, "TagSpecification.1.ResourceType": "banana"}, how)[1] == "InvalidParameterValue"
    assert send(fake_cloud, launch, how) == (200, "")
    [reservation] = fake_cloud.client("ec2").describe_instances()["Reservations"]
    assert reservation["Instances"][0]["ImageId"] == image
    [logged] = [one for one in fake_cloud.requests(operation="RunInstances") if one["outcome"]["status"] == 200]
    assert "X-Amz" not in str(logged["parameters"])


@pytest.mark.parametrize("action", sorted(table()))
def test_table_has_every_parameter_of_the_model(action: str) -> None:
    assert set(table()[action]) == set(parameters(input_shape(action)))


def test_every_served_action_is_in_the_table() -> None:
    source = (ROOT / "fake-cloud/src/ec2/mod.rs").read_text()
    assert set(re.findall(r'^        "(\w+)" => ', source, re.MULTILINE)) == set(table())


@pytest.mark.parametrize("action", sorted(table()))
def test_no_parameter_is_dropped(fake_cloud: FakeCloud, action: str) -> None:
    """A refused parameter has its code, one of limited values refuses others, and no known one is unknown."""
    assert send(fake_cloud, {"Action": action, "Banana": "1"})[1] == "UnknownParameter"
    for name, treatment in table()[action].items():
        sent = re.sub(r"\bN\b", "1", name)
        _, code = send(fake_cloud, {"Action": action, sent: "banana"})
        if treatment.startswith("! "):
            assert code == treatment[2:], name
        elif treatment.startswith("= "):
            assert code == "UnsupportedOperation", name
            for value in treatment[2:].split():
                assert send(fake_cloud, {"Action": action, sent: value})[1] != "UnsupportedOperation", (name, value)
        else:
            assert code != "UnknownParameter", name


@pytest.mark.parametrize("action", [action for action in sorted(table()) if documented_filters(action)])
def test_every_documented_filter_is_known(fake_cloud: FakeCloud, action: str) -> None:
    fake_cloud.launch()
    required = {"LaunchTemplateVersion.1": "$Latest"} if action == "DescribeLaunchTemplateVersions" else {}
    for name in documented_filters(action):
        filters: dict[str, Any] = {"Filter.1.Name": name, "Filter.1.Value.1": "banana"}
        assert send(fake_cloud, {"Action": action, **required, **filters}) == (200, ""), name
    unknown = {"Filter.1.Name": "banana", "Filter.1.Value.1": "x"}
    assert send(fake_cloud, {"Action": action, **required, **unknown}) == (400, "InvalidParameterValue")
