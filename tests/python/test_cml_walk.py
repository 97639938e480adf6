"""A walk through the fake CML with virl2_client: labs, nodes, interfaces, links, users, groups and definitions.

The module needs `virl2_client` and pytest alone, so that `make test-peers` runs it with other versions of the client.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from virl2_client import ClientLibrary
from virl2_client.exceptions import APIError

ROOT = Path(__file__).parents[2]

CLIENT = tuple(int(part) for part in version("virl2_client").split(".")[:2])

# A client connects to controllers of its own release and of the two before.
RELEASES: dict[tuple[int, ...], list[str]] = {
    (2, 10): ["2.8.1+build.1", "2.9.1+build.7", "2.10.0+build.1"],
    (2, 9): ["2.7.2+build.1", "2.8.1+build.1", "2.9.1+build.7"],
}
VERSIONS = RELEASES[CLIENT]

ADMIN = "00000000-0000-4000-a000-000000000000"

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@contextmanager
def server(reported: str) -> Iterator[dict[str, str]]:
    program = os.environ.get("FAKE_CLOUD_LAB", str(ROOT / "target" / "debug" / "examples" / "lab"))
    command = [program, "--version", reported, "--clock", "x60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            assert process.wait(timeout=30) == 0


class Cml:
    """One server, and the release that it reports."""

    def __init__(self, addresses: dict[str, str], reported: str) -> None:
        self.url = addresses["cml_http_url"]
        major, minor, _ = reported.split(".", 2)
        self.release = (int(major), int(minor))
        self.clients: list[Any] = []

    def connect(self, username: str = "admin", password: str = "admin") -> Any:
        options: dict[str, Any] = {"allow_http": True, "raise_for_auth_failure": True, "convergence_wait_time": 0.05}
        self.clients.append(ClientLibrary(self.url, username, password, ssl_verify=False, **options))
        return self.clients[-1]

    def close(self) -> None:
        """Close the connections that the clients leave open."""
        for client in self.clients:
            client._session.close()

    def get(self, path: str) -> Any:
        login = {"username": "admin", "password": "admin"}
        with httpx.Client(base_url=f"{self.url}/api/v0", trust_env=False) as session:
            token = session.post("/authenticate", json=login).json()
            return session.get(path, headers={"Authorization": f"Bearer {token}"}).json()


@pytest.fixture(scope="module", params=VERSIONS)
def cml(request: pytest.FixtureRequest) -> Iterator[Cml]:
    with server(request.param) as addresses:
        cml = Cml(addresses, request.param)
        yield cml
        cml.close()


@pytest.fixture
def lab(cml: Cml) -> Iterator[Any]:
    client = cml.connect()
    lab = client.create_lab("walk")
    yield lab
    lab.stop(wait=True)
    lab.wipe(wait=True)
    lab.remove()


def refused(call: Callable[[], Any], status: int, text: str) -> None:
    with pytest.raises((APIError, httpx.HTTPStatusError)) as error:
        call()
    response = error.value.response
    assert (response.status_code, text in response.text) == (status, True), response.text


def test_node_properties_are_changed_one_by_one(lab: Any) -> None:
    node = lab.create_node("r1", "iosv", 10, 20)
    for name, value in {
        "label": "core",
        "x": -5,
        "y": 7,
        "ram": 1024,
        "cpus": 2,
        "cpu_limit": 50,
        "data_volume": 4,
        "boot_disk_size": 16,
        "hide_links": True,
        "image_definition": "iosv-159-3-m8",
        "configuration": "hostname core",
    }.items():
        setattr(node, name, value)
        lab.sync()
        assert getattr(node, name) == value, name
    node.update_parameters({"smbios.bios.vendor": "Lenovo"})
    lab.sync()
    assert node.parameters == {"smbios.bios.vendor": "Lenovo"}
    node.add_tag("area 0")
    lab.sync()
    assert node.tags() == ["area 0"]
    node.remove_tag("area 0")
    lab.sync()
    assert node.tags() == []


def test_unknown_property_and_image_are_refused(cml: Cml, lab: Any) -> None:
    refused(lambda: lab.create_node("r", "iosv", colour="red"), 400, "Unknown field colour")
    refused(lambda: lab.create_node("r", "no such"), 404, "Node definition not found")
    refused(lambda: lab.create_node("r", "iosv", image_definition="asav-9-20-2"), 404, "Image definition not found")
    refused(lambda: lab.create_node("r", "iosv", ram=0), 400, "Invalid value of ram")
    assert lab.nodes() == []


def test_hardware_changes_only_before_the_first_start(lab: Any) -> None:
    node = lab.create_node("r1", "iosv")
    node.start(wait=True)
    node.stop(wait=True)

    def change() -> None:
        node.ram = 2048

    refused(change, 400, "before the node is wiped")
    node.x = 99
    node.wipe(wait=True)
    change()
    lab.sync()
    assert (node.ram, node.x) == (2048, 99)


def test_configuration_has_named_files(lab: Any) -> None:
    node = lab.create_node("r1", "iosv", configuration="hostname r1")
    lab.sync()
    assert node.configuration == "hostname r1"
    assert node.configuration_files == [{"name": "ios_config.txt", "content": "hostname r1"}]
    node.configuration = [{"name": "Main", "content": "a"}, {"name": "other", "content": "b"}]
    node.configuration = {"name": "other", "content": "c"}
    lab.sync()
    assert {file["name"]: file["content"] for file in node.configuration_files} == {"ios_config.txt": "a", "other": "c"}


def test_configuration_is_extracted_from_a_booted_node(lab: Any) -> None:
    node = lab.create_node("r1", "iosv")
    refused(node.extract_configuration, 400, "not booted")
    node.start(wait=True)
    node.extract_configuration()
    lab.sync()
    assert node.configuration == "hostname r1\n"
    switch = lab.create_node("s", "unmanaged_switch")
    switch.start(wait=True)
    refused(switch.extract_configuration, 400, "not supported")


def test_running_node_has_operational_data(cml: Cml, lab: Any) -> None:
    node = lab.create_node("r1", "iosv", populate_interfaces=True)
    node.sync_operational()
    assert (node._operational or {}).get("compute_id") is None
    node.start(wait=True)
    node.sync_operational()
    operational = node.operational if hasattr(type(node), "operational") else node._operational
    assert (operational["ram"], operational["cpus"], operational["image_definition"]) == (768, 1, "iosv-159-3-m8")
    assert operational["compute_id"] in cml.connect().system_management.compute_hosts
    assert [console["device_number"] for console in operational["serial_consoles"]] == [0, 1]
    assert node.console_key() == operational["serial_consoles"][0]["console_key"]
    lab.sync()
    node.sync_interface_operational()
    physical = [interface for interface in node.interfaces() if interface.physical]
    assert all(interface._operational["mac_address"].startswith("52:54:00") for interface in physical)
    [shown] = cml.get(f"/labs/{lab.id}/nodes?data=true&operational=true")
    # Before 2.10, operational data is on the node as well.
    assert ("compute_id" in shown, "priority" in shown) == (cml.release < (2, 10), cml.release >= (2, 10))


def test_interfaces_are_named_by_their_definition(lab: Any) -> None:
    node = lab.create_node("r1", "iosv", populate_interfaces=True)
    lab.sync()
    assert [it.label for it in node.interfaces()] == ["Loopback0", *(f"GigabitEthernet0/{slot}" for slot in range(4))]
    added = lab.create_interface(node, 5)
    assert (added.label, added.slot) == ("GigabitEthernet0/5", 5)
    refused(lambda: lab.create_interface(node, 16), 400, "at most 16 interfaces")
    refused(lambda: lab.create_interface(node, 2), 400, "in use")
    added.remove()
    lab.sync()
    assert len(node.interfaces()) == 6


def test_mac_address_is_set_while_the_node_is_off(lab: Any) -> None:
    node = lab.create_node("r1", "iosv", populate_interfaces=True)
    lab.sync()
    interface = node.get_interface_by_slot(0)
    interface.mac_address = "52:54:00:aa:bb:cc"
    lab.sync()
    assert interface.mac_address == "52:54:00:aa:bb:cc"
    node.start(wait=True)

    def change() -> None:
        interface.mac_address = None

    refused(change, 400, "Node is running")
    node.sync_interface_operational()
    assert interface._operational["mac_address"] == "52:54:00:aa:bb:cc"
    interface.shutdown()
    lab.sync_states()
    assert interface.state == "STOPPED"
    interface.bring_up()
    lab.sync_states()
    assert interface.state == "STARTED"


def test_links_are_conditioned(lab: Any) -> None:
    one, other = (lab.create_node(name, "iosv") for name in ("r1", "r2"))
    link = lab.connect_two_nodes(one, other)
    link.set_condition(512, 50, 5, 1.5)
    shown = link.get_condition()
    assert (shown["bandwidth"], shown["latency"], shown["jitter"], shown["loss"]) == (512, 50, 5, 1.5)
    link.set_condition_by_name("dsl1")
    assert link.get_condition()["latency"] == 70
    link.remove_condition()
    assert not link.get_condition().get("latency")
    link.stop(wait=True)
    lab.sync_states()
    assert link.state == "STOPPED"
    link.start(wait=True)


def test_statistics_and_addresses_are_synchronized(lab: Any) -> None:
    one, other = (lab.create_node(name, "iosv") for name in ("r1", "r2"))
    link = lab.connect_two_nodes(one, other)
    lab.start(wait=True)
    lab.sync_statistics()
    assert (one.cpu_usage, link.readpackets) == (3.5, 0)
    lab.sync_layer3_addresses()
    one.sync_layer3_addresses()
    lab.sync_operational()
    lab.sync_events()
    assert lab.has_converged() and link.has_converged() and one.has_converged()


def test_pyats_testbed_lists_devices_with_a_cli(lab: Any) -> None:
    lab.create_node("r1", "iosv", populate_interfaces=True)
    lab.create_node("s1", "unmanaged_switch")
    testbed = lab.get_pyats_testbed()
    assert "r1:" in testbed and "os: ios" in testbed and "s1:" not in testbed


def test_build_configurations_fills_empty_ones(cml: Cml, lab: Any) -> None:
    node = lab.create_node("r1", "iosv")
    given = lab.create_node("r2", "iosv", configuration="hostname given")
    # The client calls the path of its own release.
    cml.get(f"/labs/{lab.id}/bootstrap" if cml.release >= (2, 9) else f"/build_configurations?lab_id={lab.id}")
    lab.sync()
    assert (node.configuration, given.configuration) == ("hostname r1\n", "hostname given")


def test_lab_properties_are_changed(cml: Cml, lab: Any) -> None:
    lab.title, lab.description, lab.notes = "new title", "text", "*notes*"
    shown = cml.get(f"/labs/{lab.id}")
    assert (shown["lab_title"], shown["lab_description"], shown["lab_notes"]) == ("new title", "text", "*notes*")
    assert shown["effective_permissions"] == ["lab_admin", "lab_edit", "lab_exec", "lab_view"]
    assert ("autostart" in shown) == (cml.release >= (2, 10))
    lab.sync()
    assert lab.title == "new title"


def test_autostart_is_configured_from_2_10_on(cml: Cml, lab: Any) -> None:
    def change() -> None:
        lab._session.patch(f"labs/{lab.id}", json={"autostart": {"enabled": True, "priority": 7}})

    if cml.release < (2, 10):
        refused(change, 400, "Unknown field autostart")
        return
    change()
    assert cml.get(f"/labs/{lab.id}")["autostart"] == {"enabled": True, "priority": 7, "delay": None}


def test_annotations_are_drawn_and_removed(lab: Any) -> None:
    for kind in ("text", "rectangle", "ellipse", "line"):
        drawn = lab.create_annotation(kind, x1=1, y1=2)
        drawn.color = "#FF0000FF"
        lab.sync()
        assert lab.get_annotation_by_id(drawn.id).color == "#FF0000FF"
        lab.remove_annotation(drawn)
    lab.sync()
    assert lab.annotations() == []


def test_tags_have_smart_annotations(lab: Any) -> None:
    node = lab.create_node("r1", "iosv")
    node.add_tag("dmz")
    lab.sync()
    [smart] = lab.smart_annotations()
    smart.padding = 50
    lab.sync()
    assert (smart.tag, smart.padding) == ("dmz", 50)


def test_topology_survives_a_download(cml: Cml, lab: Any) -> None:
    one, other = (lab.create_node(name, "iosv", configuration=f"hostname {name}") for name in ("r1", "r2"))
    lab.connect_two_nodes(one, other).set_condition(100, 10, 1, 0)
    lab.create_annotation("text", text_content="hello")
    one.get_interface_by_slot(0).mac_address = "52:54:00:00:00:01"
    imported = cml.connect().import_lab(lab.download(), title="again")
    try:
        assert sorted(node.configuration for node in imported.nodes()) == ["hostname r1", "hostname r2"]
        [link] = imported.links()
        assert link.get_condition()["bandwidth"] == 100
        assert [drawn.text_content for drawn in imported.annotations()] == ["hello"]
        assert "52:54:00:00:00:01" in [interface.mac_address for interface in imported.interfaces()]
        format_ = {(2, 7): "0.2.2", (2, 8): "0.3.0", (2, 9): "0.3.0", (2, 10): "0.3.1"}[cml.release]
        assert cml.get(f"/labs/{lab.id}/topology")["lab"]["version"] == format_
    finally:
        imported.remove()


def test_users_are_created_changed_and_deleted(cml: Cml) -> None:
    client = cml.connect()
    users = client.user_management
    user = users.create_user("ada", "secret", fullname="Ada", email="ada@example.com", description="d")
    try:
        assert users.user_id("ada") == user["id"]
        assert [it["username"] for it in users.users()] == ["ada", "admin"] or len(users.users()) == 2
        users.update_user(user["id"], fullname="Ada L.", password_dict={"old_password": "", "new_password": "new"})
        shown = users.get_user(user["id"])
        assert (shown["fullname"], shown["admin"], shown["email"]) == ("Ada L.", False, "ada@example.com")
        assert (shown["opt_in"], "auth_source" in shown) == (
            ("unset", True) if cml.release >= (2, 10) else (None, False)
        )
        assert ("associations" in shown) == (cml.release >= (2, 9))
        refused(lambda: users.create_user("ada", "other"), 409, "already exists")
        own = cml.connect("ada", "new")
        refused(lambda: own.user_management.create_user("eve", "x"), 403, "admin rights")
    finally:
        users.delete_user(user["id"])
    refused(lambda: users.get_user(user["id"]), 404, "User not found")
    refused(lambda: users.delete_user(ADMIN), 400, "built-in admin")


def test_groups_share_labs(cml: Cml, lab: Any) -> None:
    client = cml.connect()
    users, groups = client.user_management, client.group_management
    user = users.create_user("bob", "secret")
    own = cml.connect("bob", "secret")
    assert own.get_lab_list() == []
    refused(lambda: own._session.get(f"labs/{lab.id}"), 404, "Lab not found")
    group = groups.create_group("class", description="d", members=[user["id"]])
    try:
        assert groups.group_id("class") == group["id"]
        assert groups.group_members(group["id"]) == [user["id"]]
        if cml.release >= (2, 9) and CLIENT >= (2, 9):
            shared = [{"id": lab.id, "permissions": ["lab_view"]}]
            groups.update_associations(group["id"], shared)
            assert groups.associations(group["id"]) == shared
            assert lab.associations["groups"] == [{"id": group["id"], "permissions": ["lab_view"]}]
        else:
            groups.update_group(group["id"], labs=[{"id": lab.id, "permission": "read_only"}])
        assert own.get_lab_list() == [lab.id]
        shared_lab = own.join_existing_lab(lab.id)
        refused(lambda: shared_lab.create_node("r", "iosv"), 403, "permission")
        refused(lambda: groups.create_group("class"), 409, "already exists")
    finally:
        groups.delete_group(group["id"])
        users.delete_user(user["id"])
    assert groups.groups() == []


def test_definitions_are_listed_uploaded_and_removed(cml: Cml) -> None:
    definitions = cml.connect().definitions
    by_id = {definition["id"]: definition for definition in definitions.node_definitions()}
    assert by_id["iosv"]["sim"]["linux_native"]["ram"] == 768
    assert ("iol-xe" in by_id, "frr" in by_id) == (cml.release >= (2, 8), cml.release >= (2, 9))
    assert [image["id"] for image in definitions.image_definitions_for_node_definition("iosv")] == ["iosv-159-3-m8"]
    mine = definitions.download_node_definition("iosv").replace("id: iosv\n", "id: mine\n", 1)
    refused(lambda: definitions.upload_node_definition(mine.replace("id: mine\n", "id: iosv\n", 1)), 409, "exists")
    definitions.upload_node_definition(mine)
    definitions.set_node_definition_read_only("mine", False)
    definitions.upload_node_definition(mine, update=True)
    image = {"id": "mine-1", "node_definition_id": "mine", "label": "Mine", "disk_image": "mine.qcow2"}
    definitions.upload_image_definition(image)
    assert "mine-1" in [it["id"] for it in definitions.image_definitions()]
    definitions.set_node_definition_read_only("mine", False)
    refused(lambda: definitions.remove_node_definition("mine"), 400, "has image definitions")
    definitions.remove_image_definition("mine-1")
    definitions.remove_node_definition("mine")
    refused(lambda: definitions.remove_node_definition("iosv"), 403, "read-only")
    refused(lambda: definitions.download_image_definition("mine-1"), 404, "Image definition not found")


def test_image_files_are_uploaded_and_removed(cml: Cml, tmp_path: Path) -> None:
    definitions = cml.connect().definitions
    file = tmp_path / "tiny.qcow2"
    file.write_bytes(b"image")
    definitions.upload_image_file(file)
    assert definitions.download_image_file_list() == ["tiny.qcow2"]
    definitions.remove_dropfolder_image("tiny.qcow2")
    assert definitions.download_image_file_list() == []


def test_diagnostics_describe_the_running_labs(cml: Cml, lab: Any) -> None:
    node = lab.create_node("r1", "iosv")
    node.start(wait=True)
    if cml.release >= (2, 9):
        labs, computes = (cml.get(f"/diagnostics/{category}") for category in ("labs", "computes"))
    else:
        everything = cml.get("/diagnostics")
        labs, computes = everything["labs"], everything["computes"]
    assert labs[lab.id]["nodes"][node.id]["state"] == "BOOTED"
    [compute] = computes.values()
    assert list(compute["nodes"]) == [node.id]
    if cml.release >= (2, 9) and CLIENT >= (2, 9):
        shown = cml.connect().get_diagnostics()
        assert all("error" not in value for value in shown.values() if isinstance(value, dict))


def test_system_settings_are_kept(cml: Cml) -> None:
    client = cml.connect()
    system = client.system_management
    [nat] = [it for it in system.get_external_connectors() if it["device_name"] == "virbr0"]
    assert system.update_external_connector(nat["id"], {"label": "Internet"})["label"] == "Internet"
    assert len(system.get_external_connectors(sync=True)) == 2
    system.set_web_session_timeout(600)
    assert system.get_web_session_timeout() == 600
    system.maintenance_mode = True
    assert system.maintenance_mode is True
    system.maintenance_mode = False
    assert system.set_new_compute_host_state("ONLINE") == "ONLINE"
    system.controller.admission_state = "ONLINE"
    system.sync_compute_hosts()
    assert system.controller.admission_state == "ONLINE"
    system.controller.admission_state = "READY"
    notice = client._session.post("system/notices", json={"level": "INFO", "label": "hello"}).json()
    system.sync_system_notices()
    shown = system.system_notices[notice["id"]]
    shown.update({"content": "text"})
    system.maintenance_notice = shown
    system.sync_system_notices()
    assert system.maintenance_notice.content == "text"
    shown.remove()
    system.sync_system_notices()
    assert system.maintenance_notice is None


def test_resource_pools_are_created_and_removed(cml: Cml) -> None:
    pools = cml.connect().resource_pool_management
    template = pools.create_resource_pool("template", licenses=10)
    [own] = pools.create_resource_pools("own", [ADMIN], template=template.id)
    own.ram = 4096
    pools.sync_resource_pools()
    assert (own.ram, own.users, own.template) == (4096, [ADMIN], template.id)
    assert (own.get_usage().limit.ram, own.get_usage().usage.licenses) == (4096, 0)
    own.remove()
    template.remove()
    pools.sync_resource_pools()
    assert pools.resource_pools == {}


def test_license_covers_as_many_nodes_as_requested(cml: Cml) -> None:
    client = cml.connect()
    features = client.licensing.status()["features"]
    [nodes] = [feature["id"] for feature in features if "NODE_COUNT" in feature["id"]]

    def change(count: int) -> None:
        client._session.patch("licensing/features", json=[{"id": nodes, "count": count}])

    change(40)
    assert {feature["id"]: feature["in_use"] for feature in client.licensing.status()["features"]}[nodes] == 40
    refused(lambda: change(301), 400, "Invalid count")
    change(0)


def test_telemetry_times_end_with_z(cml: Cml, lab: Any) -> None:
    events = cml.get("/telemetry/events")
    assert events and all(event["timestamp"].endswith("Z") for event in events)
    opt_in = cml.get("/telemetry")["opt_in"]
    assert opt_in == ("unset" if cml.release >= (2, 10) else None)


def test_packet_capture_starts_and_stops(cml: Cml, lab: Any) -> None:
    one, other = (lab.create_node(name, "iosv") for name in ("r1", "r2"))
    link = lab.connect_two_nodes(one, other)
    lab.start(wait=True)
    capture = f"labs/{lab.id}/links/{link.id}/capture"

    def put(action: str, **options: Any) -> None:
        lab._session.put(f"{capture}/{action}", json=options)

    assert cml.get(f"/{capture}/status")["starttime"] is None
    refused(lambda: put("start", encap="ethernet"), 400, "maxpackets or maxtime")
    put("start", encap="ethernet", maxpackets=100)
    assert cml.get(f"/{capture}/status")["config"]["maxpackets"] == 100
    assert cml.get(f"/pcap/{link.id}/packets") == []
    put("stop")
    refused(lambda: put("stop"), 400, "No packet capture runs")


def test_lab_repositories_are_listed_from_2_10_on(cml: Cml) -> None:
    if cml.release < (2, 10):
        assert cml.get("/lab_repos")["code"] == 404
        return
    client = cml.connect()
    made = client._session.post("lab_repos", json={"url": "https://example.com/labs.git", "name": "labs"}).json()
    assert [it["id"] for it in cml.get("/lab_repos")] == [made["id"]]
    client._session.delete(f"lab_repos/{made['id']}")
    assert cml.get("/lab_repos") == []
