"""The pure part of the package, as an installed user sees it."""

from pathlib import Path

import lcm
import pytest


def test_the_table_reaches_python_whole() -> None:
    edges = lcm.transitions()
    assert len(edges) == len(set(edges)) > 40
    assert lcm.Transition("stopped", "starting", "commanded", "desired running") in edges
    assert all(edge.kind in {"commanded", "observed"} for edge in edges)


@pytest.mark.parametrize("format", ["mermaid", "dot"])
def test_both_diagrams_show_every_status(format: str) -> None:
    text = lcm.diagram(format)  # type: ignore[arg-type]
    for status in {edge.from_status for edge in lcm.transitions()}:
        assert status in text


def test_backoff_takes_any_count() -> None:
    assert [lcm.backoff_delay(n) for n in (0, 6, 10**30)] == [1.0, 60.0, 60.0]
    with pytest.raises(ValueError, match="retries is -3; accepted: a whole number from 0 up"):
        lcm.backoff_delay(-3)


def test_the_package_is_typed() -> None:
    assert (Path(lcm.__file__).parent / "py.typed").exists()
