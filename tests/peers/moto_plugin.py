"""A plugin for the suite of moto: records the operations of each test, and points the tests at the fake cloud.

`MOTO_RECORD` names the file for the operations and outcomes. With `FAKE_CLOUD_URL`, moto's server mode talks to the
fake cloud: a reset empties it and adds the images that the tests launch.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.client
import pytest
import requests

URL = os.environ.get("FAKE_CLOUD_URL")

operations: dict[str, set[str]] = defaultdict(set)
outcomes: dict[str, str] = {}
current = ""

original = botocore.client.BaseClient._make_api_call


def record(self: Any, operation: str, arguments: Any) -> Any:
    operations[current].add(f"{self.meta.service_model.service_name}.{operation}")
    return original(self, operation, arguments)


botocore.client.BaseClient._make_api_call = record

if URL:
    from moto.core.models import ServerModeMockAWS

    import tests

    session = requests.Session()
    images = [tests.EXAMPLE_AMI_ID, tests.EXAMPLE_AMI_ID2, tests.EXAMPLE_AMI_PARAVIRTUAL, tests.EXAMPLE_AMI_WINDOWS]
    regions = ["us-east-1", "us-east-2", "us-west-1", "us-west-2", "eu-west-1", "eu-central-1", "ap-northeast-1"]

    def reset(self: Any) -> None:
        session.post(f"{URL}/_fake/reset", json={"to": "empty"}).raise_for_status()
        for region in regions:
            for image in images:
                body = {"region": region, "id": image, "name": image, "sharing": "public"}
                session.post(f"{URL}/_fake/console/image", json=body).raise_for_status()

    ServerModeMockAWS.reset = reset


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global current
    current = item.nodeid
    # Clients of an earlier test would call the endpoint of that test.
    boto3.DEFAULT_SESSION = None
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcomes.setdefault(report.nodeid, report.outcome)


def pytest_sessionfinish() -> None:
    found = {test: {"outcome": how, "operations": sorted(operations[test])} for test, how in outcomes.items()}
    Path(os.environ["MOTO_RECORD"]).write_text(json.dumps(found, indent=1))
