"""The fake EC2, called by boto3."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import partial
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, WaiterError
from conftest import AdminError, FakeCloud


def code_of(call: Callable[[], Any]) -> tuple[str, int]:
    """Return the error code and HTTP status of a failed call."""
    with pytest.raises(ClientError) as refused:
        call()
    response = refused.value.response
    assert response["ResponseMetadata"]["RequestId"], "every error has a request id"
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def describe(ec2: Any, *ids: str, **options: Any) -> list[dict[str, Any]]:
    if ids:
        options["InstanceIds"] = list(ids)
    reservations = ec2.describe_instances(**options)["Reservations"]
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def state(ec2: Any, instance: str) -> str:
    return str(describe(ec2, instance)[0]["State"]["Name"])


class TestLaunch:
    def test_default_image_is_found_and_launched(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        images = ec2.describe_images(Filters=[{"Name": "name", "Values": ["*cml2.9*"]}])["Images"]
        assert len(images) == 2
        assert len({image["CreationDate"] for image in images}) == 2
        launched = ec2.run_instances(ImageId=images[0]["ImageId"], InstanceType="m5zn.metal", MinCount=1, MaxCount=1)
        assert launched["Instances"][0]["State"] == {"Code": 0, "Name": "pending"}

    def test_described_instance_matches_the_request(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        subnet = ec2.describe_subnets()["Subnets"][0]
        ec2.create_key_pair(KeyName="ops")
        [instance] = fake_cloud.launch(
            SubnetId=subnet["SubnetId"],
            KeyName="ops",
            ClientToken="token-1",
            UserData="#!/bin/sh\necho hush",
            Monitoring={"Enabled": True},
            IamInstanceProfile={"Name": "cml"},
            TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "name", "Value": 'a <b> & "c" ä'}]}],
            BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3"}}],
            MetadataOptions={"HttpTokens": "required"},
        )
        [described] = describe(ec2, instance)
        assert described["State"] == {"Code": 16, "Name": "running"}
        assert described["SubnetId"] == subnet["SubnetId"]
        assert described["VpcId"] == subnet["VpcId"]
        assert described["KeyName"] == "ops"
        assert described["ClientToken"] == "token-1"
        assert described["Monitoring"]["State"] == "enabled"
        assert described["IamInstanceProfile"]["Arn"].endswith(":instance-profile/cml")
        assert described["Tags"] == [{"Key": "name", "Value": 'a <b> & "c" ä'}]
        assert ipaddress.ip_address(described["PublicIpAddress"]).is_loopback
        assert ipaddress.ip_address(described["PrivateIpAddress"]) in ipaddress.ip_network(subnet["CidrBlock"])

    def test_same_token_launches_once(self, fake_cloud: FakeCloud) -> None:
        ec2, image = fake_cloud.client("ec2"), fake_cloud.image()

        def run(**options: Any) -> Any:
            return ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, ClientToken="once", **options)

        first, again = run(InstanceType="m5.large"), run(InstanceType="m5.large")
        assert first["ReservationId"] == again["ReservationId"]
        assert first["Instances"][0]["InstanceId"] == again["Instances"][0]["InstanceId"]
        assert code_of(lambda: run(InstanceType="c5.large")) == ("IdempotentParameterMismatch", 400)
        ec2.terminate_instances(InstanceIds=[first["Instances"][0]["InstanceId"]])
        assert code_of(lambda: run(InstanceType="m5.large")) == ("IdempotentInstanceTerminated", 400)

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ({"ImageId": "ami-12345678"}, "InvalidAMIID.NotFound"),
            ({"ImageId": "banana"}, "InvalidAMIID.Malformed"),
            ({"SubnetId": "subnet-12345678"}, "InvalidSubnetID.NotFound"),
            ({"SecurityGroupIds": ["sg-12345678"]}, "InvalidGroup.NotFound"),
            ({"MinCount": 2}, "InvalidParameterValue"),
            ({"InstanceType": "enormous"}, "InvalidParameterValue"),
            (
                {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:x", "Value": ""}]}]},
                "InvalidParameterValue",
            ),
        ],
    )
    def test_invalid_launch_is_refused(self, fake_cloud: FakeCloud, options: dict[str, Any], code: str) -> None:
        ec2 = fake_cloud.client("ec2")
        request = {"ImageId": fake_cloud.image(), "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1, **options}
        assert code_of(lambda: ec2.run_instances(**request)) == (code, 400)
        assert describe(ec2) == []

    def test_dry_run_launches_nothing(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        image = fake_cloud.image()
        assert code_of(lambda: ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, DryRun=True)) == (
            "DryRunOperation",
            412,
        )
        [instance] = fake_cloud.launch()
        assert code_of(lambda: ec2.terminate_instances(InstanceIds=[instance], DryRun=True))[0] == "DryRunOperation"
        assert state(ec2, instance) == "running"


class TestLifecycle:
    def test_instance_runs_through_its_lifecycle(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch()
        first_address = describe(ec2, instance)[0]["PublicIpAddress"]
        change = ec2.stop_instances(InstanceIds=[instance])["StoppingInstances"][0]
        assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == ("running", "stopping")
        fake_cloud.advance(60)
        stopped = describe(ec2, instance)[0]
        assert stopped["State"] == {"Code": 80, "Name": "stopped"}
        assert "PublicIpAddress" not in stopped
        assert stopped["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
        assert ec2.start_instances(InstanceIds=[instance])["StartingInstances"][0]["CurrentState"]["Name"] == "pending"
        fake_cloud.advance(60)
        assert describe(ec2, instance)[0]["PublicIpAddress"] != first_address
        ec2.reboot_instances(InstanceIds=[instance])
        change = ec2.terminate_instances(InstanceIds=[instance])["TerminatingInstances"][0]
        assert change["CurrentState"] == {"Code": 32, "Name": "shutting-down"}
        fake_cloud.advance(60)
        terminated = describe(ec2, instance)[0]
        assert terminated["State"] == {"Code": 48, "Name": "terminated"}
        assert "PrivateIpAddress" not in terminated
        fake_cloud.advance(3600)
        assert describe(ec2) == []
        assert code_of(lambda: describe(ec2, instance)) == ("InvalidInstanceID.NotFound", 400)

    def test_one_invalid_id_fails_the_whole_call(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [good] = fake_cloud.launch()
        assert code_of(lambda: ec2.terminate_instances(InstanceIds=[good, "i-12345678"])) == (
            "InvalidInstanceID.NotFound",
            400,
        )
        assert code_of(lambda: ec2.stop_instances(InstanceIds=[good, "banana"])) == ("InvalidInstanceID.Malformed", 400)
        assert state(ec2, good) == "running"

    def test_change_in_the_wrong_state_is_refused(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(settle=False)
        assert code_of(lambda: ec2.stop_instances(InstanceIds=[instance])) == ("IncorrectInstanceState", 400)
        ec2.terminate_instances(InstanceIds=[instance])
        assert code_of(lambda: ec2.start_instances(InstanceIds=[instance])) == ("IncorrectInstanceState", 400)

    def test_waiters_return(self, fake_cloud: FakeCloud) -> None:
        # With a faster clock, the hour in which a terminated instance is visible could pass between two polls.
        fake_cloud.admin("POST", "clock", {"pace": "x60"})
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(settle=False)
        quickly = {"Delay": 1, "MaxAttempts": 20}
        ec2.get_waiter("instance_running").wait(InstanceIds=[instance], WaiterConfig=quickly)
        ec2.get_waiter("instance_status_ok").wait(InstanceIds=[instance], WaiterConfig=quickly)
        ec2.terminate_instances(InstanceIds=[instance])
        ec2.get_waiter("instance_terminated").wait(InstanceIds=[instance], WaiterConfig=quickly)
        with pytest.raises(WaiterError):
            ec2.get_waiter("instance_running").wait(InstanceIds=[instance], WaiterConfig=quickly)

    def test_boto3_resources_work(self, fake_cloud: FakeCloud) -> None:
        ec2: Any = boto3.resource(
            "ec2",
            region_name="eu-central-1",
            endpoint_url=fake_cloud.url,
            aws_access_key_id="fake",
            aws_secret_access_key="fake",
        )
        [image, *_] = ec2.images.filter(Filters=[{"Name": "name", "Values": ["*cml2.9*"]}])
        [instance] = ec2.create_instances(ImageId=image.id, InstanceType="m5zn.metal", MinCount=1, MaxCount=1)
        fake_cloud.advance(60)
        instance.create_tags(Tags=[{"Key": "a", "Value": "b"}])
        instance.reload()
        assert instance.state["Name"] == "running"
        assert instance.tags == [{"Key": "a", "Value": "b"}]
        assert instance.private_dns_name.endswith(".eu-central-1.compute.internal")
        running = [{"Name": "instance-state-name", "Values": ["running"]}]
        assert [one.id for one in ec2.instances.filter(Filters=running)] == [instance.id]
        instance.terminate()
        fake_cloud.advance(60)
        instance.reload()
        assert instance.state_transition_reason.startswith("User initiated (")

    def test_status_checks_begin_with_initializing(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(settle=False)
        assert ec2.describe_instance_status()["InstanceStatuses"] == []
        everything = ec2.describe_instance_status(IncludeAllInstances=True)["InstanceStatuses"]
        assert everything[0]["InstanceStatus"]["Status"] == "not-applicable"
        fake_cloud.advance(20)
        [status] = ec2.describe_instance_status(InstanceIds=[instance])["InstanceStatuses"]
        assert status["SystemStatus"] == {
            "Details": [{"Name": "reachability", "Status": "initializing"}],
            "Status": "initializing",
        }
        fake_cloud.advance(120)
        ok = [{"Name": "instance-status.status", "Values": ["ok"]}]
        assert len(ec2.describe_instance_status(Filters=ok)["InstanceStatuses"]) == 1


class TestDescribe:
    def test_filters_select_instances(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        tag = [{"ResourceType": "instance", "Tags": [{"Key": "lcm:worker_id", "Value": "w-1"}]}]
        [tagged] = fake_cloud.launch(TagSpecifications=tag, ClientToken="mine")
        [other] = fake_cloud.launch()
        ec2.stop_instances(InstanceIds=[other])

        def found(name: str, *values: str) -> set[str]:
            filters = [{"Name": name, "Values": list(values)}]
            return {instance["InstanceId"] for instance in describe(ec2, Filters=filters)}

        assert found("tag:lcm:worker_id", "w-*") == {tagged}
        assert found("tag:lcm:worker_id", "w-") == set()
        assert found("tag-key", "lcm:worker_id") == {tagged}
        assert found("client-token", "mine") == {tagged}
        assert found("instance-state-name", "running", "stopping") == {tagged, other}
        assert found("instance-state-code", "64") == {other}
        assert found("instance-id", tagged, "i-unknown") == {tagged}
        both = [{"Name": "instance-state-name", "Values": ["stopping"]}, {"Name": "tag-key", "Values": ["*"]}]
        assert describe(ec2, Filters=both) == []

    def test_unknown_filters_and_too_many_values_are_refused(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        for name, values, code in [
            ("banana", ["x"], "InvalidParameterValue"),
            ("vpc-id", ["x"] * 201, "FilterLimitExceeded"),
        ]:
            filters = [{"Name": name, "Values": values}]
            assert code_of(partial(ec2.describe_instances, Filters=filters)) == (code, 400)

    def test_pages_contain_all_instances(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        launched = fake_cloud.launch(23)
        pages = list(ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5}))
        assert len(pages) == 5
        seen = [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]
        assert seen == launched

    def test_ids_and_pages_exclude_each_other(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch()
        assert code_of(lambda: ec2.describe_instances(InstanceIds=[instance], MaxResults=5)) == (
            "InvalidParameterCombination",
            400,
        )
        assert code_of(lambda: ec2.describe_instances(NextToken="banana")) == ("InvalidNextToken", 400)
        assert code_of(lambda: ec2.describe_instances(MaxResults=4)) == ("InvalidParameterValue", 400)

    def test_all_unknown_ids_are_named(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        with pytest.raises(ClientError, match="The instance IDs 'i-00000001, i-00000002' do not exist"):
            ec2.describe_instances(InstanceIds=["i-00000001", "i-00000002"])

    def test_regions_have_their_own_instances_and_images(self, fake_cloud: FakeCloud) -> None:
        fake_cloud.launch()
        regions = fake_cloud.client("ec2").describe_regions()["Regions"]
        assert len(regions) == 17
        images = set()
        for region in regions:
            ec2 = fake_cloud.client("ec2", region["RegionName"])
            images.add(ec2.describe_images()["Images"][0]["ImageId"])
            assert len(describe(ec2)) == (1 if region["RegionName"] == "us-east-1" else 0)
        assert len(images) == len(regions)

    def test_unknown_region_and_action_have_ec2_errors(self, fake_cloud: FakeCloud) -> None:
        assert code_of(lambda: fake_cloud.client("ec2", "xx-nowhere-1").describe_instances()) == ("AuthFailure", 401)
        assert code_of(lambda: fake_cloud.client("ec2").describe_snapshots()) == ("InvalidAction", 400)

    def test_images_by_id_name_and_owner(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        image = fake_cloud.image()
        [found] = ec2.describe_images(ImageIds=[image])["Images"]
        assert found["State"] == "available"
        assert ec2.describe_images(Owners=["self"])["Images"] == []
        assert len(ec2.describe_images(Owners=[found["OwnerId"]])["Images"]) == 4
        assert code_of(lambda: ec2.describe_images(ImageIds=["ami-12345678"])) == ("InvalidAMIID.NotFound", 400)
        assert code_of(lambda: ec2.describe_images(ImageIds=["x"])) == ("InvalidAMIID.Malformed", 400)


class TestTags:
    def test_tags_are_added_and_removed(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch()
        ec2.create_tags(Resources=[instance], Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
        tags = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [instance]}])["Tags"]
        assert [(tag["Key"], tag["Value"], tag["ResourceType"]) for tag in tags] == [
            ("a", "1", "instance"),
            ("b", "2", "instance"),
        ]
        ec2.delete_tags(Resources=[instance], Tags=[{"Key": "a"}, {"Key": "b", "Value": "other"}])
        assert describe(ec2, instance)[0]["Tags"] == [{"Key": "b", "Value": "2"}]

    def test_tagging_a_missing_instance_is_refused(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        tags = [{"Key": "a", "Value": "1"}]
        for resource, code in [("i-12345678", "InvalidInstanceID.NotFound"), ("nothing", "InvalidID")]:
            assert code_of(partial(ec2.create_tags, Resources=[resource], Tags=tags))[0] == code


class TestConsole:
    def test_console_actions_are_visible_but_not_logged(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch()
        fake_cloud.admin("DELETE", "requests")
        target = {"region": "us-east-1", "instance": instance}
        fake_cloud.admin("POST", "console/tag", {**target, "key": "who", "value": "console"})
        response = fake_cloud.admin("POST", "console/terminate", target)
        assert response == {"instance": instance, "previous": "running", "current": "shutting-down"}
        assert fake_cloud.requests() == []
        assert describe(ec2, instance)[0]["Tags"] == [{"Key": "who", "Value": "console"}]
        with pytest.raises(AdminError, match="IncorrectInstanceState"):
            fake_cloud.admin("POST", "console/stop", target)

    def test_images_subnets_and_groups_can_be_added(self, fake_cloud: FakeCloud) -> None:
        here = {"region": "us-east-1"}
        fake_cloud.admin("POST", "console/image", {**here, "id": "ami-0000000a", "name": "cisco-cml2.10-new"})
        fake_cloud.admin("POST", "console/subnet", {**here, "id": "subnet-0000000a"})
        fake_cloud.admin("POST", "console/security-group", {**here, "id": "sg-0000000a", "name": "cml"})
        ec2 = fake_cloud.client("ec2")
        launched = ec2.run_instances(
            ImageId="ami-0000000a",
            SubnetId="subnet-0000000a",
            SecurityGroupIds=["sg-0000000a"],
            MinCount=1,
            MaxCount=1,
        )
        assert launched["Instances"][0]["SecurityGroups"] == [{"GroupId": "sg-0000000a", "GroupName": "cml"}]
        assert fake_cloud.image() == "ami-0000000a"

    def test_reset_restores_the_scenario(self, fake_cloud: FakeCloud) -> None:
        [instance] = fake_cloud.launch()
        fake_cloud.admin("POST", "reset")
        assert fake_cloud.admin("GET", "state")["regions"]["us-east-1"]["instances"] == []
        assert fake_cloud.launch() == [instance], "the same seed creates the same ids"
