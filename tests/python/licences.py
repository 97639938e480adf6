"""Whether every crate that is built here has a licence that `deny.toml` allows, and comes from the registry.

`make lint` runs it, because it needs nothing that is not there already and takes a second. It reads what crates say of
themselves and nothing else: `make deny` asks cargo-deny, which also reads licence files and looks at all platforms.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Whether an SPDX expression can be met with licences that are allowed.

    >>> is_allowed("GPL-3.0 OR (MIT AND ISC)", frozenset({"MIT", "ISC"}))
    True
    >>> is_allowed("MIT AND GPL-3.0", frozenset({"MIT"}))
    False
    >>> is_allowed("Unlicense/MIT", frozenset({"MIT"}))
    True
    >>> is_allowed("Apache-2.0 WITH LLVM-exception", frozenset({"Apache-2.0"}))
    False
    """
    tokens = [*re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR ")), ""]
    wrong = ValueError(f"{expression!r} is no SPDX expression")

    def either() -> bool:
        found = both()
        while tokens[0] == "OR":
            tokens.pop(0)
            found = both() or found
        return found

    def both() -> bool:
        found = one()
        while tokens[0] == "AND":
            tokens.pop(0)
            found = one() and found
        return found

    def one() -> bool:
        word = tokens.pop(0)
        if word == "(":
            found = either()
            if tokens[0] != ")":
                raise wrong
            tokens.pop(0)
            return found
        if word in {"", ")", "AND", "OR", "WITH"}:
            raise wrong
        if tokens[0] == "WITH":
            tokens.pop(0)
            word = f"{word} WITH {tokens.pop(0)}"
        return word in allowed

    found = either()
    if tokens != [""]:
        raise wrong
    return found


def crates() -> list[dict[str, Any]]:
    """Every crate that is built on this platform."""
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = re.search(r"^host: (\S+)$", version, re.MULTILINE)
    if host is None:
        raise ValueError(f"rustc does not say what it builds for: {version}")
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host[1]]
    told = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
    packages: list[dict[str, Any]] = json.loads(told)["packages"]
    return packages


def problems(packages: list[dict[str, Any]], rules: dict[str, Any]) -> Iterator[str]:
    """What is wrong with them, a sentence each."""
    allowed = frozenset(rules["licenses"]["allow"])
    exceptions = {one["crate"]: frozenset(one["allow"]) for one in rules["licenses"].get("exceptions", [])}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        licence = package["license"]
        if licence is None:
            yield f"{name} names no licence"
        elif not is_allowed(licence, allowed | exceptions.get(package["name"], frozenset())):
            yield f"{name} is under {licence!r}; accepted: {', '.join(sorted(allowed))}"
        if package["source"] not in {None, REGISTRY}:
            yield f"{name} comes from {package['source']}; accepted: crates.io"


def main() -> int:
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    packages = crates()
    found = list(problems(packages, rules))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{len(packages)} crates, all under licences that deny.toml allows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
