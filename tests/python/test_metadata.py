"""Packages have the metadata of published ones."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import lcm
import pytest

ROOT = Path(__file__).parents[2]
CRATES = ("fake-cloud", "lcm-cli", "lcm-console", "lcm-sdk")


def toml(file: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / file).read_text(encoding="utf-8"))


WORKSPACE = toml("Cargo.toml")["workspace"]
PROJECT = toml("pyproject.toml")["project"]


@pytest.mark.parametrize("crate", CRATES)
def test_crate_describes_itself(crate: str) -> None:
    package = toml(f"{crate}/Cargo.toml")["package"]
    assert package["documentation"] == f"https://docs.rs/{crate}" and package.get("publish") is None
    assert len(package["description"]) > 30 and package["categories"] and 3 <= len(package["keywords"]) <= 5
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,19}", keyword) for keyword in package["keywords"])
    for inherited in ("license", "repository", "homepage", "version", "edition", "rust-version"):
        assert package[inherited] == {"workspace": True}


@pytest.mark.parametrize("crate", CRATES)
def test_crate_contains_its_license(crate: str) -> None:
    assert (ROOT / crate / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize("crate", CRATES)
def test_crate_is_required_in_the_version_of_the_workspace(crate: str) -> None:
    assert WORKSPACE["dependencies"][crate]["version"] == WORKSPACE["package"]["version"]


@pytest.mark.parametrize("readme", [*(f"{crate}/README.md" for crate in CRATES), PROJECT["readme"]])
def test_readme_of_a_package_links_to_addresses_only(readme: str) -> None:
    text = (ROOT / readme).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)|<(http[^>]+)>", text)
    assert links and all((inline or plain).startswith("https://") for inline, plain in links)


def test_only_crates_for_users_are_published() -> None:
    private = {
        member for member in WORKSPACE["members"] if toml(f"{member}/Cargo.toml")["package"].get("publish") is False
    }
    assert set(WORKSPACE["members"]) - private == set(CRATES)


def test_python_versions_are_consistent() -> None:
    versions = [one.rsplit(" ", 1)[1] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert versions == sorted(versions, key=lambda version: int(version.split(".")[1]))


def test_version_is_that_of_the_workspace() -> None:
    assert lcm.__version__ == metadata.version("lcm-sdk") == WORKSPACE["package"]["version"]


def test_show_versions_names_the_package_and_its_companions(capsys: pytest.CaptureFixture[str]) -> None:
    lcm.show_versions()
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["lcm-sdk"] == lcm.__version__ and shown["pydantic"] == metadata.version("pydantic")


def test_crates_can_be_packed() -> None:
    for crate in CRATES:
        command = ["cargo", "package", "--locked", "--offline", "--allow-dirty", "--list", "--package", crate]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
        files = set(listed.stdout.splitlines())
        assert {"Cargo.toml", "LICENSE", "README.md", "src/lib.rs"} <= files and "warning" not in listed.stderr
