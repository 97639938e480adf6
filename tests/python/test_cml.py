"""The fake CML, called by virl2_client."""

import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import virl2_client.virl2_client
from conftest import built_program
from virl2_client import ClientLibrary, InitializationError
from virl2_client.exceptions import APIError, LabNotFound

VERSIONS = ["2.9.1+build.7", "2.10.0+build.1"]

pytestmark = [
    pytest.mark.timeout(900),
    # virl2_client passes the CA bundle to httpx in a deprecated way.
    pytest.mark.filterwarnings("ignore:`verify=<str>` is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="session")
def binary() -> str:
    """Path of the example that serves one CML and one control plane: `FAKE_CLOUD_LAB` or the build of the workspace."""
    given = os.environ.get("FAKE_CLOUD_LAB")
    if given:
        return given
    return str(built_program("examples/lab"))


@contextmanager
def lab_servers(binary: str, *options: str) -> Iterator[dict[str, str]]:
    """Run the servers during the block. They end with their standard input, even if this process is killed."""
    with subprocess.Popen([binary, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            assert process.wait(timeout=30) == 0


@pytest.fixture(scope="module", params=VERSIONS)
def servers(binary: str, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Servers of each version, with a clock that runs sixty times as fast."""
    with lab_servers(binary, "--version", request.param, "--clock", "x60") as addresses:
        yield addresses | {"version": request.param}


@pytest.fixture(autouse=True)
def closed_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the connections that virl2_client leaves open."""
    sessions: list[httpx.Client] = []
    original = virl2_client.virl2_client.make_session

    def make_session(*arguments: Any, **options: Any) -> httpx.Client:
        sessions.append(original(*arguments, **options))
        return sessions[-1]

    monkeypatch.setattr(virl2_client.virl2_client, "make_session", make_session)
    yield
    for session in sessions:
        session.close()


def connect(servers: dict[str, str], **options: Any) -> Any:
    settings: dict[str, Any] = {"username": "admin", "password": "admin", "ssl_verify": servers["cml_ca_file"]}
    settings |= {"raise_for_auth_failure": True, "convergence_wait_time": 0.05}
    return ClientLibrary(servers["cml_url"], **(settings | options))


def eventually(check: Callable[[], bool]) -> None:
    """Repeat a check until it is true, for at most a minute."""
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, "the check never passed"
        time.sleep(0.05)


def test_client_connects_over_tls(servers: dict[str, str]) -> None:
    client = connect(servers)
    assert client.system_info()["version"] == servers["version"]
    assert client.is_system_ready()
    assert client.get_system_health()["controller"]["valid"]
    [compute] = client.get_system_stats()["computes"].values()
    assert isinstance(compute["stats"]["memory"]["total"], float)
    assert client.system_management.controller.hostname == compute["hostname"]


def test_client_without_the_authority_refuses_the_certificate(servers: dict[str, str]) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(servers, ssl_verify=True)
    assert ssl.create_default_context(cafile=servers["cml_ca_file"]).get_ca_certs()


def test_plain_http_is_served(servers: dict[str, str]) -> None:
    client = connect(servers | {"cml_url": servers["cml_http_url"]}, allow_http=True)
    assert isinstance(client.get_lab_list(), list)


def test_wrong_password_is_refused(servers: dict[str, str]) -> None:
    with pytest.raises(InitializationError, match="check your username and password"):
        connect(servers, password="wrong")


def test_lab_runs_through_its_lifecycle(servers: dict[str, str]) -> None:
    client = connect(servers)
    lab = client.create_lab("a lab")
    node = lab.create_node("r1", "iosv", 10, 20)
    assert lab.id in client.get_lab_list(show_all=True)
    assert [found.id for found in client.find_labs_by_title("a lab")] == [lab.id]
    lab.start(wait=True)
    assert lab.state() == "STARTED"
    lab.sync_states()
    assert node.state == "BOOTED"
    other = connect(servers).join_existing_lab(lab.id)
    assert [(it.label, it.node_definition, it.x) for it in other.nodes()] == [("r1", "iosv", 10)]
    assert other.owner == "admin"
    with pytest.raises(APIError, match="running nodes"):
        lab.wipe()
    lab.stop(wait=True)
    assert lab.state() == "STOPPED"
    lab.wipe(wait=True)
    assert lab.state() == "DEFINED_ON_CORE"
    categories = [event["category"] for event in client.system_management.get_telemetry_events()]
    assert [it for it in categories if it.endswith("_lab")][-3:] == ["start_lab", "stop_lab", "wipe_lab"]
    lab.remove()
    with pytest.raises(LabNotFound):
        other.sync()


def test_license_is_registered_and_returned(servers: dict[str, str]) -> None:
    licensing = connect(servers).licensing
    with pytest.raises(APIError, match=r"already been de-registered"):
        licensing.deregister()
    with pytest.raises(APIError, match="token is not valid"):
        licensing.register("not a token")
    assert licensing.set_product_license("CML_Enterprise")
    assert licensing.set_default_transport()
    assert licensing.status()["registration"]["status"] == "NOT_REGISTERED"
    assert licensing.register_wait("abcDEF-123")
    status = licensing.status()
    assert (status["registration"]["status"], status["authorization"]["status"]) == ("COMPLETED", "IN_COMPLIANCE")
    assert licensing.register_renew()
    assert licensing.deregister() == 204


def test_expired_token_makes_the_client_sign_in_again(binary: str) -> None:
    with lab_servers(binary, "--token-seconds", "120", "--clock", "x60") as servers:
        client = connect(servers)
        first = client.jwtoken
        eventually(lambda: client.get_lab_list() == [] and client.jwtoken != first)
        second = client.jwtoken

        def is_turned_away() -> bool:
            try:
                connect(servers, username="", password="", jwtoken=second)
            except APIError as error:
                assert error.response.status_code == 401
                return True
            return False

        eventually(is_turned_away)


def test_system_boots_step_by_step(binary: str) -> None:
    steps = ["no connection", "bad gateway", "not ready", "ready"]
    seen: list[str] = []

    def look(servers: dict[str, str]) -> str:
        # Over plain HTTP: Python leaks a socket that is reset just before its TLS handshake.
        plain = servers | {"cml_url": servers["cml_http_url"]}
        try:
            return "ready" if connect(plain, allow_http=True).is_system_ready() else "not ready"
        except httpx.TransportError:
            return "no connection"
        except APIError as error:
            assert error.response.status_code == 502
            assert "<html>" in str(error)
            return "bad gateway"

    with lab_servers(binary, "--stage-seconds", "60", "--clock", "x60") as booting:

        def is_up() -> bool:
            seen.append(look(booting))
            return seen[-1] == "ready"

        eventually(is_up)
    assert seen == sorted(seen, key=steps.index), "steps are in order"
    assert len(set(seen)) > 1, "it is not ready at the start"


def test_logout_invalidates_the_token(servers: dict[str, str]) -> None:
    client = connect(servers)
    old = client.jwtoken
    assert client.logout() is True
    assert httpx.get(
        f"{servers['cml_http_url']}/api/v0/labs", headers={"Authorization": f"Bearer {old}"}, trust_env=False
    ).json() == {"code": 401, "description": "Unauthorized: the token is missing, invalid or has expired."}


def test_topology_is_exported_and_imported(servers: dict[str, str]) -> None:
    client = connect(servers)
    lab = client.create_lab("wired")
    one, other = lab.create_node("r1", "iosv"), lab.create_node("r2", "iosv")
    lab.create_node("r3", "iosv", populate_interfaces=True)
    link = lab.connect_two_nodes(one, other)
    assert {link.node_a.label, link.node_b.label} == {"r1", "r2"}
    lab.start(wait=True)
    lab.sync_states()
    assert link.state == "STARTED"
    seen = connect(servers).join_existing_lab(lab.id)
    assert (len(seen.nodes()), len(seen.links()), len(seen.interfaces())) == (3, 1, 7)
    lab.stop(wait=True)
    imported = client.import_lab(lab.download(), title="again")
    assert imported.id != lab.id
    assert (len(imported.nodes()), len(imported.links())) == (3, 1)
    assert imported.title == "again"
    with pytest.raises(APIError, match="cannot be read"):
        client.import_lab("{")
    for each in (lab, imported):
        each.wipe(wait=True)
        each.remove()
