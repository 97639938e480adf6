"""Plots draw what they are given, keep matplotlib's own style, and need matplotlib only when they are imported."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import lcm
import matplotlib
import pytest
from lcm import plot
from lcm.palette import color
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

BEGAN = datetime(2026, 2, 6, 8, 0, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def off_screen() -> None:
    matplotlib.use("Agg")


def texts(figure: Figure) -> list[str]:
    """Return every text of a figure."""
    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(Text)]


def diary() -> plot.Diary:
    written = plot.Diary(BEGAN)
    for minute, (one, other) in enumerate([("pending", "running"), ("running", "running"), ("running", "stopped")]):
        written.note(BEGAN + timedelta(minutes=10 * minute), **{"w-1": one, "w-2": other})
    return written


def test_state_machine_shows_every_status_and_label() -> None:
    shown = texts(plot.state_machine(title="The lifecycle"))
    commanded = [edge for edge in lcm.transitions() if edge.kind == "commanded"]
    assert {edge.from_status for edge in commanded} | {edge.when for edge in commanded} <= set(shown)
    assert "The lifecycle" in shown


def test_state_machine_draws_the_given_transitions() -> None:
    edges = [edge for edge in lcm.transitions() if edge.from_status == "draining"]
    shown = texts(plot.state_machine(edges))
    assert "draining" in shown and "pending" not in shown


def test_timeline_has_a_lane_for_each_worker() -> None:
    figure = plot.timeline(diary(), title="Two workers", marks={10: "drained"}, calls=[(5, "StopInstances")])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["w-1", "w-2", "EC2 calls"]
    assert {"Two workers", "drained", "StopInstances", "running"} <= set(texts(figure))
    shades = [to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert shades == [color(word) for word in ("pending", "running", "running", "stopped")]


def test_fleet_shows_counts_workers_and_controllers() -> None:
    seen = [(0.0, Counter(pending=2)), (10.0, Counter(running=2)), (20.0, Counter(running=1, stopped=1))]
    controllers = {"first": [plot.Span(0, 12, "leads"), plot.Span(12, 20, "dead")]}
    figure = plot.fleet(
        seen,
        workers=diary().lanes(),
        controllers=controllers,
        title="The fleet",
        marks={12: "leader dies"},
        faults={"EC2 throttles": (5, 9)},
    )
    counts, workers, leaders = figure.axes
    assert [label.get_text() for label in workers.get_yticklabels()] == ["w-1", "w-2"]
    assert [label.get_text() for label in leaders.get_yticklabels()] == ["first"]
    assert counts.get_ylim() == (0, 2) and counts.get_xlim() == workers.get_xlim() == (0, 20)
    assert {"The fleet", "leader dies", "EC2 throttles", "leads"} <= set(texts(figure))


def test_plots_keep_the_style_of_the_program() -> None:
    before = dict(plt.rcParams)
    plot.state_machine()
    plot.timeline(diary())
    assert dict(plt.rcParams) == before


def test_use_style_changes_later_plots() -> None:
    with plt.rc_context():
        plot.use_style()
        assert plt.rcParams["axes.titleweight"] == "bold"


def test_decision_grid_is_that_of_decide() -> None:
    grid = plot.decision_grid()
    assert {desired for desired, _, _ in grid.decisions} == {None, *map(str, lcm.DesiredStatus)}
    assert {status for _, status, _ in grid.decisions} == set(map(str, lcm.WorkerStatus))
    assert grid.decisions["running", "running", "none, a day on"].reason.code == "gone"
    assert grid.decisions["running", "running", "call failed"].to_status == "running"


def test_tiles_of_the_decision_grid_show_their_reasons(tmp_path: Path) -> None:
    grid = plot.decision_grid(title="<All> decisions")
    grid.save(tmp_path / "grid.svg")
    drawn = ElementTree.parse(tmp_path / "grid.svg").getroot()
    tiles = [tile for tile in drawn.iter(f"{SVG}rect") if tile.get("class") == "tile"]
    reasons = [tile.findtext(f"{SVG}title") or "" for tile in tiles]
    assert len(tiles) == len(grid.decisions)
    for decision, reason, tile in zip(grid.decisions.values(), reasons, tiles, strict=True):
        assert decision.reason.sentence in reason
        if decision.to_status != decision.from_status:
            assert tile.get("fill") == color(decision.to_status)
    assert drawn.findtext(f"{SVG}title") == "<All> decisions" and drawn.get("role") == "img"
    assert drawn.findtext(f"{SVG}desc") == grid.description == drawn.get("aria-label")


def test_missing_matplotlib_is_explained() -> None:
    script = "import sys; sys.modules['matplotlib'] = None; import lcm.plot"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert "lcm.plot needs matplotlib: pip install 'lcm-sdk[plot]'" in run.stderr


def simulated() -> lcm.History:
    events = {"sessions": [{"at": 3600, "lasts": 3600}], "drains": [{"at": 5400, "worker": "w-1"}]}
    return lcm.simulate(2, events=events, hours=4)


def test_spans_follow_the_statuses_of_a_simulation() -> None:
    history = simulated()
    spans = plot.spans(history)
    assert list(spans) == ["w-1", "w-2"] and [span.word for span in spans["w-2"]] == ["stopped"]
    assert [span.word for span in spans["w-1"]] == ["stopped", "starting", "running", "draining", "stopping", "stopped"]
    assert spans["w-1"][0].start == 0 and spans["w-1"][-1].end == history.hours
    for before, after in zip(spans["w-1"], spans["w-1"][1:], strict=False):
        assert before.end == after.start
        middle = history.started_at + timedelta(hours=(after.start + after.end) / 2)
        assert history.status("w-1", middle) == after.word
    assert list(plot.spans(history, workers=["w-2"])) == ["w-2"]


def test_counts_of_a_simulation_cover_the_fleet() -> None:
    counts = plot.counts(simulated())
    assert counts[0] == (0, Counter(stopped=2)) and counts[-1][0] == 4
    assert {count.total() for _, count in counts} == {2} and counts[-1][1]["stopped"] == 2


def test_simulation_is_drawn_in_hours() -> None:
    history = simulated()
    figure = plot.timeline(history, title="Two workers")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["w-1", "w-2"]
    assert {"hours", "Two workers", "draining"} <= set(texts(figure))
    figure = plot.fleet(history, workers=plot.spans(history))
    assert len(figure.axes) == 2 and "hours" in texts(figure) and "minutes" not in texts(figure)


def test_figures_have_a_bar_for_each_policy() -> None:
    thrifty = lcm.Policy(scale_down=lcm.ScaleDownPolicy(enabled=True))
    policies = {"today": lcm.Policy(), "thrifty": thrifty}
    compared = lcm.compare(policies, 4, events={"sessions_per_hour": 2}, hours=48)
    figure = plot.figures(compared, title="Two policies")
    [hours] = [axes for axes in figure.axes if axes.get_title(loc="left") == "instance hours"]
    widths = [bar.get_width() for bar in hours.patches if isinstance(bar, Rectangle)]
    assert widths == pytest.approx([compared.figures[name].instance_hours for name in policies])
    assert {"today", "thrifty", "sessions cut short", "Two policies"} <= set(texts(figure))
    assert len(plot.figures(simulated()).axes[0].patches) == 1
