"""Pure functions of the installed package."""

from pathlib import Path

import lcm
import pytest


def test_transitions_include_the_whole_table() -> None:
    edges = lcm.transitions()
    assert len(edges) == len(set(edges)) > 40
    assert lcm.Transition("stopped", "starting", "commanded", "desired running") in edges
    assert all(edge.kind in {"commanded", "observed"} for edge in edges)


@pytest.mark.parametrize("format", ["mermaid", "dot"])
def test_diagram_has_every_status(format: str) -> None:
    text = lcm.diagram(format)  # type: ignore[arg-type]
    for status in {edge.from_status for edge in lcm.transitions()}:
        assert status in text


def test_backoff_accepts_any_count() -> None:
    assert [lcm.backoff_delay(n) for n in (0, 6, 10**30)] == [1.0, 60.0, 60.0]
    with pytest.raises(ValueError, match="retries is -3; accepted: a whole number from 0 up"):
        lcm.backoff_delay(-3)


def test_package_has_a_py_typed_marker() -> None:
    assert (Path(lcm.__file__).parent / "py.typed").exists()
