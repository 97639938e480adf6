"""The web console in a real browser, on the fake cloud and on a controller."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, FakeCloud, browser_test, built_program, eventually, look, start, stop
from lcm import palette
from playwright.sync_api import Browser, Page, expect

ASSETS = ROOT / "lcm-console" / "assets"
HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test if a script fails or the browser reports an error, such as a policy violation."""
    context = browser.new_context(viewport={"width": 1440, "height": 860})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.set_default_timeout(20_000)
    yield page
    context.close()
    # The console is told about these by responses, and shows them.
    expected = ("Failed to load resource", "ERR_")
    assert [problem for problem in problems if not any(word in problem for word in expected)] == []


def show(page: Page, cloud: FakeCloud, view: str = "fleet") -> None:
    page.goto(f"{cloud.url}/_fake/ui/#/{view}")
    expect(page.locator("#link")).to_have_text("live")


def confirm(page: Page, name: str) -> None:
    page.locator("dialog").get_by_role("button", name=name, exact=True).click()
    expect(page.locator("dialog")).to_have_count(0)


def add_worker(cloud: FakeCloud, id: str, **fields: Any) -> None:
    cloud.admin("POST", "console/worker", {"id": id, "status": "running", "aws_region": "us-east-1", **fields})


@pytest.fixture
def bad_day() -> Iterator[FakeCloud]:
    cloud = start("--scenario", "bad-day", "--clock", "manual")
    yield cloud
    assert stop(cloud) == 0


def response(url: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Send a GET request and return the status and the headers of the response, without following a redirect."""
    address, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", f"/{path}", headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


# Without a browser


def test_only_a_browser_is_sent_to_the_console(fake_cloud: FakeCloud) -> None:
    status, headers = response(f"{fake_cloud.url}/", accept="text/html,application/xhtml+xml")
    assert (status, headers["location"]) == (307, "/_fake/ui/")
    assert response(f"{fake_cloud.url}/", accept="*/*")[0] == 401, "an AWS client gets an error of AWS"
    assert response(f"{fake_cloud.url}/?Action=DescribeInstances", accept="text/html")[0] == 401


def test_files_have_a_strict_policy_and_are_cached_by_tag(fake_cloud: FakeCloud) -> None:
    url = f"{fake_cloud.url}/_fake/ui/"
    for path in ("", "app.js", "console.css", "icon.svg"):
        status, headers = response(url + path)
        assert status == 200 and headers["x-content-type-options"] == "nosniff"
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" == policy["style-src"]
        assert "unsafe" not in headers["content-security-policy"]
        assert response(url + path, **{"if-none-match": headers["etag"]})[0] == 304
    assert response(url + "no-such-file.js")[0] == 404


def test_stream_refuses_other_origins_and_hosts(fake_cloud: FakeCloud) -> None:
    url = f"{fake_cloud.url}/_fake/ui/events"
    assert response(url, origin="https://evil.example")[0] == 403
    assert response(url, host="evil.example")[0] == 403


def test_styles_have_the_colors_of_the_palette() -> None:
    css = (ASSETS / "console.css").read_text()
    for status, color in palette.STATUSES.items():
        assert f"--{status}: {color};" in css and f"--{status}-ink: {palette.ink(color)};" in css, status
        assert f".s-{status} {{ background: var(--{status}); color: var(--{status}-ink); }}" in css, status
    script = (ASSETS / "palette.js").read_text()
    names = re.findall(r'"([a-z]+)"', script.split("STATUSES = [")[1].split("]")[0])
    assert names == list(palette.STATUSES)
    like = re.findall(r'"?([a-z-]+)"?: "([a-z]+)"', script.split("LIKE = {")[1].split("}")[0])
    assert dict(like) == palette._LIKE


def test_open_stream_does_not_delay_the_end() -> None:
    cloud = start("--clock", "manual")
    with urllib.request.urlopen(f"{cloud.url}/_fake/ui/events", timeout=20) as stream:
        line = stream.readline()
        first = json.loads(line.removeprefix(b"data: "))
        assert first["full"] and first["clock"]["pace"] == "manual"
        began = time.monotonic()
        assert stop(cloud) == 0
        assert time.monotonic() - began < 2
        assert (line + stream.read()).endswith(b"\n\n"), "the stream ends between two messages"


# In a browser


@browser_test
def test_fleet_follows_the_world(page: Page, fake_cloud: FakeCloud) -> None:
    show(page, fake_cloud)
    expect(page.locator("main")).to_contain_text("This cloud has no worker yet")
    [instance] = fake_cloud.launch(settle=False)
    add_worker(fake_cloud, "w-1", name="blue", ec2_instance_id=instance, status="provisioning")
    row = page.locator(".row", has_text="blue")
    expect(row).to_contain_text("provisioning")
    expect(row).to_contain_text("pending")
    fake_cloud.advance(120)
    expect(row.locator(".chip").nth(1)).to_have_text("running")
    fake_cloud.admin("POST", "console/worker/w-1", {"status": "running", "desired_status": "stopped"})
    expect(row.locator(".chip").nth(0)).to_have_text("running")
    expect(row).to_contain_text("→ stopped")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", re.compile("record .*running, instance .*running$"))
    # An instance that ends behind the controller's back is a concern.
    fake_cloud.admin("POST", "console/terminate", {"region": "us-east-1", "instance": instance})
    expect(row).to_contain_text("the instance is shutting-down")
    expect(page.get_by_role("button", name="Concerns: 1")).to_be_visible()


@browser_test
def test_fleet_is_filtered_and_searched(page: Page, bad_day: FakeCloud) -> None:
    show(page, bad_day)
    rows = page.locator(".row")
    expect(rows).to_have_count(10)
    page.get_by_role("button", name="stopped 2").click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="running 5").click()
    expect(rows).to_have_count(7)
    page.get_by_role("button", name="All", exact=True).click()
    page.keyboard.press("/")
    page.keyboard.type("eu-west-1 stopped")
    expect(rows).to_have_count(1)
    expect(page.locator("main")).to_contain_text("1 of 10 workers")
    page.keyboard.type("no such worker")
    expect(page.locator("main")).to_contain_text("No worker matches")
    look(page, "fleet-search")


@browser_test
def test_keyboard_is_enough(page: Page, bad_day: FakeCloud) -> None:
    show(page, bad_day)
    grid = page.get_by_role("grid", name="Workers")
    grid.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert grid.get_attribute("aria-activedescendant")
    assert grid.get_attribute("aria-rowcount") == "11", "with the headings"
    headings = grid.get_by_role("columnheader")
    expect(headings).to_have_count(5)
    assert [headings.nth(place).inner_text() for place in (0, 1, 2)] == ["Worker", "Record", "Instance"]
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("w-03")
    expect(page.locator("h1")).to_be_focused()
    # A dialog is opened, canceled and confirmed with keys alone, and gives the focus back.
    drain = page.get_by_role("button", name="Drain", exact=True)
    drain.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(drain).to_be_focused()
    page.keyboard.press("Space")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("maintenance")
    page.keyboard.press("Tab")
    page.keyboard.type("ada")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("3")
    expect(page.locator("h1")).to_have_text("Requests")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


@browser_test
def test_worker_shows_record_and_timeline_without_secrets(page: Page, fake_cloud: FakeCloud) -> None:
    [instance] = fake_cloud.launch()
    add_worker(fake_cloud, "w-1", ec2_instance_id=instance, cml_username="admin", cml_password="hunter2")
    fake_cloud.admin("POST", "console/worker/w-1", {"license": {"status": "registered", "token": "s3cret-token"}})
    fake_cloud.admin("POST", "console/session", {"id": "s-1", "worker_id": "w-1", "status": "running"})
    fake_cloud.client("ec2").describe_instances(InstanceIds=[instance])
    show(page, fake_cloud, "worker/w-1")
    main = page.locator("main")
    for text in ("w-1", instance, "s-1", "registered", "DescribeInstances", "/lcm/workers/w-1"):
        expect(main).to_contain_text(text)
    expect(main).to_contain_text("[redacted]")
    assert "hunter2" not in page.content() and "s3cret-token" not in page.content()

    page.get_by_role("button", name="Drain", exact=True).click()
    confirm(page, "Cancel")
    assert fake_cloud.admin("GET", "state")["workers"][0]["status"] == "running", "nothing without a confirmation"
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_label("Reason, for the audit").fill("a new image")
    page.get_by_label("Requested by").fill("ada")
    confirm(page, "Drain")
    expect(page.locator(".title .chip")).to_have_text("draining")
    expect(page.locator(".timeline")).to_contain_text("audit: drain_accepted")
    [entry] = fake_cloud.admin("GET", "ui/workers/w-1")["audit"]
    assert "a new image" in json.dumps(entry) and "ada" in json.dumps(entry)
    look(page, "worker")
    # The original control plane has no such operation.
    expect(page.get_by_role("button", name="Cancel the drain")).to_be_disabled()
    page.get_by_label("Entries shown").select_option("record")
    expect(page.locator(".timeline")).not_to_contain_text("DescribeInstances")
    show(page, fake_cloud, "worker/w-2")
    expect(page.locator(".title")).to_contain_text('no worker with id or name "w-2"')
    expect(page.locator(".title button")).to_have_count(0)


@pytest.fixture
def extended_cloud() -> Iterator[FakeCloud]:
    cloud = start("--control-plane", "extended", "--clock", "manual")
    yield cloud
    assert stop(cloud) == 0


@browser_test
def test_drain_is_canceled_where_the_control_plane_can(page: Page, extended_cloud: FakeCloud) -> None:
    [instance] = extended_cloud.launch()
    add_worker(extended_cloud, "w-1", ec2_instance_id=instance)
    show(page, extended_cloud, "worker/w-1")
    for operation, status in (("Drain", "draining"), ("Cancel the drain", "running")):
        page.get_by_role("button", name=operation, exact=True).click()
        page.get_by_label("Reason, for the audit").fill("a look")
        confirm(page, operation)
        expect(page.locator(".title .chip")).to_have_text(status)
    expect(page.locator(".title .chip")).to_have_text("running")


@browser_test
def test_clock_is_driven_from_every_view(page: Page, fake_cloud: FakeCloud) -> None:
    show(page, fake_cloud, "requests")
    before = fake_cloud.now()
    page.get_by_role("button", name="+1 min").click()
    page.get_by_role("button", name="+1 h").click()
    eventually(lambda: (fake_cloud.now() - before).total_seconds() == 3660)
    expect(page.locator("#to-next")).to_be_disabled()
    [instance] = fake_cloud.launch(settle=False)
    expect(page.locator("#next")).to_contain_text(f"{instance} is running in")
    page.locator("#to-next").click()
    eventually(
        lambda: (
            fake_cloud.client("ec2").describe_instances()["Reservations"][0]["Instances"][0]["State"]["Name"]
            == "running"
        )
    )
    clock = page.get_by_role("group", name="Clock")
    clock.get_by_role("button", name="\u00d760").click()
    eventually(lambda: fake_cloud.admin("GET", "clock")["pace"] == "x60")
    expect(clock.get_by_role("button", name="\u00d760")).to_have_attribute("aria-pressed", "true")
    shown = page.locator("#time").text_content()
    expect(page.locator("#time")).not_to_have_text(shown or "", timeout=2000)
    clock.get_by_role("button", name="Pause").click()
    eventually(lambda: fake_cloud.admin("GET", "clock")["pace"] == "manual")
    expect(page.locator("#time")).to_have_text(fake_cloud.now().strftime("%Y-%m-%d %H:%M:%S"))


@browser_test
def test_instances_are_changed_as_in_the_aws_console(page: Page, fake_cloud: FakeCloud) -> None:
    [instance] = fake_cloud.launch()
    show(page, fake_cloud, "instances")
    row = page.locator(".row", has_text=instance)
    row.get_by_role("button", name="Tag").click()
    page.get_by_label("Key").fill("team")
    page.get_by_label("Value").fill(HOSTILE)
    confirm(page, "Set the tag")
    expect(row).to_contain_text(f"team={HOSTILE}")
    row.get_by_role("button", name="Stop").click()
    confirm(page, "Stop")
    expect(row.locator(".chip")).to_have_text("stopping")
    fake_cloud.advance(120)
    expect(row.locator(".chip")).to_have_text("stopped")
    expect(row.get_by_role("button", name="Stop")).to_be_disabled()
    row.get_by_role("button", name="Start").click()
    confirm(page, "Start")
    expect(row.locator(".chip")).to_have_text("pending")
    look(page, "instances")
    assert all(one["operation"] != "StopInstances" for one in fake_cloud.requests()), "no recorded request"


@browser_test
def test_instances_are_terminated_and_rebooted(page: Page, fake_cloud: FakeCloud) -> None:
    [instance] = fake_cloud.launch()
    show(page, fake_cloud, "instances")
    row = page.locator(".row", has_text=instance)
    row.get_by_role("button", name="Reboot").click()
    confirm(page, "Reboot")
    expect(page.locator(".toast", has_text=instance)).to_be_visible()
    expect(row.locator(".chip")).to_have_text("running")
    row.get_by_role("button", name="Terminate").click()
    confirm(page, "Terminate")
    expect(row.locator(".chip")).to_have_text("shutting-down")
    fake_cloud.advance(120)
    expect(row.get_by_role("button", name="Terminate")).to_be_disabled()


@browser_test
def test_focused_button_never_acts_on_another_instance(page: Page, fake_cloud: FakeCloud) -> None:
    ids = fake_cloud.launch(4)
    show(page, fake_cloud, "instances")
    order = [row.split()[0] for row in page.locator(".row .cell:first-child").all_inner_texts()]
    assert sorted(order) == sorted(ids)
    button = page.locator(".row", has_text=order[1]).get_by_role("button", name="Terminate")
    button.focus()
    # The first row goes, and the others move up.
    search = page.get_by_label("Search instances")
    search.evaluate("(input, text) => { input.value = text; input.dispatchEvent(new Event('input')); }", order[1])
    expect(page.locator(".row")).to_have_count(1)
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("dialog h2")).to_have_text(f"Terminate {order[1]}?")
    confirm(page, "Cancel")
    button.focus()
    search.evaluate("(input, text) => { input.value = text; input.dispatchEvent(new Event('input')); }", order[3])
    expect(page.locator(".row")).to_have_count(1)
    expect(page.get_by_role("grid", name="Instances")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)


@browser_test
def test_detail_is_reachable_on_a_narrow_page(page: Page, fake_cloud: FakeCloud) -> None:
    page.set_viewport_size({"width": 800, "height": 900})
    fake_cloud.client("ec2").describe_images()
    show(page, fake_cloud, "requests")
    page.locator(".row", has_text="DescribeImages").click()
    expect(page.get_by_role("button", name="Make this fail next time")).to_be_visible()


@browser_test
def test_text_is_copied_without_a_clipboard(page: Page, fake_cloud: FakeCloud) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    show(page, fake_cloud, "faults")
    page.get_by_role("button", name="Copy").click()
    expect(page.locator(".toast")).to_have_text("Copied")


def test_suggested_operations_exist(fake_cloud: FakeCloud) -> None:
    script = (ASSETS / "faults.js").read_text()
    block = script.split("const OPERATIONS = {")[1].split("};")[0]
    for service, names in re.findall(r'"?([a-z0-9-]+)"?: \[(.*?)\]', block):
        for operation in re.findall(r'"([^"]+)"', names):
            rule = {"service": service, "operation": operation, "action": {"kind": "reset"}}
            added = fake_cloud.admin("POST", "faults", rule)
            assert added["id"], (service, operation)
    custom = script.split("const CUSTOM = {")[1].split("};")[0]
    for service, names in re.findall(r'"?([a-z0-9-]+)"?: \[(.*?)\]', custom):
        for name in re.findall(r'"([^"]+)"', names):
            rule = {"service": service, "action": {"kind": "custom", "name": name}}
            assert fake_cloud.admin("POST", "faults", rule)["id"], (service, name)
    fake_cloud.admin("DELETE", "faults")


@browser_test
def test_request_fails_next_time(page: Page, fake_cloud: FakeCloud) -> None:
    show(page, fake_cloud, "requests")
    ec2 = fake_cloud.client("ec2")
    ec2.describe_images()
    row = page.locator(".row", has_text="DescribeImages")
    expect(row).to_contain_text("200")
    row.click()
    expect(page.locator(".detail")).to_contain_text("Boto3")
    page.get_by_role("button", name="Make this fail next time").click()
    page.get_by_label("How", exact=True).select_option("error:UnauthorizedOperation")
    confirm(page, "Add the fault")
    with pytest.raises(ec2.exceptions.ClientError, match="UnauthorizedOperation"):
        eventually(lambda: fake_cloud.admin("GET", "faults") and ec2.describe_images() and False)
    ec2.describe_images()
    expect(page.locator(".row .bad")).to_have_text("403 UnauthorizedOperation")
    page.get_by_label("Result").select_option("faulted")
    expect(page.locator(".row")).to_have_count(1)
    look(page, "requests")


@browser_test
def test_faults_are_put_together(page: Page, fake_cloud: FakeCloud) -> None:
    show(page, fake_cloud, "faults")
    expect(page.locator("main")).to_contain_text("No fault")
    page.get_by_label("Service").select_option("ec2")
    page.get_by_label("Operation").fill("DescribeVpcs")
    page.get_by_label("Action").select_option("latency")
    page.get_by_label("Seconds").fill("0.1")
    page.get_by_label("Times, empty for always").fill("2")
    page.get_by_role("button", name="Add the fault").click()
    rules = page.locator("#rules")
    expect(rules).to_contain_text("0.1 s of delay")
    [rule] = [status["rule"] for status in fake_cloud.admin("GET", "faults")]
    assert rule["action"] == {"kind": "latency", "seconds": 0.1, "on": "real"}
    assert (rule["operation"], rule["times"]) == ("DescribeVpcs", 2)
    for _ in range(3):
        fake_cloud.client("ec2").describe_vpcs()
    expect(rules).to_contain_text("2 of 2")
    # An invalid rule is refused with the sentence of the server.
    page.get_by_label("Seconds").fill("90000")
    page.get_by_role("button", name="Add the fault").click()
    expect(page.locator(".toast.bad")).to_contain_text("seconds must be between 0 and 86400")
    page.get_by_role("button", name="Remove fault 1").click()
    expect(page.locator("main")).to_contain_text("No fault")


@browser_test
def test_etcd_and_cml_are_shown(page: Page, fake_cloud: FakeCloud) -> None:
    [instance] = fake_cloud.launch()
    add_worker(fake_cloud, "w-1", ec2_instance_id=instance)
    show(page, fake_cloud, "etcd")
    keys = page.get_by_role("region", name="Keys")
    expect(keys).to_contain_text("/lcm/workers/w-1")
    fake_cloud.admin("POST", "console/worker/w-1", {"desired_status": "stopped"})
    page.get_by_label("Search keys").fill("desired stopped")
    expect(keys.locator("tbody tr").first).to_contain_text("stopped")
    page.get_by_role("button", name="Unavailable", exact=True).click()
    confirm(page, "Unavailable?"[:-1])
    expect(page.locator("main")).to_contain_text("unavailable")
    look(page, "etcd")
    page.goto(f"{fake_cloud.url}/_fake/ui/#/cml")
    row = page.locator("tbody tr", has_text=instance)
    expect(row).to_contain_text("w-1")
    expect(row).to_contain_text("yes")
    row.get_by_role("button").click()
    confirm(page, "Wipe")
    expect(page.locator(".toast").last).to_contain_text("is wiped")


@browser_test
def test_scenario_is_loaded_and_exports_are_shown(page: Page, fake_cloud: FakeCloud) -> None:
    show(page, fake_cloud, "setup")
    exports = page.locator("#exports")
    expect(exports).to_contain_text(f"export AWS_ENDPOINT_URL={fake_cloud.url}")
    expect(exports).to_contain_text("export ETCD_ENDPOINTS=127.0.0.1:")
    look(page, "setup")
    page.get_by_role("button", name="Load bad-day").click()
    confirm(page, "Load")
    expect(page.locator(".toast")).to_contain_text("bad-day is loaded")
    page.goto(f"{fake_cloud.url}/_fake/ui/#/fleet")
    expect(page.locator(".row")).to_have_count(10)
    assert fake_cloud.admin("GET", "clock")["pace"] == "x60"


@browser_test
def test_snapshot_is_taken_saved_restored_and_branched(page: Page, fake_cloud: FakeCloud, tmp_path: Path) -> None:
    [kept] = fake_cloud.launch()
    add_worker(fake_cloud, "w-kept", ec2_instance_id=kept)
    show(page, fake_cloud, "setup")
    card = page.get_by_role("region", name="Snapshots")
    card.get_by_role("button", name="Take a snapshot").click()
    with page.expect_download() as download:
        card.get_by_role("button", name="Save snapshot 1 as a file").click()
    file = tmp_path / "saved.json"
    download.value.save_as(file)
    saved = json.loads(file.read_text())
    assert saved["format"] == "fake-cloud snapshot" and saved["masked"]["cml-passwords"] >= 1
    look(page, "snapshots")

    add_worker(fake_cloud, "w-late")

    def names() -> list[str]:
        return [worker["id"] for worker in fake_cloud.admin("GET", "state")["workers"]]

    assert names() == ["w-kept", "w-late"]
    card.get_by_role("button", name="Restore snapshot 1").click()
    confirm(page, "Restore")
    expect(page.locator(".toast").last).to_contain_text("passwords of CML users (now the CML password of the restored")
    assert names() == ["w-kept"]

    add_worker(fake_cloud, "w-late")
    card.get_by_label("Restore from a file").set_input_files(file)
    confirm(page, "Restore")
    expect(page.locator(".toast").last).to_contain_text("saved.json is restored")
    assert names() == ["w-kept"]
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(saved | {"version": 9}))
    card.get_by_label("Restore from a file").set_input_files(broken)
    confirm(page, "Restore")
    expect(page.locator(".toast.bad").last).to_contain_text("the snapshot has version 9")
    assert names() == ["w-kept"]

    with page.context.expect_page() as opened:
        card.get_by_role("button", name="Branch", exact=True).click()
    branch = opened.value
    expect(branch.locator("#link")).to_have_text("live")
    expect(branch.locator(".row")).to_have_count(1)
    assert not branch.url.startswith(fake_cloud.url)
    branch.close()
    card.get_by_role("button", name="Stop branch 1").click()
    expect(card.get_by_role("list", name="Branches").locator("li")).to_have_count(0)
    assert fake_cloud.admin("GET", "branches") == []


@browser_test
def test_pending_steps_are_shown_and_taken_in_order(page: Page, tmp_path: Path) -> None:
    scenario = tmp_path / "steps.yaml"
    steps = [{"at": "5m", "stop": "blue"}, {"at": "10m", "start": "blue"}]
    scenario.write_text(json.dumps({"clock": "manual", "fleet": [{"name": "blue"}], "timeline": steps}))
    cloud = start("--scenario", str(scenario))
    try:
        show(page, cloud, "setup")
        listed = page.get_by_role("list", name="Timeline").locator("li")
        expect(listed).to_have_count(2)
        expect(listed.first).to_contain_text("stop blue")
        expect(page.locator("#next")).to_contain_text("timeline: stop blue in")
        page.locator("#to-next").click()
        expect(listed).to_have_count(1)
        [instance] = cloud.admin("GET", "state")["regions"]["us-east-1"]["instances"]
        assert instance["state"] == "stopping"
    finally:
        assert stop(cloud) == 0


def test_streams_are_bounded(fake_cloud: FakeCloud) -> None:
    streams = [urllib.request.urlopen(f"{fake_cloud.url}/_fake/ui/events", timeout=20) for _ in range(16)]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{fake_cloud.url}/_fake/ui/events", timeout=20)
    assert refused.value.code == 503 and "16 consoles are open already" in json.load(refused.value)["error"]
    for stream in streams:
        assert b'"full":true' in stream.readline()
        stream.close()
    eventually(lambda: response(f"{fake_cloud.url}/_fake/ui/config.json")[0] == 200)


@browser_test
def test_leases_count_down_and_leaders_are_shown(page: Page) -> None:
    cloud = start("--clock", "manual")
    try:
        endpoint = cloud.admin("GET", "ui/setup")["environment"]["ETCD_ENDPOINTS"]

        def etcd(path: str, **fields: Any) -> Any:
            request = urllib.request.Request(f"http://{endpoint}/v3/{path}", json.dumps(fields).encode(), method="POST")
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.loads(answer.readline())

        lease = etcd("lease/grant", TTL=600)["ID"]
        key, value = (base64.b64encode(text).decode() for text in (b"/lcm/x/shards/4/3/leader", b"controller-a"))
        etcd("kv/put", key=key, value=value, lease=lease)
        show(page, cloud, "fleet")
        expect(page.locator("main")).to_contain_text("Leader of shard 3 of 4")
        expect(page.locator("main")).to_contain_text("controller-a")
        show(page, cloud, "etcd")
        expect(page.locator("main")).to_contain_text("600 of 600 s")
        cloud.advance(60)
        expect(page.locator("main")).to_contain_text("540 of 600 s")
        etcd("lease/keepalive", ID=lease)
        expect(page.locator("main")).to_contain_text("600 of 600 s")
    finally:
        assert stop(cloud) == 0


@browser_test
def test_gone_instances_keep_their_lanes_in_a_new_tab(page: Page, fake_cloud: FakeCloud) -> None:
    [instance] = fake_cloud.launch()
    client = fake_cloud.client("ec2")
    client.create_tags(Resources=[instance], Tags=[{"Key": "lcm:worker_id", "Value": "w-1"}])
    add_worker(fake_cloud, "w-1", ec2_instance_id=instance)
    client.terminate_instances(InstanceIds=[instance])
    fake_cloud.advance(2 * 3600)
    assert client.describe_instances()["Reservations"] == []
    show(page, fake_cloud)
    past = page.evaluate("import('/_fake/ui/store.js').then(({ state }) => [...state.past.values()])")
    assert [(one["id"], one["owner"], one["state"]) for one in past] == [(instance, "w-1", "terminated")]


@browser_test
def test_hostile_texts_are_shown_literally(page: Page, fake_cloud: FakeCloud) -> None:
    [instance] = fake_cloud.launch()
    add_worker(fake_cloud, HOSTILE.replace("/", ""), name=HOSTILE, ec2_instance_id=instance, template_name=HOSTILE)
    fake_cloud.admin(
        "POST", "console/tag", {"region": "us-east-1", "instance": instance, "key": HOSTILE, "value": HOSTILE}
    )
    fake_cloud.fault({"kind": "error", "code": HOSTILE}, operation="DescribeKeyPairs")
    fake_cloud.client("ec2").describe_tags(Filters=[{"Name": "key", "Values": [HOSTILE]}])
    for view in ("fleet", "instances", "requests", "faults", "etcd", "cml"):
        show(page, fake_cloud, view)
        if view == "requests":
            page.locator(".row", has_text="DescribeTags").click()
        expect(page.locator("main")).to_contain_text(HOSTILE)
        assert page.locator("main img").count() == 0
    show(page, fake_cloud)
    page.locator(".row").click()
    expect(page.locator("h1")).to_have_text(HOSTILE)
    expect(page.locator(".crumbs")).to_contain_text(HOSTILE)
    page.get_by_role("button", name="Stop").first.click()
    expect(page.locator("dialog h2")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0 and page.evaluate("window.hacked") is None


class Relay:
    """Forwards a port, and can cut every connection."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.open: list[socket.socket] = []
        self.is_cut = False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            if self.is_cut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.target))
            self.open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            one.close()

    def cut(self) -> None:
        self.is_cut = True
        for one in self.open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def mend(self) -> None:
        self.is_cut = False


@browser_test
def test_lost_connection_is_shown_and_mended(page: Page, fake_cloud: FakeCloud) -> None:
    add_worker(fake_cloud, "w-1")
    relay = Relay(int(fake_cloud.url.rsplit(":", 1)[1]))
    page.goto(f"http://127.0.0.1:{relay.port}/_fake/ui/")
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator(".row")).to_have_count(1)
    expect(page.locator("main")).to_have_class("fleet fills")
    relay.cut()
    expect(page.get_by_role("alert")).to_contain_text("Connection lost")
    expect(page.locator("#link")).to_have_text("connection lost")
    expect(page.locator(".row")).to_have_count(1)
    look(page, "lost")
    page.get_by_role("button", name="+1 min").click()
    expect(page.locator(".toast.bad")).to_contain_text("cannot be reached")
    add_worker(fake_cloud, "w-2")
    relay.mend()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#lost")).to_be_hidden()
    expect(page.locator(".row")).to_have_count(2)
    relay.listener.close()


def contrast(one: str, other: str) -> float:
    def brightness(color: str) -> float:
        parts = [float(part) / 255 for part in re.findall(r"[\d.]+", color)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((brightness(one), brightness(other)))
    return (light + 0.05) / (dark + 0.05)


def pale(texts: list[list[str]]) -> list[list[str]]:
    """Return the texts with too little contrast, each with its color and its background."""
    return [[text, color, back] for text, color, back in texts if contrast(color, back) < 4.5]


# Every visible text with its color and its background, which is that of its nearest ancestor with one.
TEXTS = """() => [...document.querySelectorAll("body *")]
  .filter((element) => element.checkVisibility() && !element.disabled && !element.closest(":disabled")
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((element) => {
    let under = element;
    const isClear = () => /, 0\\)$|transparent/.test(getComputedStyle(under).backgroundColor);
    while (under && isClear()) under = under.parentElement;
    return [element.textContent.slice(0, 40), getComputedStyle(element).color,
      getComputedStyle(under ?? document.body).backgroundColor];
  })"""


@browser_test
def test_both_themes_are_readable(browser: Browser, bad_day: FakeCloud) -> None:
    backgrounds = set()
    for theme in ("light", "dark"):
        context = browser.new_context(color_scheme=theme, viewport={"width": 1440, "height": 860})
        page = context.new_page()
        for view in ("fleet", "instances", "requests", "faults", "etcd", "cml", "setup", "worker/w-01"):
            show(page, bad_day, view)
            page.wait_for_timeout(300)
            texts = page.evaluate(TEXTS)
            assert len(texts) > 20, view
            assert pale(texts) == [], f"{theme} {view}"
            look(page, f"{view.replace('/', '-')}-{theme}")
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        button = page.get_by_role("button", name="Theme: system")
        button.click()
        page.get_by_role("button", name="Theme: light").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        context.close()
    assert len(backgrounds) == 2


def of_thousand(tmp_path: Path, states: list[str], desired: str | None = None, *, clock: str) -> FakeCloud:
    """Start a cloud with a thousand workers in turn in these states, and with few CML servers."""
    fleet = [{"name": f"m-{n}", "state": states[n % len(states)], "age": "20m"} for n in range(1000)]
    workers = [
        {
            "id": f"w-{n:04}",
            "status": states[n % len(states)],
            "desired_status": desired,
            "instance": f"m-{n}",
            "template": "metal",
        }
        for n in range(1000)
    ]
    scenario = tmp_path / "thousand.yaml"
    scenario.write_text(json.dumps({"clock": clock, "fleet": fleet, "workers": workers}))
    return start("--scenario", str(scenario), "--cml-limit", "10")


@pytest.fixture
def thousand(tmp_path: Path) -> Iterator[FakeCloud]:
    cloud = of_thousand(tmp_path, ["running"] * 6 + ["stopped"] * 3 + ["stopping"], clock="x60")
    yield cloud
    assert stop(cloud) == 0


@pytest.fixture
def thousand_stopped(tmp_path: Path) -> Iterator[FakeCloud]:
    cloud = of_thousand(tmp_path, ["stopped"], "stopped", clock="real")
    yield cloud
    assert stop(cloud) == 0


def first_lanes(page: Page, url: str) -> tuple[float, float, float]:
    """Open a console; return the times to its first paint and to its first lanes in milliseconds, and its bytes."""
    page.add_init_script("""
      window.first = new Promise((resolve) => new MutationObserver((_, observer) => {
        if (!document.querySelector(".row canvas")) return;
        observer.disconnect();
        requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())));
      }).observe(document, { childList: true, subtree: true }));
    """)
    page.goto(url)
    expect(page.locator("#link")).to_have_text("live")
    first = page.evaluate("window.first")
    entries = page.evaluate("performance.getEntriesByType('resource').map((one) => one.decodedBodySize)")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page_bytes = page.evaluate("performance.getEntriesByType('navigation')[0].decodedBodySize")
    return paint, first, sum(entries) + page_bytes


def scroll(page: Page) -> tuple[float, float]:
    """Scroll through the fleet; return the median and the longest time between two frames in milliseconds."""
    frames = page.evaluate("""async () => {
      const list = document.querySelector(".list");
      const gaps = [];
      let last = performance.now();
      for (let step = 0; step < 90; step += 1) {
        list.scrollTop += 400;
        await new Promise(requestAnimationFrame);
        gaps.push(performance.now() - last);
        last = performance.now();
      }
      return gaps.sort((a, b) => a - b);
    }""")
    assert page.locator(".list").evaluate("(list) => list.scrollTop") > 30_000
    return frames[len(frames) // 2], frames[-1]


def first_message(url: str) -> int:
    """Return the bytes of the first message of a stream: the whole state."""
    with urllib.request.urlopen(url, timeout=20) as stream:
        return len(stream.readline())


def figures(paint: float, first: float, weight: float, state: int, median: float, worst: float) -> str:
    loaded = f"first paint after {paint:.0f} ms, first lanes after {first:.0f} ms, page of {weight / 1024:.0f} KiB"
    return f"{loaded}, first message of {state / 1024:.0f} KiB, a frame in {median:.1f} ms, worst {worst:.0f} ms"


def assert_light(paint: float, first: float, weight: float, state: int, median: float) -> None:
    """Check bounds for a busy machine; docs/console.md states the figures of one run."""
    assert paint < 5_000 and first < 10_000 and median < 100
    assert 50 * 1024 < weight < 200 * 1024, "the page grew: its figures are in docs/console.md"
    assert 100 * 1024 < state < 1024 * 1024, "the first message grew: its figures are in docs/console.md"


@browser_test
def test_thousand_workers_are_smooth(page: Page, thousand: FakeCloud) -> None:
    paint, first, weight = first_lanes(page, f"{thousand.url}/_fake/ui/")
    expect(page.locator("main")).to_contain_text("1,000 workers")
    assert page.locator(".row").count() < 60, "rows outside of the view have no elements"
    median, worst = scroll(page)
    state = first_message(f"{thousand.url}/_fake/ui/events")
    print(f"1,000 workers: {figures(paint, first, weight, state, median, worst)}")
    look(page, "thousand")
    assert_light(paint, first, weight, state, median)
    # One change is one message about one worker.
    thousand.admin("POST", "console/worker/w-0999", {"status": "failed"})
    page.get_by_label("Order").select_option("concern")
    page.locator(".list").evaluate("(list) => { list.scrollTop = 0; }")
    expect(page.locator(".row", has_text="w-0999")).to_contain_text("the record is failed")


# The console of a controller


class Controller:
    """A `worker-controller` process on a fake cloud."""

    def __init__(self, cloud: FakeCloud, environment: dict[str, str], **settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = self.url.rsplit(":", 1)[1]
        own = {"ADMIN_PORT": port, "STARTUP_RECONCILE_DELAY": "0", "RECONCILE_INTERVAL": "2", "RUST_LOG": "warn"}
        inherited = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        self.process = subprocess.Popen(
            [built_program("worker-controller")],
            env={**inherited, **environment, **own, **settings},
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: self.process.poll() is not None or self.is_up(), 60)
        assert self.process.poll() is None, f"the controller ended with {self.process.returncode}"

    def is_up(self) -> bool:
        try:
            return response(f"{self.url}/healthz")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        with self.process:
            self.process.terminate()
            self.process.wait(timeout=30)


@pytest.fixture
def control() -> Iterator[Callable[..., Controller]]:
    """Starts controllers on a cloud, and stops them."""
    running: list[Controller] = []

    def begin(cloud: FakeCloud, **settings: str) -> Controller:
        environment = cloud.admin("GET", "ui/setup")["environment"]
        running.append(Controller(cloud, environment, **settings))
        return running[-1]

    yield begin
    for one in running:
        one.stop()


@pytest.fixture
def busy_cloud() -> Iterator[FakeCloud]:
    cloud = start("--clock", "real", "--delays", "none")
    yield cloud
    assert stop(cloud) == 0


@browser_test
def test_controller_shows_its_fleet(page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]) -> None:
    add_worker(busy_cloud, "w-1", name=HOSTILE, status="pending", desired_status="running", template_name="metal")
    controller = control(busy_cloud)
    page.goto(f"{controller.url}/")
    expect(page.locator("#link")).to_have_text("live")
    row = page.locator(".row", has_text=HOSTILE)
    expect(row.locator(".chip").nth(0)).to_have_text("running")
    expect(page.locator(".summary")).to_contain_text("leader")
    expect(page.locator(".summary")).to_contain_text("lease lasts")
    expect(page.locator(".summary")).to_contain_text("nothing waits")
    row.click()
    expect(page.locator("h1")).to_have_text(HOSTILE)
    assert page.locator("main img").count() == 0
    page.get_by_role("button", name="Reconcile now").click()
    page.get_by_label("Reason, for the audit").fill("a look")
    confirm(page, "Reconcile now")
    expect(page.locator(".toast")).to_contain_text("accepted")
    [operation] = eventually(
        lambda: json.load(urllib.request.urlopen(f"{controller.url}/admin/operations"))["operations"]
    )
    assert (operation["operation"], operation["resource_id"], operation["reason"]) == ("reconcile", "w-1", "a look")
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_label("Reason, for the audit").fill("maintenance")
    confirm(page, "Drain")
    eventually(lambda: busy_cloud.admin("GET", "state")["workers"][0]["desired_status"] == "stopped")
    look(page, "controller-worker")
    expect(page.locator(".timeline")).to_contain_text("requested: drain")
    expect(page.locator(".timeline")).to_contain_text("by console: maintenance")


@browser_test
def test_controller_explains_a_worker_without_secrets(
    page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    [instance] = busy_cloud.launch()
    add_worker(busy_cloud, "w-1", ec2_instance_id=instance, cml_password="hunter2", desired_status="running")
    busy_cloud.admin("POST", "console/worker/w-1", {"license": {"status": "registered", "token": "s3cret-token"}})
    busy_cloud.admin("POST", "console/session", {"id": HOSTILE, "worker_id": "w-1", "status": "running"})
    controller = control(busy_cloud)
    # Stopped behind the controller's back: it follows, and starts it again.
    busy_cloud.admin("POST", "console/stop", {"region": "us-east-1", "instance": instance})
    page.goto(f"{controller.url}/#/worker/w-1")
    timeline = page.locator(".timeline")
    expect(timeline).to_contain_text("start_requested")
    expect(timeline).to_contain_text("The instance is stopped and should run: starting it.")
    expect(timeline.locator("li", has_text="Seen in EC2").first).to_contain_text("instance")
    timeline.locator("li", has_text="start_requested").locator("summary").click()
    expect(timeline).to_contain_text(f"start_instance {instance}")
    expect(page.locator(".title .chip")).to_have_text("running")
    main = page.locator("main")
    for text in (instance, HOSTILE, "registered", "Notes", "CML"):
        expect(main).to_contain_text(text)
    page.get_by_role("button", name="Dry run").click()
    forecast = page.locator(".forecast")
    expect(forecast).to_contain_text("A dry run: nothing was changed.")
    expect(forecast).to_contain_text(f"{instance} is running")
    expect(forecast).to_contain_text("If the desired status were stopped")
    expect(forecast).not_to_contain_text("undefined")
    look(page, "controller-explain")
    assert page.locator("main img").count() == 0 and page.evaluate("window.hacked") is None
    assert "hunter2" not in page.content() and "s3cret-token" not in page.content()
    at = page.get_by_label("Explain the status at")
    at.fill("2000-01-01T00:00:00")
    expect(timeline).to_contain_text("keeps no recording")
    at.fill("2100-01-01T00:00:00")
    expect(timeline).to_contain_text("start_requested")
    expect(timeline).not_to_contain_text("Seen in EC2")
    at.fill("")
    expect(timeline).to_contain_text("Seen in EC2")
    page.get_by_label("Entries shown").select_option("failure")
    expect(timeline).not_to_contain_text("start_requested")
    page.goto(f"{controller.url}/#/worker/no-such-worker")
    expect(page.locator(".title")).to_contain_text("does not exist")
    expect(page.locator(".title button")).to_have_count(0)


@browser_test
def test_controller_tells_what_waits_and_why(
    page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    [instance] = busy_cloud.launch()
    add_worker(busy_cloud, "w-1", ec2_instance_id=instance, desired_status="running")
    busy_cloud.fault({"kind": "error", "code": "UnauthorizedOperation"}, service="ec2", operation="DescribeInstances")
    controller = control(busy_cloud)
    page.goto(f"{controller.url}/#/queue")
    row = page.locator("#queue tbody tr", has_text="w-1")
    expect(row).to_contain_text("backs off")
    expect(row).to_contain_text("in a row: ")
    expect(row).to_contain_text("UnauthorizedOperation")
    page.get_by_label("Stage").select_option("work")
    expect(page.locator("main")).not_to_contain_text("backs off")
    page.get_by_label("Stage").select_option("retry")
    look(page, "controller-queue")
    row.get_by_role("link").click()
    expect(page.locator(".title .bad")).to_contain_text("UnauthorizedOperation")
    busy_cloud.admin("DELETE", "faults")
    page.get_by_role("button", name="Reconcile now").click()
    page.get_by_label("Reason, for the audit").fill("the permission is back")
    confirm(page, "Reconcile now")
    expect(page.locator(".title .bad")).to_have_text("")
    page.keyboard.press("2")
    expect(page.locator("h1")).to_have_text("Queue")
    requested = page.get_by_role("region", name="Requested by operators")
    expect(requested).to_contain_text("the permission is back")
    expect(requested).to_contain_text("accepted")
    page.get_by_role("button", name="Reconcile all").click()
    page.get_by_label("Reason, for the audit").fill("a new policy")
    confirm(page, "Reconcile all")
    expect(page.locator(".toast", has_text="1 worker queued")).to_be_visible()
    page.get_by_role("button", name="Resign the lead").click()
    page.get_by_label("Reason, for the audit").fill("an upgrade")
    confirm(page, "Resign the lead")
    expect(requested).to_contain_text("resign leadership")
    expect(requested).to_contain_text("an upgrade")


@browser_test
def test_controller_shows_verdicts_with_their_why(
    page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    [kept] = busy_cloud.launch()
    add_worker(busy_cloud, "w-1", ec2_instance_id=kept, desired_status="running")
    add_worker(busy_cloud, "w-2", ec2_instance_id="i-0123456789abcdef0", status="stopped", desired_status="stopped")
    controller = control(busy_cloud, DISCOVERY_INITIAL_DELAY="0")
    page.goto(f"{controller.url}/#/discovery")
    verdict = page.locator("#verdicts tbody tr", has_text="w-2")
    expect(verdict).to_contain_text("i-0123456789abcdef0")
    expect(verdict.locator(".chip")).to_have_text(re.compile("orphan|young"))
    expect(verdict).to_contain_text(re.compile("does not exist|may not return"))
    expect(page.get_by_role("region", name="Regions", exact=True)).to_contain_text("us-east-1")
    expect(page.get_by_role("region", name="Untrusted regions")).to_be_visible()
    look(page, "controller-discovery")
    verdict.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("w-2")


@browser_test
def test_controller_masters_a_bad_day(page: Page, control: Callable[..., Controller]) -> None:
    cloud = start("--scenario", "bad-day", "--clock", "real")
    controller = control(cloud, DISCOVERY_INITIAL_DELAY="0")
    page.goto(f"{controller.url}/")
    expect(page.locator(".row")).to_have_count(10)
    expect(page.locator(".tile", has_text="Last sweep")).to_contain_text("10 listed")
    look(page, "bad-day-fleet")
    page.get_by_role("link", name="Queue").click()
    expect(page.locator("#queue tbody tr").first).to_be_visible(timeout=60_000)
    look(page, "bad-day-queue")
    page.get_by_role("link", name="Discovery").click()
    expect(page.get_by_role("region", name="Regions", exact=True)).to_contain_text("us-east-1")
    look(page, "bad-day-discovery")
    page.get_by_role("link", name="Fleet", exact=True).click()
    expect(page.locator(".row", has_text="w-08").locator(".chip").first).to_have_text("running", timeout=60_000)
    page.goto(f"{controller.url}/#/worker/w-08")
    expect(page.locator(".timeline")).to_contain_text("provisioning")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".forecast")).to_contain_text("RECONCILE_INTERVAL")
    look(page, "bad-day-worker")
    controller.stop()
    assert stop(cloud) == 0


@browser_test
def test_controller_shows_its_shards(page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]) -> None:
    controller = control(busy_cloud, LEADER_SHARDS="2")
    page.goto(f"{controller.url}/")
    shards = page.locator(".tile", has_text="Shards")
    expect(shards).to_contain_text("2 held")
    expect(shards).to_contain_text(re.compile(r"0 \(lease renewed .* ago\), 1 \(lease renewed .* ago\)"))


@browser_test
def test_controller_shows_frozen_regions(page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]) -> None:
    add_worker(busy_cloud, "w-1", ec2_instance_id="i-0123456789abcdef0", status="stopped", desired_status="stopped")
    # Neither an instance nor a subnet proves the account.
    regions = {"us-east-1": {"subnet_id": "subnet-0gone", "security_group_ids": ["sg-1"]}}
    settings = {"DISCOVERY_INITIAL_DELAY": "0", "AWS_REGION_CONFIGS": json.dumps(regions)}
    controller = control(busy_cloud, **settings)
    page.goto(f"{controller.url}/")
    expect(page.locator(".tile", has_text="Frozen regions")).to_contain_text("us-east-1")
    text = urllib.request.urlopen(f"{controller.url}/metrics").read().decode()
    assert 'lcm_region_frozen{region="us-east-1"} 1' in text, text
    page.goto(f"{controller.url}/#/discovery")
    regions_card = page.get_by_role("region", name="Regions", exact=True)
    expect(regions_card.locator(".chip", has_text="frozen")).to_be_visible()


@pytest.fixture
def busy_extended_cloud() -> Iterator[FakeCloud]:
    cloud = start("--control-plane", "extended", "--clock", "real", "--delays", "none")
    yield cloud
    assert stop(cloud) == 0


@browser_test
def test_controller_cancels_a_drain(
    page: Page, busy_extended_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    cloud = busy_extended_cloud
    [instance] = cloud.launch(settle=False)
    add_worker(cloud, "w-1", ec2_instance_id=instance, desired_status="running")
    cloud.admin("POST", "console/session", {"id": "s-1", "worker_id": "w-1", "status": "running"})
    controller = control(cloud)
    page.goto(f"{controller.url}/#/worker/w-1")
    chip = page.locator(".title .chip")
    for operation, status in (("Drain", "draining"), ("Cancel the drain", "running")):
        page.get_by_role("button", name=operation, exact=True).click()
        page.get_by_label("Reason, for the audit").fill("a look")
        confirm(page, operation)
        expect(chip).to_have_text(status)


@browser_test
def test_exposed_fake_cloud_asks_for_its_key(page: Page) -> None:
    process = subprocess.Popen(
        [built_program("fake-cloud"), "--json", "--ephemeral", "--expose", "--host", "0.0.0.0", "--clock", "manual"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    started = json.loads(process.stdout.readline())
    url = "http://127.0.0.1:" + started["aws_url"].rsplit(":", 1)[1]
    cloud = FakeCloud(url, process)
    try:
        # From this host, reads need no key, and changes do.
        page.goto(f"{url}/_fake/ui/")
        expect(page.locator("#link")).to_have_text("live")
        before = cloud.now()
        page.get_by_role("button", name="+1 min").click()
        dialog = page.locator("dialog")
        expect(dialog).to_contain_text("asks for its key")
        page.get_by_role("textbox", name="Key").fill(started["admin_key"])
        page.get_by_role("button", name="Continue").click()
        eventually(lambda: (cloud.now() - before).total_seconds() == 60)
        expect(page.locator(".toast.bad")).to_have_count(0)
        assert started["admin_key"] not in page.content()
    finally:
        assert stop(cloud) == 0


@browser_test
def test_standby_shows_who_leads(page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]) -> None:
    add_worker(busy_cloud, "w-1", status="stopped", desired_status="stopped")
    leader = control(busy_cloud, LCM_INSTANCE_ID="first")
    eventually(lambda: json.load(urllib.request.urlopen(f"{leader.url}/admin/stats"))["role"] == "leader")
    standby = control(busy_cloud, LCM_INSTANCE_ID="second")
    page.goto(f"{standby.url}/")
    expect(page.locator("main")).to_contain_text("stands by")
    expect(page.locator("main")).to_contain_text("first leads")
    page.goto(f"{standby.url}/#/worker/w-1")
    expect(page.get_by_role("button", name="Dry run")).to_be_enabled()
    expect(page.get_by_role("button", name="Reconcile now")).to_be_disabled()
    # The standby takes over, and the page shows it without a reload.
    leader.stop()
    expect(page.get_by_role("button", name="Reconcile now")).to_be_enabled(timeout=30_000)


@browser_test
def test_controller_console_mends_its_connection(
    page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    add_worker(busy_cloud, "w-1", status="stopped", desired_status="stopped")
    controller = control(busy_cloud)
    relay = Relay(int(controller.url.rsplit(":", 1)[1]))
    page.goto(f"http://127.0.0.1:{relay.port}/")
    expect(page.locator(".row")).to_have_count(1)
    relay.cut()
    expect(page.get_by_role("alert")).to_contain_text("Connection lost")
    expect(page.locator(".row")).to_have_count(1)
    add_worker(busy_cloud, "w-2", status="stopped", desired_status="stopped")
    relay.mend()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator(".row")).to_have_count(2)
    relay.listener.close()


@browser_test
def test_controller_themes_are_readable(
    browser: Browser, busy_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    [instance] = busy_cloud.launch()
    add_worker(busy_cloud, "w-1", ec2_instance_id=instance, desired_status="running")
    controller = control(busy_cloud)
    for theme in ("light", "dark"):
        context = browser.new_context(color_scheme=theme, viewport={"width": 1440, "height": 860})
        page = context.new_page()
        for view in ("fleet", "queue", "discovery", "worker/w-1"):
            page.goto(f"{controller.url}/#/{view}")
            expect(page.locator("#link")).to_have_text("live")
            page.wait_for_timeout(300)
            texts = page.evaluate(TEXTS)
            assert len(texts) > 10, view
            assert pale(texts) == [], f"{theme} {view}"
            look(page, f"controller-{view.replace('/', '-')}-{theme}")
        context.close()


@browser_test
def test_thousand_workers_of_a_controller_are_smooth(
    page: Page, thousand_stopped: FakeCloud, control: Callable[..., Controller]
) -> None:
    controller = control(thousand_stopped, RECONCILE_INTERVAL="30")
    stats = f"{controller.url}/admin/stats"
    eventually(lambda: json.load(urllib.request.urlopen(stats))["last_sweep"], 120)
    paint, first, weight = first_lanes(page, f"{controller.url}/")
    expect(page.locator("main")).to_contain_text("1,000 workers")
    assert page.locator(".row").count() < 60, "rows outside of the view have no elements"
    median, worst = scroll(page)
    state = first_message(f"{controller.url}/admin/stream")
    print(f"1,000 workers of a controller: {figures(paint, first, weight, state, median, worst)}")
    look(page, "controller-thousand")
    assert_light(paint, first, weight, state, median)
    page.keyboard.press("/")
    page.keyboard.type("w-0777")
    expect(page.locator(".row")).to_have_count(1)
    # One change is one message about one worker.
    thousand_stopped.admin("POST", "console/worker/w-0777", {"status": "failed"})
    expect(page.locator(".row .chip").first).to_have_text("failed")


@browser_test
def test_controller_ends_while_a_console_is_open(
    page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    controller = control(busy_cloud)
    page.goto(f"{controller.url}/")
    expect(page.locator("#link")).to_have_text("live")
    began = time.monotonic()
    controller.process.terminate()
    controller.process.wait(timeout=30)
    assert time.monotonic() - began < 10
    expect(page.get_by_role("alert")).to_contain_text("Connection lost")


@browser_test
def test_exposed_controller_asks_for_its_key(
    page: Page, busy_cloud: FakeCloud, control: Callable[..., Controller]
) -> None:
    controller = control(busy_cloud, ADMIN_HOST="0.0.0.0", ADMIN_EXPOSE="true", ADMIN_KEY="open-sesame")
    assert response(f"{controller.url}/admin/stream")[0] == 401
    assert response(f"{controller.url}/")[0] == 200, "the page contains no data"
    page.goto(f"{controller.url}/")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("asks for its key")
    page.get_by_role("textbox", name="Key").fill("wrong")
    page.get_by_role("button", name="Continue").click()
    expect(dialog).to_contain_text("asks for its key")
    page.get_by_role("textbox", name="Key").fill("open-sesame")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("#link")).to_have_text("live")
    assert "open-sesame" not in page.content()


def test_controller_refuses_other_pages(busy_cloud: FakeCloud, control: Callable[..., Controller]) -> None:
    url = control(busy_cloud).url
    host = url.removeprefix("http://")
    assert response(f"{url}/admin/stream", origin="https://evil.example")[0] == 403
    assert response(f"{url}/admin/stream", host="evil.example")[0] == 403
    for origin, host_header, is_refused in (
        (url, host, False),
        ("https://evil.example", host, True),
        ("http://evil.example", "evil.example", True),
        ("null", host, True),
    ):
        headers = {"origin": origin, "host": host_header, "content-type": "application/json"}
        request = urllib.request.Request(f"{url}/admin/trigger-reconcile", data=b"{}", headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            with error:
                status = error.code
        # A controller that does not lead yet responds with 409.
        assert status == 403 if is_refused else status in (202, 409), origin
