"""STS and accounts of the fake cloud, called by boto3."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from conftest import AdminError, FakeCloud
from lcm import testing

OTHER = {"id": "999999999999", "access_key": "AKIAOTHER"}


def ids(response: dict[str, Any]) -> list[str]:
    return [instance["InstanceId"] for reservation in response["Reservations"] for instance in reservation["Instances"]]


def test_caller_identity_is_the_account_of_the_key(fake_cloud: FakeCloud) -> None:
    fake_cloud.admin("POST", "accounts", OTHER)
    for key, account in [("fake", "123456789012"), (OTHER["access_key"], OTHER["id"])]:
        identity = fake_cloud.client("sts", access_key=key).get_caller_identity()
        assert identity["Account"] == account
        assert identity["Arn"] == f"arn:aws:iam::{account}:user/fake"
        assert identity["UserId"].startswith("AIDA")
    assert [account["id"] for account in fake_cloud.admin("GET", "accounts")] == ["123456789012", OTHER["id"]]


def test_accounts_see_their_own_instances_only(fake_cloud: FakeCloud) -> None:
    fake_cloud.admin("POST", "accounts", OTHER)
    [mine] = fake_cloud.launch()
    other = fake_cloud.client("ec2", access_key=OTHER["access_key"])
    launched = other.run_instances(ImageId=fake_cloud.image(), MinCount=1, MaxCount=1)
    assert launched["OwnerId"] == OTHER["id"]
    [theirs] = [instance["InstanceId"] for instance in launched["Instances"]]
    assert ids(other.describe_instances()) == [theirs]
    assert ids(fake_cloud.client("ec2").describe_instances()) == [mine]
    with pytest.raises(ClientError) as refused:
        other.describe_instances(InstanceIds=[mine])
    assert refused.value.response["Error"]["Code"] == "InvalidInstanceID.NotFound"


def test_newest_public_image_may_belong_to_another_account(fake_cloud: FakeCloud) -> None:
    image = {"region": "us-east-1", "id": "ami-0123456789abcdef0", "name": "cisco-cml2.9.9", "owner": OTHER["id"]}
    fake_cloud.admin("POST", "console/image", {**image, "sharing": "public"})
    ec2 = fake_cloud.client("ec2")
    named = [{"Name": "name", "Values": ["cisco-cml2.9*"]}]
    newest = max(ec2.describe_images(Filters=named)["Images"], key=lambda image: image["CreationDate"])
    assert (newest["ImageId"], newest["OwnerId"], newest["Public"]) == (image["id"], OTHER["id"], True)
    trusted = ec2.describe_images(Filters=named, Owners=["self", "210987654321"])["Images"]
    assert image["id"] not in [image["ImageId"] for image in trusted]


def test_expired_credentials_have_the_code_of_each_service(fake_cloud: FakeCloud) -> None:
    fake_cloud.fault({"kind": "credentials", "problem": "expired"})
    for call, code in [
        (fake_cloud.client("ec2").describe_instances, "RequestExpired"),
        (fake_cloud.client("sts").get_caller_identity, "ExpiredToken"),
    ]:
        with pytest.raises(ClientError) as refused:
            call()
        assert refused.value.response["Error"]["Code"] == code


def test_invalid_accounts_are_rejected(fake_cloud: FakeCloud) -> None:
    with pytest.raises(AdminError, match="invalid account id '12': expected 12 digits") as refused:
        fake_cloud.admin("POST", "accounts", {"id": "12", "access_key": "KEY"})
    assert refused.value.status == 422


def test_python_cloud_has_accounts() -> None:
    with testing.FakeCloud() as cloud:
        environment = cloud.add_account(**OTHER)
        theirs = cloud.run(account=OTHER["id"])
        cloud.add_image("ami-0123456789abcdef0", "cisco-cml2.9.9", owner=OTHER["id"], sharing="public")
        assert cloud.run().image_id != "ami-0123456789abcdef0"
        ec2 = boto3.client(
            "ec2",
            region_name="us-east-1",
            endpoint_url=cloud.env["AWS_ENDPOINT_URL"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )
        assert ids(ec2.describe_instances()) == [theirs.id]
        subnet, *_ = ec2.describe_subnets()["Subnets"]
        assert subnet["SubnetId"] in environment["AWS_REGION_CONFIGS"]
