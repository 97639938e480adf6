"""The license check reports rejected licenses and sources."""

from typing import Any

import pytest
from licenses import REGISTRY, is_allowed, problems

RULES = {"licenses": {"allow": ["MIT", "ISC"], "exceptions": [{"crate": "odd", "allow": ["BlueOak-1.0.0"]}]}}


def crate(name: str, license: str | None, source: str | None = REGISTRY) -> dict[str, Any]:
    return {"name": name, "version": "1.0.0", "license": license, "source": source}


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        (crate("fine", "GPL-3.0-only OR (MIT AND ISC)"), None),
        (crate("ours", "MIT", source=None), None),
        (crate("odd", "BlueOak-1.0.0"), None),
        (crate("copyleft", "GPL-3.0-only"), "copyleft 1.0.0 is under 'GPL-3.0-only'; accepted: ISC, MIT"),
        (crate("other", "BlueOak-1.0.0"), "other 1.0.0 is under 'BlueOak-1.0.0'; accepted: ISC, MIT"),
        (crate("silent", None), "silent 1.0.0 has no license"),
        (crate("fork", "MIT", "git+https://example.com/x"), "comes from git+https://example.com/x"),
    ],
)
def test_rejected_crate_is_named(package: dict[str, Any], problem: str | None) -> None:
    found = list(problems([package], RULES))
    assert len(found) == (0 if problem is None else 1)
    assert problem is None or problem in found[0]


@pytest.mark.parametrize("broken", ["MIT AND", "(MIT", "MIT)", "MIT ISC", "(", "AND"])
def test_invalid_spdx_expression_is_an_error(broken: str) -> None:
    with pytest.raises(ValueError, match="not an SPDX expression"):
        is_allowed(broken, frozenset({"MIT", "ISC"}))
