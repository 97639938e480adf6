"""The fake AWS, called by the AWS CLI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from conftest import FakeCloud, start, stop


def aws(cloud: FakeCloud, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "AWS_ENDPOINT_URL": cloud.url,
        "AWS_ACCESS_KEY_ID": "fake",
        "AWS_SECRET_ACCESS_KEY": "fake",
        "AWS_SESSION_TOKEN": "session-secret",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    command = [sys.executable, "-m", "awscli", "--output", "json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def aws_json(cloud: FakeCloud, *arguments: str) -> Any:
    done = aws(cloud, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_aws_cli_manages_an_instance(fake_cloud: FakeCloud) -> None:
    images = aws_json(fake_cloud, "ec2", "describe-images", "--filters", "Name=name,Values=*cml2.9*")["Images"]
    launched = aws_json(
        fake_cloud, "ec2", "run-instances", "--image-id", images[0]["ImageId"], "--instance-type", "m5.large",
        "--tag-specifications", "ResourceType=instance,Tags=[{Key=name,Value=cli}]",
    )  # fmt: skip
    instance = launched["Instances"][0]["InstanceId"]
    fake_cloud.advance(900)
    described = aws_json(fake_cloud, "ec2", "describe-instances", "--filters", "Name=tag:name,Values=cli")
    [found] = described["Reservations"][0]["Instances"]
    assert (found["InstanceId"], found["State"]["Name"]) == (instance, "running")
    metrics = aws_json(fake_cloud, "cloudwatch", "list-metrics", "--namespace", "AWS/EC2")["Metrics"]
    assert {"Name": "InstanceId", "Value": instance} in metrics[0]["Dimensions"]
    stopped = aws_json(fake_cloud, "ec2", "stop-instances", "--instance-ids", instance)
    assert stopped["StoppingInstances"][0]["CurrentState"]["Name"] == "stopping"
    assert "session-secret" not in json.dumps(fake_cloud.requests())


def test_errors_read_like_those_of_aws(fake_cloud: FakeCloud) -> None:
    done = aws(fake_cloud, "ec2", "describe-instances", "--instance-ids", "i-0c71aaaa")
    assert done.returncode != 0
    assert "(InvalidInstanceID.NotFound)" in done.stderr
    assert "The instance ID 'i-0c71aaaa' does not exist" in done.stderr


def test_port_in_use_is_a_clear_error(fake_cloud: FakeCloud) -> None:
    port = fake_cloud.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [str(fake_cloud.process.args[0]), "--aws-port", port],  # type: ignore[index]
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_delays_can_be_disabled() -> None:
    cloud = start("--clock", "manual", "--delays", "none")
    try:
        [instance] = cloud.launch(settle=False)
        status = cloud.client("ec2").describe_instance_status(InstanceIds=[instance])["InstanceStatuses"]
        assert [one["InstanceStatus"]["Status"] for one in status] == ["ok"]
    finally:
        assert stop(cloud) == 0
