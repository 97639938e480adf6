"""Fixtures with a separate fake cloud per test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from lcm import testing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("LCM_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Screenshots for a person to look at, if this names a directory.
SHOTS = os.environ.get("LCM_CONSOLE_SHOTS")

browser_test = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; `apt-get install chromium` brings it")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a directory for its data it takes an empty one and removes it.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield chromium
        chromium.close()


def look(page: Page, name: str) -> None:
    """Take a screenshot if `LCM_CONSOLE_SHOTS` names a directory."""
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{SHOTS}/{name}.png")


# Under `nohup … &` this process ignores SIGINT, which its children would inherit. With a handler here, they start with
# the default action.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def built_program(path: str) -> Path:
    """Return the path of a program that `cargo build --workspace --bins --examples` has built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    candidates = [target / profile / path for profile in ("debug", "release")]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    missing = ", ".join(map(str, candidates))
    pytest.fail(f"{missing} not found: run `cargo build --workspace --bins --examples` first")


def fake_cloud_binary() -> Path:
    """Return the command under test: `FAKE_CLOUD_BIN`, or the build of the workspace."""
    named = os.environ.get("FAKE_CLOUD_BIN")
    return Path(named) if named else built_program("fake-cloud")


class AdminError(Exception):
    """An error response of the admin API."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass
class FakeCloud:
    """A running fake cloud with its clients."""

    url: str
    process: subprocess.Popen[str]

    def client(self, service: str, region: str = "us-east-1", access_key: str = "fake", **options: Any) -> Any:
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.url,
            aws_access_key_id=access_key,
            aws_secret_access_key="fake",
            **options,
        )

    def admin(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        url = f"{self.url}/_fake/{path}"
        if query:
            url += "?" + urllib.parse.urlencode(query)
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise AdminError(error.code, json.load(error)["error"]) from None

    def advance(self, seconds: float) -> None:
        self.admin("POST", "clock/advance", {"seconds": seconds})

    def now(self) -> datetime:
        return datetime.fromisoformat(self.admin("GET", "clock")["now"])

    def fault(self, action: dict[str, Any], **rule: Any) -> int:
        return int(self.admin("POST", "faults", {**rule, "action": action})["id"])

    def requests(self, **query: Any) -> list[dict[str, Any]]:
        return list(self.admin("GET", "requests", **query))

    def image(self, region: str = "us-east-1") -> str:
        """Return the latest image of a region."""
        images = self.client("ec2", region).describe_images()["Images"]
        return str(max(images, key=lambda image: image["CreationDate"])["ImageId"])

    def launch(self, count: int = 1, *, settle: bool = True, **options: Any) -> list[str]:
        """Launch instances and, with ``settle``, move the clock until they run."""
        ec2 = self.client("ec2")
        launched = ec2.run_instances(
            **{"ImageId": self.image(), "InstanceType": "m5.large", "MinCount": count, "MaxCount": count, **options}
        )
        if settle:
            self.advance(60)
        return [instance["InstanceId"] for instance in launched["Instances"]]


def start(*arguments: str) -> FakeCloud:
    process = subprocess.Popen(
        [fake_cloud_binary(), "--json", "--ephemeral", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(f"fake-cloud did not start: exit code {process.wait(10)}")
    return FakeCloud(json.loads(line)["aws_url"], process)


def stop(cloud: FakeCloud) -> int:
    """Stop the process, close its pipes and return its exit code."""
    with cloud.process:
        cloud.process.terminate()
        try:
            return cloud.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            cloud.process.kill()
            raise


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """A fake cloud with a manual clock."""
    cloud = start("--clock", "manual", "--seed", "42")
    try:
        yield cloud
    finally:
        code = stop(cloud)
    assert code == 0, "SIGTERM stops it cleanly"


def eventually(condition: Any, timeout: float = 20.0) -> Any:
    """Wait until a condition is true and return its result."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.05)


@pytest.fixture
def live_cloud() -> Iterator[testing.FakeCloud]:
    """A fake cloud in this process, with the real clock and without delays."""
    with testing.FakeCloud(clock="real", delays="none") as cloud:
        yield cloud


@pytest.fixture
def extended_cloud() -> Iterator[testing.FakeCloud]:
    """The cloud of `live_cloud`, whose control plane takes events and keeps notes on its records."""
    with testing.FakeCloud(clock="real", delays="none", control_plane="extended") as cloud:
        yield cloud
