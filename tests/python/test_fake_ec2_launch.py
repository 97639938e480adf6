"""Options of RunInstances in the fake EC2, launch templates, and trouble that the admin API makes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError
from conftest import AdminError, FakeCloud

HERE = {"region": "us-east-1"}


def code_of(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as refused:
        call()
    return str(refused.value.response["Error"]["Code"])


def describe(ec2: Any, instance: str) -> dict[str, Any]:
    return dict(ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0])


def state(ec2: Any, instance: str) -> str:
    return str(describe(ec2, instance)["State"]["Name"])


class TestOptions:
    def test_protection_refuses_stop_and_termination(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [kept] = fake_cloud.launch(DisableApiTermination=True)
        [other] = fake_cloud.launch(Placement={"AvailabilityZone": "us-east-1b"})
        assert code_of(lambda: ec2.terminate_instances(InstanceIds=[kept, other])) == "OperationNotPermitted"
        assert (state(ec2, kept), state(ec2, other)) == ("running", "shutting-down"), "other zones are terminated"
        ec2.modify_instance_attribute(InstanceId=kept, DisableApiTermination={"Value": False})
        ec2.modify_instance_attribute(InstanceId=kept, DisableApiStop={"Value": True})
        assert code_of(lambda: ec2.stop_instances(InstanceIds=[kept])) == "OperationNotPermitted"
        attribute = ec2.describe_instance_attribute(InstanceId=kept, Attribute="disableApiStop")
        assert attribute["DisableApiStop"] == {"Value": True}
        ec2.modify_instance_attribute(InstanceId=kept, DisableApiStop={"Value": False})
        ec2.terminate_instances(InstanceIds=[kept])

    def test_attributes_are_changed_while_stopped(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(UserData="first")
        change = {"InstanceId": instance, "InstanceType": {"Value": "m5.xlarge"}}
        assert code_of(lambda: ec2.modify_instance_attribute(**change)) == "IncorrectInstanceState"
        ec2.stop_instances(InstanceIds=[instance])
        fake_cloud.advance(60)
        ec2.modify_instance_attribute(**change)
        ec2.modify_instance_attribute(InstanceId=instance, UserData={"Value": b"second"})
        data = ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")["UserData"]["Value"]
        assert base64.b64decode(data) == b"second"
        assert describe(ec2, instance)["InstanceType"] == "m5.xlarge"
        assert describe(ec2, instance)["CpuOptions"]["CoreCount"] == 2

    def test_placement_selects_the_zone(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(Placement={"AvailabilityZone": "us-east-1c", "Tenancy": "dedicated"})
        placement = describe(ec2, instance)["Placement"]
        assert (placement["AvailabilityZone"], placement["Tenancy"]) == ("us-east-1c", "dedicated")
        subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        refused: tuple[dict[str, Any], ...] = (
            {"Placement": {"AvailabilityZone": "eu-west-1a"}},
            {"Placement": {"AvailabilityZone": "us-east-1b"}, "SubnetId": subnet},
        )
        for options in refused:
            assert code_of(partial(fake_cloud.launch, **options)) == "InvalidParameterValue"
        group = {"GroupName": "none"}
        assert code_of(lambda: fake_cloud.launch(Placement=group)) == "InvalidPlacementGroup.Unknown"

    def test_interfaces_and_addresses_are_as_requested(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        subnet = ec2.describe_subnets()["Subnets"][0]
        base = subnet["CidrBlock"].rsplit(".", 2)[0]
        primary = {"DeviceIndex": 0, "SubnetId": subnet["SubnetId"], "PrivateIpAddress": f"{base}.9.9"}
        [instance] = fake_cloud.launch(
            NetworkInterfaces=[
                {**primary, "Description": "first", "AssociatePublicIpAddress": False},
                {"DeviceIndex": 1, "SubnetId": subnet["SubnetId"], "Description": "second"},
            ],
        )
        described = describe(ec2, instance)
        assert "PublicIpAddress" not in described
        assert described["PrivateIpAddress"] == f"{base}.9.9"
        assert [one["Description"] for one in described["NetworkInterfaces"]] == ["first", "second"]
        listed = ec2.describe_network_interfaces(Filters=[{"Name": "attachment.instance-id", "Values": [instance]}])
        assert len({one["PrivateIpAddress"] for one in listed["NetworkInterfaces"]}) == 2
        assert code_of(lambda: fake_cloud.launch(PrivateIpAddress=f"{base}.9.9")) == "InvalidIPAddress.InUse"
        assert code_of(lambda: fake_cloud.launch(PrivateIpAddress="192.0.2.1")) == "InvalidParameterValue"
        both = {"SubnetId": subnet["SubnetId"], "NetworkInterfaces": [primary]}
        assert code_of(lambda: fake_cloud.launch(**both)) == "InvalidParameterCombination"

    def test_volumes_are_as_requested(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(
            BlockDeviceMappings=[
                {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}},
                {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 8, "VolumeType": "io1", "Iops": 400}},
                {"DeviceName": "/dev/sdc", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False}},
            ],
            TagSpecifications=[{"ResourceType": "volume", "Tags": [{"Key": "role", "Value": "data"}]}],
        )
        tagged = ec2.describe_volumes(Filters=[{"Name": "tag:role", "Values": ["data"]}])["Volumes"]
        assert [(one["Size"], one["VolumeType"], one["State"]) for one in tagged] == [
            (100, "gp3", "in-use"),
            (8, "io1", "in-use"),
            (9, "gp2", "in-use"),
        ]
        ec2.terminate_instances(InstanceIds=[instance])
        fake_cloud.advance(60)
        [left] = ec2.describe_volumes()["Volumes"]
        assert (left["Size"], left["State"], left["Tags"]) == (9, "available", [{"Key": "role", "Value": "data"}])
        ec2.delete_volume(VolumeId=left["VolumeId"])
        assert ec2.describe_volumes()["Volumes"] == []
        small = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}]
        assert code_of(lambda: fake_cloud.launch(BlockDeviceMappings=small)) == "InvalidBlockDeviceMapping"

    def test_metadata_cpu_and_other_options_are_reported(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(
            MetadataOptions={"HttpTokens": "optional", "HttpPutResponseHopLimit": 5},
            CpuOptions={"CoreCount": 1, "ThreadsPerCore": 1},
            EbsOptimized=True,
            InstanceInitiatedShutdownBehavior="terminate",
            HibernationOptions={"Configured": True},
            BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"Encrypted": True}}],
        )
        described = describe(ec2, instance)
        assert described["MetadataOptions"]["HttpTokens"] == "optional"
        assert described["MetadataOptions"]["HttpPutResponseHopLimit"] == 5
        assert described["CpuOptions"] == {"CoreCount": 1, "ThreadsPerCore": 1}
        assert described["EbsOptimized"]
        assert described["HibernationOptions"] == {"Configured": True}
        ec2.stop_instances(InstanceIds=[instance], Hibernate=True)
        assert describe(ec2, instance)["StateReason"]["Code"] == "Client.UserInitiatedHibernate"
        wanted = {"Configured": True}
        assert code_of(lambda: fake_cloud.launch(HibernationOptions=wanted)) == "UnsupportedHibernationConfiguration"

    def test_missing_key_pairs_and_profiles_are_refused(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        assert code_of(lambda: fake_cloud.launch(KeyName="ops")) == "InvalidKeyPair.NotFound"
        created = ec2.create_key_pair(KeyName="ops", KeyType="ed25519")
        assert created["KeyMaterial"].startswith("-----BEGIN PRIVATE KEY-----")
        [instance] = fake_cloud.launch(KeyName="ops")
        assert describe(ec2, instance)["KeyName"] == "ops"
        assert code_of(lambda: ec2.create_key_pair(KeyName="ops")) == "InvalidKeyPair.Duplicate"
        [public] = ec2.describe_key_pairs(IncludePublicKey=True)["KeyPairs"]
        ec2.import_key_pair(KeyName="same", PublicKeyMaterial=public["PublicKey"].encode())
        ec2.delete_key_pair(KeyName="ops")
        assert [key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]] == ["same"]
        fake_cloud.launch(IamInstanceProfile={"Name": "cml"})
        fake_cloud.admin("POST", "console/instance-profile", {"name": "cml", "exists": False})
        profile = {"Name": "cml"}
        assert code_of(lambda: fake_cloud.launch(IamInstanceProfile=profile)) == "InvalidParameterValue"

    def test_tags_have_the_documented_limits(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch()
        ec2.create_tags(Resources=[instance], Tags=[{"Key": "k" * 127, "Value": "v" * 256}])
        for tag in ({"Key": "k" * 128, "Value": ""}, {"Key": "k", "Value": "v" * 257}):
            assert code_of(partial(ec2.create_tags, Resources=[instance], Tags=[tag])) == "InvalidParameterValue"
        for action in (ec2.start_instances, ec2.stop_instances, ec2.reboot_instances, ec2.terminate_instances):
            with pytest.raises(ClientError, match=r"InvalidParameterCombination.*No instances specified"):
                action(InstanceIds=[])


class TestTemplates:
    def test_template_is_created_changed_and_launched(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        data = {
            "ImageId": fake_cloud.image(),
            "InstanceType": "m5.large",
            "DisableApiTermination": True,
            "MetadataOptions": {"HttpTokens": "optional"},
            "BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 8, "VolumeType": "gp3"}}],
            "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}],
        }
        template = ec2.create_launch_template(LaunchTemplateName="cml", LaunchTemplateData=data)["LaunchTemplate"]
        assert (template["DefaultVersionNumber"], template["LatestVersionNumber"]) == (1, 1)
        named = {"LaunchTemplateName": "cml"}
        added = ec2.create_launch_template_version(
            **named, SourceVersion="1", LaunchTemplateData={"InstanceType": "m5.xlarge"}
        )["LaunchTemplateVersion"]
        assert added["LaunchTemplateData"]["InstanceType"] == "m5.xlarge"
        assert added["LaunchTemplateData"]["BlockDeviceMappings"] == data["BlockDeviceMappings"]
        assert added["LaunchTemplateData"]["TagSpecifications"] == data["TagSpecifications"]

        def launch(version: str, **options: Any) -> dict[str, Any]:
            request = {"LaunchTemplate": {**named, "Version": version}, "MinCount": 1, "MaxCount": 1, **options}
            return dict(ec2.run_instances(**request)["Instances"][0])

        first = launch("$Default")
        tags = {"from": "template"}
        tags |= {"aws:ec2launchtemplate:id": template["LaunchTemplateId"], "aws:ec2launchtemplate:version": "1"}
        assert first["InstanceType"] == "m5.large"
        assert {tag["Key"]: tag["Value"] for tag in first["Tags"]} == tags
        ec2.delete_tags(Resources=[first["InstanceId"]])
        left = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [first["InstanceId"]]}])["Tags"]
        assert "from" not in {tag["Key"] for tag in left}
        assert len(left) == 2
        assert launch("$Latest")["InstanceType"] == "m5.xlarge"
        assert launch("2", InstanceType="c5.large")["InstanceType"] == "c5.large"
        assert launch("1", MetadataOptions={"HttpTokens": "required"})["MetadataOptions"]["HttpTokens"] == "required"
        assert len(launch("1")["BlockDeviceMappings"]) == 2
        ec2.modify_launch_template(**named, DefaultVersion="2")
        versions = ec2.describe_launch_template_versions(**named)["LaunchTemplateVersions"]
        assert [(one["VersionNumber"], one["DefaultVersion"]) for one in versions] == [(2, True), (1, False)]
        deleted = ec2.delete_launch_template_versions(**named, Versions=["1", "2"])
        assert [
            len(deleted[f"{what}DeletedLaunchTemplateVersions"]) for what in ("Successfully", "Unsuccessfully")
        ] == [1, 1]
        ec2.delete_launch_template(**named)
        assert ec2.describe_launch_templates()["LaunchTemplates"] == []
        assert code_of(lambda: launch("1")) == "InvalidLaunchTemplateName.NotFoundException"


class TestNeighbors:
    def test_printed_configuration_can_be_described_and_tagged(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        subnets = ec2.describe_subnets()["Subnets"]
        assert len({subnet["AvailabilityZone"] for subnet in subnets}) == 3
        [vpc] = ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"]
        [group] = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])["SecurityGroups"]
        ids = [subnets[0]["SubnetId"], vpc["VpcId"], group["GroupId"]]
        ec2.create_tags(Resources=ids, Tags=[{"Key": "env", "Value": "test"}])
        filters = [{"Name": "tag:env", "Values": ["te?t"]}]
        assert ec2.describe_vpcs(Filters=filters)["Vpcs"][0]["Tags"] == [{"Key": "env", "Value": "test"}]
        assert len(ec2.describe_tags(Filters=[{"Name": "key", "Values": ["env"]}])["Tags"]) == 3
        zones = ec2.describe_availability_zones()["AvailabilityZones"]
        assert (zones[0]["ZoneName"], zones[0]["ZoneId"]) == ("us-east-1a", "use1-az1")
        [kind] = ec2.describe_instance_types(InstanceTypes=["m5zn.metal"])["InstanceTypes"]
        assert (kind["VCpuInfo"]["DefaultVCpus"], kind["MemoryInfo"]["SizeInMiB"]) == (48, 196608)
        offerings = ec2.describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["m5zn.*"]}]
        )["InstanceTypeOfferings"]
        assert len(offerings) == 21
        attributes = ec2.describe_account_attributes(AttributeNames=["default-vpc"])["AccountAttributes"]
        assert attributes[0]["AttributeValues"] == [{"AttributeValue": vpc["VpcId"]}]

    def test_network_is_created_used_and_deleted(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.200.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.200.1.0/28", AvailabilityZone="us-east-1b")["Subnet"]
        assert subnet["AvailableIpAddressCount"] == 11
        overlapping = {"VpcId": vpc, "CidrBlock": "10.200.1.0/24"}
        assert code_of(lambda: ec2.create_subnet(**overlapping)) == "InvalidSubnet.Conflict"
        group = ec2.create_security_group(GroupName="cml", Description="CML", VpcId=vpc)["GroupId"]
        rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
        again = {"GroupId": group, "IpPermissions": [rule]}
        assert code_of(lambda: ec2.authorize_security_group_ingress(**again)) == "InvalidPermission.Duplicate"
        open_ports = [{"Name": "ip-permission.from-port", "Values": ["443"]}]
        [found] = ec2.describe_security_groups(Filters=open_ports)["SecurityGroups"]
        assert found["IpPermissions"][0]["IpRanges"] == [{"CidrIp": "0.0.0.0/0"}]
        here = {"SubnetId": subnet["SubnetId"], "SecurityGroupIds": [group]}
        launched = fake_cloud.launch(11, **here)
        described = describe(ec2, launched[0])
        assert (described["VpcId"], "PublicIpAddress" in described) == (vpc, False)
        assert code_of(lambda: fake_cloud.launch(**here)) == "InsufficientFreeAddressesInSubnet"
        assert code_of(lambda: fake_cloud.launch(SecurityGroupIds=[group])) == "InvalidParameter"
        assert code_of(lambda: ec2.delete_subnet(SubnetId=subnet["SubnetId"])) == "DependencyViolation"
        ec2.terminate_instances(InstanceIds=launched)
        fake_cloud.advance(60)
        ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[rule])
        ec2.delete_security_group(GroupId=group)
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
        ec2.delete_vpc(VpcId=vpc)
        assert code_of(lambda: ec2.describe_vpcs(VpcIds=[vpc])) == "InvalidVpcID.NotFound"

    def test_addresses_are_allocated_and_released(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        allocated = ec2.allocate_address(Domain="vpc")
        [address] = ec2.describe_addresses(PublicIps=[allocated["PublicIp"]])["Addresses"]
        assert address["AllocationId"] == allocated["AllocationId"]
        ec2.release_address(AllocationId=allocated["AllocationId"])
        assert ec2.describe_addresses()["Addresses"] == []

    def test_opt_in_regions_refuse_requests_until_opted_in(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        everything = ec2.describe_regions(AllRegions=True)["Regions"]
        status = {region["RegionName"]: region["OptInStatus"] for region in everything}
        assert (len(status), status["eu-south-2"], status["us-east-1"]) == (33, "not-opted-in", "opt-in-not-required")
        far = fake_cloud.client("ec2", "eu-south-2")
        assert code_of(far.describe_instances) == "AuthFailure"
        fake_cloud.admin("POST", "console/region", {"region": "eu-south-2", "opt_in_status": "opted-in"})
        assert far.describe_instances()["Reservations"] == []
        assert len(ec2.describe_regions()["Regions"]) == 18

    def test_filters_read_what_is_described(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [first] = fake_cloud.launch(Monitoring={"Enabled": True})
        [second] = fake_cloud.launch(Placement={"Tenancy": "dedicated"})
        described = describe(ec2, first)
        interface = described["NetworkInterfaces"][0]

        def found(name: str, value: str) -> list[str]:
            filters = [{"Name": name, "Values": [value]}]
            reservations = ec2.describe_instances(Filters=filters)["Reservations"]
            return [instance["InstanceId"] for one in reservations for instance in one["Instances"]]

        for name, value, expected in [
            ("monitoring-state", "enabled", [first]),
            ("tenancy", "ded*", [second]),
            ("tenancy", "DEDICATED", []),
            ("network-interface.mac-address", interface["MacAddress"], [first]),
            ("network-interface.addresses.association.public-ip", described["PublicIpAddress"], [first]),
            ("private-dns-name", described["PrivateDnsName"], [first]),
            ("block-device-mapping.volume-id", described["BlockDeviceMappings"][0]["Ebs"]["VolumeId"], [first]),
            ("block-device-mapping.device-name", "/dev/sda?", [first, second]),
            ("network-interface.attachment.instance-id", second, [second]),
            ("platform", "windows", []),
        ]:
            assert found(name, value) == expected, name


class TestTrouble:
    def test_checks_can_fail_and_recover(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch()
        fake_cloud.advance(180)
        target = {**HERE, "instance": instance}
        checks = {"system": "impaired", "instance_check": "insufficient-data"}
        fake_cloud.admin("POST", "console/status-checks", {**target, **checks})
        impaired = [{"Name": "system-status.status", "Values": ["impaired"]}]
        [status] = ec2.describe_instance_status(Filters=impaired)["InstanceStatuses"]
        assert status["SystemStatus"]["Details"][0]["Status"] == "failed"
        assert "ImpairedSince" in status["SystemStatus"]["Details"][0]
        assert status["InstanceStatus"]["Status"] == "insufficient-data"
        fake_cloud.admin("POST", "console/status-checks", target)
        assert ec2.describe_instance_status()["InstanceStatuses"][0]["SystemStatus"]["Status"] == "ok"

    def test_retirement_stops_the_instance_when_it_is_due(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [retired] = fake_cloud.launch()
        [rebooted] = fake_cloud.launch()
        due = fake_cloud.now().timestamp() + 600
        at = fake_cloud.now().fromtimestamp(due, fake_cloud.now().tzinfo).isoformat()
        for instance, code in [(retired, "instance-retirement"), (rebooted, "system-reboot")]:
            body = {**HERE, "instance": instance, "code": code, "not_before": at, "not_after": at}
            fake_cloud.admin("POST", "console/event", body)
        filters = [{"Name": "event.code", "Values": ["system-*"]}]
        [status] = ec2.describe_instance_status(Filters=filters)["InstanceStatuses"]
        assert (status["InstanceId"], status["Events"][0]["Code"]) == (rebooted, "system-reboot")
        fake_cloud.advance(599)
        assert state(ec2, retired) == "running"
        fake_cloud.advance(60)
        assert (state(ec2, retired), state(ec2, rebooted)) == ("stopped", "running")
        [status] = ec2.describe_instance_status(InstanceIds=[rebooted])["InstanceStatuses"]
        assert status["Events"][0]["Description"].startswith("[Completed]")

    def test_capacity_can_be_taken_away(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [running] = fake_cloud.launch(Placement={"AvailabilityZone": "us-east-1b"})
        limit = {**HERE, "instance_type": "m5.large", "availability_zone": "us-east-1b"}
        fake_cloud.admin("POST", "console/capacity", {**limit, "instances": 2})
        there = {
            "ImageId": fake_cloud.image(),
            "InstanceType": "m5.large",
            "Placement": {"AvailabilityZone": "us-east-1b"},
        }
        assert len(ec2.run_instances(**there, MinCount=1, MaxCount=3)["Instances"]) == 1, (
            "as many as there is capacity for"
        )
        assert code_of(lambda: ec2.run_instances(**there, MinCount=1, MaxCount=1)) == "InsufficientInstanceCapacity"
        assert len(fake_cloud.launch()) == 1, "another zone has capacity"
        ec2.stop_instances(InstanceIds=[running])
        fake_cloud.advance(60)
        fake_cloud.admin("POST", "console/capacity", {**limit, "instances": 1})
        assert code_of(lambda: ec2.start_instances(InstanceIds=[running])) == "InsufficientInstanceCapacity"
        fake_cloud.admin("POST", "console/capacity", {**limit, "instances": None})
        ec2.start_instances(InstanceIds=[running])

    def test_spot_instance_is_taken_back_after_its_notice(self, fake_cloud: FakeCloud) -> None:
        ec2 = fake_cloud.client("ec2")
        [instance] = fake_cloud.launch(InstanceMarketOptions={"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.5"}})
        assert describe(ec2, instance)["InstanceLifecycle"] == "spot"
        assert code_of(lambda: ec2.stop_instances(InstanceIds=[instance])) == "UnsupportedOperation"

        def request() -> dict[str, Any]:
            return dict(ec2.describe_spot_instance_requests()["SpotInstanceRequests"][0])

        assert (request()["State"], request()["Status"]["Code"]) == ("active", "fulfilled")
        target = {**HERE, "instance": instance}
        with pytest.raises(AdminError, match="404"):
            fake_cloud.admin("GET", f"metadata/{instance}/spot/instance-action")
        fake_cloud.admin("POST", "console/rebalance", target)
        assert "noticeTime" in fake_cloud.admin("GET", f"metadata/{instance}/events/recommendations/rebalance")
        fake_cloud.admin("POST", "console/spot-interruption", target)
        assert fake_cloud.admin("GET", f"metadata/{instance}/spot/instance-action")["action"] == "terminate"
        assert request()["Status"]["Code"] == "marked-for-termination"
        fake_cloud.advance(119)
        assert state(ec2, instance) == "running"
        fake_cloud.advance(2)
        assert describe(ec2, instance)["StateReason"]["Code"] == "Server.SpotInstanceTermination"
        assert (request()["State"], request()["Status"]["Code"]) == ("closed", "instance-terminated-no-capacity")
        [plain] = fake_cloud.launch()
        with pytest.raises(AdminError, match="not a spot instance"):
            fake_cloud.admin("POST", "console/spot-interruption", {**HERE, "instance": plain})
