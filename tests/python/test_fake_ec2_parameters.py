"""Every parameter and filter of the served EC2 actions, as botocore's model of the API names them."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.model import ListShape, ServiceModel, Shape, StructureShape
from conftest import ROOT, AdminError, FakeCloud

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


def post(fake_cloud: FakeCloud, parameters: dict[str, str]) -> ElementTree.Element:
    """Send a request, and return the document of its response."""
    body = urllib.parse.urlencode({"Version": "2016-11-15", **parameters})
    request = AWSRequest("POST", fake_cloud.url + "/", data=body)
    SigV4Auth(Credentials("fake", "fake"), "ec2", "us-east-1").add_auth(request)
    raw = urllib.request.Request(fake_cloud.url + "/", body.encode(), dict(request.prepare().headers.items()))
    with urllib.request.urlopen(raw, timeout=60) as response:
        return ElementTree.fromstring(response.read())


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


def paths(action: str) -> list[tuple[str, list[str]]]:
    """Return the filters of an action that read elements, with the paths of these elements."""
    lines = (ROOT / "fake-cloud/src/ec2/filters.txt").read_text().splitlines()
    start = lines.index(action) + 1
    block = list(takewhile(lambda line: line.startswith("  "), lines[start:]))
    split = [line.split() for line in block]
    return [(name, found) for name, *found in split if found != ["-"]]


def texts(node: Any, path: list[str]) -> list[str]:
    """Return the texts of all elements at a path."""
    nodes = [node]
    for name in path:
        nodes = [child for one in nodes for child in one if child.tag.rpartition("}")[2] == name]
    return [one.text or "" for one in nodes]


def test_filters_of_instance_types_select_by_every_value(fake_cloud: FakeCloud) -> None:
    """Each filter finds exactly the types whose descriptions have the value, and is of a property that types have."""
    document = post(fake_cloud, {"Action": "DescribeInstanceTypes"})
    items = [one for one in document.iter() if one.tag.rpartition("}")[2] == "item" and texts(one, ["instanceType"])]
    assert len(items) > 1000
    checked = 0
    for name, found in paths("DescribeInstanceTypes"):
        [path] = found
        having = {texts(one, ["instanceType"])[0]: set(texts(one, path.split("/"))) for one in items}
        values = sorted(set().union(*having.values()))
        assert values, name
        for value in (values[0], values[-1]):
            filters = {"Filter.1.Name": name, "Filter.1.Value.1": value}
            answer = post(fake_cloud, {"Action": "DescribeInstanceTypes", **filters})
            selected = {text for one in answer.iter() for text in texts(one, ["instanceType"])}
            assert selected == {kind for kind, all_values in having.items() if value in all_values}, (name, value)
            checked += 1
    assert checked > 100


def test_spot_requests_are_found_by_their_volumes_and_interfaces(fake_cloud: FakeCloud) -> None:
    market = {"MarketType": "spot"}
    volume = {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 77, "VolumeType": "gp2", "DeleteOnTermination": False}}
    interface = {"DeviceIndex": 0, "Description": "first", "DeleteOnTermination": True}
    fake_cloud.launch(InstanceMarketOptions=market, BlockDeviceMappings=[volume], NetworkInterfaces=[interface])
    fake_cloud.launch(InstanceMarketOptions=market)
    ec2 = fake_cloud.client("ec2")
    for name, value, count in [
        ("launch.block-device-mapping.device-name", "/dev/sdb", 1),
        ("launch.block-device-mapping.volume-size", "77", 1),
        ("launch.block-device-mapping.volume-size", "64", 2),
        ("launch.block-device-mapping.volume-type", "gp2", 1),
        ("launch.block-device-mapping.delete-on-termination", "false", 1),
        ("network-interface.description", "first", 1),
        ("network-interface.device-index", "0", 1),
        ("network-interface.delete-on-termination", "false", 0),
    ]:
        filters = [{"Name": name, "Values": [value]}]
        assert len(ec2.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]) == count, name


def test_volume_comes_from_the_snapshot_of_an_image(fake_cloud: FakeCloud) -> None:
    ec2 = fake_cloud.client("ec2")
    [image] = ec2.describe_images(ImageIds=[fake_cloud.image()])["Images"]
    snapshot = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    data = {"DeviceName": "/dev/sdb", "Ebs": {"SnapshotId": snapshot}}
    [instance] = fake_cloud.launch(BlockDeviceMappings=[data])
    of_instance = [{"Name": "attachment.instance-id", "Values": [instance]}]
    volumes = ec2.describe_volumes(Filters=of_instance)["Volumes"]
    assert [one["Size"] for one in volumes if one["SnapshotId"] == snapshot] == [64]
    assert ec2.create_volume(AvailabilityZone="us-east-1a", SnapshotId=snapshot)["Size"] == 64
    for unknown, code in [("snap-0123456789abcdef0", "InvalidSnapshot.NotFound"), ("x", "InvalidSnapshotID.Malformed")]:
        calls: list[tuple[Any, dict[str, Any]]] = [
            (fake_cloud.launch, {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"SnapshotId": unknown}}]}),
            (ec2.create_volume, {"AvailabilityZone": "us-east-1a", "SnapshotId": unknown}),
        ]
        for call, arguments in calls:
            with pytest.raises(ClientError) as raised:
                call(**arguments)
            assert raised.value.response["Error"]["Code"] == code


def test_launches_and_descriptions_know_the_same_instance_types(fake_cloud: FakeCloud) -> None:
    ec2 = fake_cloud.client("ec2")
    known = ["t2.micro", "t3.nano", "m1.small", "m5.large", "c5.18xlarge", "z1d.metal"]
    described = ec2.describe_instance_types(InstanceTypes=known)["InstanceTypes"]
    assert sorted(one["InstanceType"] for one in described) == sorted(known)
    for kind in known:
        fake_cloud.launch(InstanceType=kind)
    [metal] = [one for one in described if one["InstanceType"] == "z1d.metal"]
    assert metal["InstanceStorageInfo"]["Disks"] == [{"SizeInGB": 900, "Count": 2, "Type": "ssd"}]
    with pytest.raises(ClientError, match=re.escape("Did you mean 'm5.large'?")) as raised:
        fake_cloud.launch(InstanceType="m5.lagre")
    assert raised.value.response["Error"]["Code"] == "InvalidParameterValue"
    with pytest.raises(ClientError) as raised:
        ec2.describe_instance_types(InstanceTypes=["m5.lagre"])
    assert raised.value.response["Error"]["Code"] == "InvalidInstanceType"


def test_capacity_of_an_unknown_type_or_zone_is_refused(fake_cloud: FakeCloud) -> None:
    for more, hint in [
        ({"instance_type": "m5zn.metl"}, "Did you mean 'm5zn.metal'?"),
        ({"availability_zone": "us-east-1d"}, "accepted: us-east-1a, us-east-1b, us-east-1c"),
    ]:
        with pytest.raises(AdminError, match=re.escape(hint)):
            fake_cloud.admin("POST", "console/capacity", {"region": "us-east-1", "instances": 0, **more})
