"""Checks that every built crate has a license that `deny.toml` allows, and comes from the registry.

`make lint` runs it, because it needs no other tools and takes a second. It only reads the metadata of crates; `make
deny` runs cargo-deny, which also reads license files and covers all platforms.
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
    """Return whether the allowed licenses satisfy an SPDX expression.

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
    wrong = ValueError(f"{expression!r} is not an SPDX expression")

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
    """Return every crate that is built on this platform."""
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = re.search(r"^host: (\S+)$", version, re.MULTILINE)
    if host is None:
        raise ValueError(f"rustc reports no host: {version}")
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host[1]]
    metadata = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
    packages: list[dict[str, Any]] = json.loads(metadata)["packages"]
    return packages


def problems(packages: list[dict[str, Any]], rules: dict[str, Any]) -> Iterator[str]:
    """Yield one sentence per problem."""
    allowed = frozenset(rules["licenses"]["allow"])
    exceptions = {one["crate"]: frozenset(one["allow"]) for one in rules["licenses"].get("exceptions", [])}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        license = package["license"]
        if license is None:
            yield f"{name} has no license"
        elif not is_allowed(license, allowed | exceptions.get(package["name"], frozenset())):
            yield f"{name} is under {license!r}; accepted: {', '.join(sorted(allowed))}"
        if package["source"] not in {None, REGISTRY}:
            yield f"{name} comes from {package['source']}; accepted: crates.io"


def main() -> int:
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    packages = crates()
    found = list(problems(packages, rules))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{len(packages)} crates, all with licenses that deny.toml allows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
