"""Deployment files agree with the program: IAM actions, settings, paths, grace periods and make targets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
AWS = ROOT / "lcm-sdk" / "src" / "providers" / "aws"
SETTINGS = set(re.findall(r"`([A-Z][A-Z_]+)`", (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")))
SHUTDOWN_GRACE = 30
POLICIES = sorted((DEPLOY / "iam").glob("*.json"))
# RunInstances with tags needs it; the code never calls it.
IMPLIED = {"ec2:CreateTags"}


def documents(folder: str) -> dict[str, Any]:
    """Return the parsed YAML files of a folder by their names."""
    return {file.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in (DEPLOY / folder).glob("*.yaml")}


def called_actions() -> set[str]:
    """Return every AWS action that the providers call, from the table that each call names."""
    table = (AWS / "api.rs").read_text(encoding="utf-8")
    names, services = table.split("const fn name")[1].split("const fn access")[0].split("const fn service")
    named = dict(re.findall(r'Self::(\w+) => "(\w+)"', names))
    actions = set()
    for variants, service in re.findall(r'([\s|\w:]+) => "(\w+)"', services):
        actions |= {f"{service}:{named[variant]}" for variant in re.findall(r"Self::(\w+)", variants)}
    assert actions and len(actions) == len(named)
    return actions


def statements(policy: Path) -> list[dict[str, Any]]:
    document = json.loads(policy.read_text(encoding="utf-8"))
    assert document["Version"] == "2012-10-17"
    return list(document["Statement"])


def allowed_actions(policy: Path) -> Iterator[str]:
    for statement in statements(policy):
        assert statement["Effect"] == "Allow"
        actions = statement["Action"]
        yield from [actions] if isinstance(actions, str) else actions


def test_policies_allow_the_called_actions_and_no_others() -> None:
    allowed = {action for policy in POLICIES for action in allowed_actions(policy)}
    assert allowed - IMPLIED == called_actions() and allowed >= IMPLIED


def test_no_other_operation_of_the_clients_is_called() -> None:
    sources = [file.read_text(encoding="utf-8").split("#[cfg(test)]")[0] for file in AWS.glob("*.rs")]
    verbs = (
        "allocate|assume|attach|cancel|create|delete|describe|detach|get|list|modify|put|reboot|request|reset|run|start"
    )
    called = set(re.findall(rf"\.((?:{verbs}|stop|terminate)_\w+)\(\)", "\n".join(sources)))
    words = {re.sub(r"(?<!^)([A-Z])", r"_\1", action.split(":")[1]).lower() for action in called_actions()}
    assert called == words


def test_changes_are_limited_to_managed_instances() -> None:
    source = (ROOT / "lcm-sdk" / "src" / "lifecycle" / "instance.rs").read_text(encoding="utf-8")
    [manager] = re.findall(r'MANAGED_BY: &str = "(.*?)"', source)
    [change] = statements(DEPLOY / "iam" / "change.json")
    assert change["Condition"] == {"StringEquals": {"aws:ResourceTag/lcm:managed_by": manager}}
    launch = statements(DEPLOY / "iam" / "launch.json")[0]
    assert launch["Condition"]["StringEquals"] == {"aws:RequestTag/lcm:managed_by": manager}


@pytest.mark.parametrize("file", ["example.env", "kubernetes/settings.env"])
def test_environment_files_name_settings(file: str) -> None:
    lines = (DEPLOY / file).read_text(encoding="utf-8").splitlines()
    names = [line.split("=", 1)[0] for line in lines if line and not line.startswith("#")]
    assert names and set(names) <= SETTINGS


def container() -> dict[str, Any]:
    [found] = documents("kubernetes")["deployment.yaml"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_kubernetes_lists_every_manifest() -> None:
    files = documents("kubernetes")
    listed = files.pop("kustomization.yaml")["resources"]
    assert sorted(listed) == sorted(files)


def test_kubernetes_environment_names_settings() -> None:
    assert {variable["name"] for variable in container()["env"]} <= SETTINGS


def test_kubernetes_probes_are_served() -> None:
    handlers = (ROOT / "lcm-sdk" / "src" / "admin" / "handlers.rs").read_text(encoding="utf-8")
    for probe in ("livenessProbe", "readinessProbe"):
        assert f'"{container()[probe]["httpGet"]["path"]}"' in handlers


def test_kubernetes_runs_two_without_privileges() -> None:
    deployment = documents("kubernetes")["deployment.yaml"]["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] == 2
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_kubernetes_selects_the_pods_of_the_deployment() -> None:
    files = documents("kubernetes")
    labels = files["deployment.yaml"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        files["deployment.yaml"]["spec"]["selector"]["matchLabels"],
        files["service.yaml"]["spec"]["selector"],
        files["disruption-budget.yaml"]["spec"]["selector"]["matchLabels"],
        files["network-policy.yaml"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels


def test_stop_waits_for_reconciles_in_progress() -> None:
    table = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert f"| `shutdown_grace` | `LCM_SHUTDOWN_GRACE` | `SHUTDOWN_GRACE` | `{SHUTDOWN_GRACE}` |" in table
    unit = (DEPLOY / "systemd" / "worker-controller.service").read_text(encoding="utf-8")
    pod = documents("kubernetes")["deployment.yaml"]["spec"]["template"]["spec"]
    [compose] = re.findall(
        r"(\d+)s", documents("")["compose.yaml"]["services"]["worker-controller"]["stop_grace_period"]
    )
    [systemd] = re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert min(int(compose), int(systemd), pod["terminationGracePeriodSeconds"]) > SHUTDOWN_GRACE


def test_compose_keeps_ports_on_loopback() -> None:
    services = documents("")["compose.yaml"]["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_container_starts_from_scratch_without_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    last = [line for line in lines if line.startswith("FROM ")][-1]
    assert last == "FROM scratch" and "USER 65532:65532" in lines
    variables = {one.split("=")[0] for line in lines if line.startswith("ENV ") for one in line.split()[1:]}
    assert variables <= SETTINGS


def test_container_copies_what_make_programs_builds() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    copied = [line.split()[-2] for line in lines if line.startswith("COPY ")]
    [default] = [line.split("=")[1] for line in lines if line.startswith("ARG PROGRAM=")]
    assert copied == ["dist/ca-certificates.crt", "dist/bin/${PROGRAM}", "dist/tmp"]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[-4:] == ["*", "!dist/bin", "!dist/ca-certificates.crt", "!dist/tmp"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nprograms: ")[1].split("\n\n")[0]
    assert f"target/release/{default} " in recipe and recipe.count("dist/ca-certificates.crt") == 1
    build = documents("")["compose.yaml"]["services"]["worker-controller"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT and build["dockerfile"] == "deploy/Containerfile"


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_make_targets(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = workflow.read_text(encoding="utf-8")
    called = set(re.findall(r"run: make ([a-z-]+)", text)) | set(re.findall(r"target: ([a-z-]+)", text))
    assert called and called <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_pin_actions_and_permissions(workflow: Path) -> None:
    document = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert document["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in used)
