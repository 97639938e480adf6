"""Simulations, comparisons and replays from Python."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import lcm
import pytest
from lcm.testing import FakeCloud

SCALING = lcm.Policy(scale_down=lcm.ScaleDownPolicy(enabled=True))
EVENTS = {"sessions_per_hour": 3, "fault_rate": 0.05}


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


def test_equal_seeds_give_equal_histories() -> None:
    first, second, other = (lcm.simulate(8, events=EVENTS, policy=SCALING, seed=seed) for seed in (1, 1, 2))
    assert first == second and first != other
    assert (first.seed, first.hours, len(first.workers)) == (1, 24.0, 8)


def test_rows_match_the_steps() -> None:
    history = lcm.simulate(8, events=EVENTS, policy=SCALING)
    steps = history.steps()
    assert len(history) == len(steps) == len(history.rows()) > 0
    assert [row["at"] for row in history.rows()] == [step.at for step in steps]
    assert [str(step.to_status) for step in steps] == [row["to_status"] for row in history.rows()]
    assert history.steps("w-1") == [step for step in steps if step.worker_id == "w-1"]


def test_status_follows_the_steps() -> None:
    history = lcm.simulate(1, events={"sessions": [{"at": 600, "lasts": 60}]}, hours=2)
    assert history.status("w-1", history.started_at) is lcm.WorkerStatus.STOPPED
    assert history.status("w-1") is lcm.WorkerStatus.RUNNING
    with pytest.raises(ValueError, match="unknown worker 'w-2': the 1 workers of the simulation are w-1"):
        history.status("w-2")
    with pytest.raises(ValueError, match="unknown worker 'w-2'"):
        history.why("w-2")
    assert [step.reason for step in history.why("w-1")] == ["start_requested", "up"]
    assert history.why("w-1", history.started_at + timedelta(minutes=9)) == []


def test_comparison_has_the_figures_of_each_simulation() -> None:
    compared = lcm.compare({"today": lcm.Policy(), "thrifty": SCALING}, 8, events=EVENTS, hours=48, seed=3)
    assert compared.figures["thrifty"] == lcm.simulate(8, events=EVENTS, policy=SCALING, hours=48, seed=3).figures
    assert compared.figures["thrifty"].cost < compared.figures["today"].cost
    assert pickle.loads(pickle.dumps(compared)) == compared
    assert "thrifty" in compared._repr_html_() and "instance hours" in compared._repr_html_()
    assert "cut short" in compared._repr_html_() and compared.digest in compared._repr_html_()


def test_history_is_repeated_from_its_inputs() -> None:
    history = lcm.simulate(8, events=EVENTS, policy=SCALING, seed=5)
    inputs = history.inputs
    assert history.repeat() == history and inputs["seed"] == 5
    again = lcm.simulate(inputs["fleet"] | {"members": []}, events=inputs["events"], policy=SCALING, seed=5)
    assert again == history and again.digest == history.digest
    assert history.digest in history._repr_html_()
    assert lcm.simulate(8, events=EVENTS, policy=SCALING, seed=6).digest != history.digest


def test_drains_are_reported_or_refused() -> None:
    events = {
        "sessions": [{"at": 0, "lasts": 36000, "worker": "w-1"}],
        "drains": [{"at": 60, "worker": "w-1"}, {"at": 90, "worker": "w-2"}],
    }
    history = lcm.simulate({"workers": 2, "running": 1, "drain_timeout": 600}, events=events, hours=2)
    assert next(step.reason for step in history.steps("w-1")) == "drain_requested"
    assert history.figures.cut_short == 1
    [refused] = history.refused()
    assert (refused["worker_id"], refused["action"]) == ("w-2", "drain")
    assert "only a running worker can be drained" in refused["why"]


SCENARIO = {
    "seed": 3,
    "fleet": [{"name": "blue", "state": "running"}],
    "workers": [{"id": "w-1", "status": "running", "desired_status": "running", "instance": "blue"}],
    "timeline": [{"at": "1h", "stop": "blue"}, {"at": "2h", "reboot": "blue"}],
}


def test_scenario_is_simulated(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"not simulated: timeline\[1\]: reboot of blue"):
        history = lcm.simulate(SCENARIO)
    assert (history.seed, history.workers) == (3, ["w-1"])
    assert "drift" in [step.reason for step in history.steps()]
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(SCENARIO))
    with pytest.warns(UserWarning):
        assert lcm.simulate(file) == history
    with pytest.warns(UserWarning):
        assert lcm.compare({"today": lcm.Policy()}, str(file)).figures["today"] == history.figures
    with pytest.raises(ValueError, match="events beside a scenario"):
        lcm.simulate(SCENARIO, events={})
    with pytest.raises(ValueError, match=r"scenario: timeline\[0\]: no worker or instance \"red\""):
        lcm.simulate({**SCENARIO, "timeline": [{"at": "1h", "drain": "red"}]})
    with pytest.raises(FileNotFoundError):
        lcm.simulate(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"events": {"sesions": []}}, "events: unknown field `sesions`"),
        ({"fleet": {"wokers": 1}}, "fleet: unknown field `wokers`"),
        ({"events": {"patience": -1}}, "invalid time -1: expected seconds from 0 up"),
        ({"hours": 0}, "invalid hours 0: expected more than 0, up to 8784"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lcm.simulate(**arguments)  # type: ignore[arg-type]


def test_history_of_a_reconcile_is_replayed(fake_cloud: FakeCloud, tmp_path: Path) -> None:
    instance = fake_cloud.run()
    fake_cloud.advance(60)
    worker = fake_cloud.add_worker(
        id="w-1", status="running", desired_status="running", ec2_instance_id=instance.id, cml_password="hunter2"
    )
    fake_cloud.stop_instance(instance.id)
    fake_cloud.advance(60)
    result = lcm.reconcile(worker, clients=fake_cloud.clients({"LCM_HISTORY_DIR": str(tmp_path)}))
    assert result.to_status == "stopped"
    [file] = tmp_path.iterdir()
    assert "hunter2" not in file.read_text() and '"reason":"drift"' in file.read_text()
    same = lcm.replay(tmp_path)
    assert same.is_same and (same.decisions, same.changed) == (1, 0)
    [difference] = lcm.replay(file, policy={"external_stop_policy": "respect"}).differences
    assert (difference.worker_id, difference.recorded_reason, difference.replayed_reason) == (
        "w-1",
        "drift",
        "external_stop",
    )


def test_recording_tells_why_a_worker_has_its_status(fake_cloud: FakeCloud, tmp_path: Path) -> None:
    instance = fake_cloud.run()
    fake_cloud.advance(60)
    fake_cloud.add_worker(id="w-1", status="running", desired_status="running", ec2_instance_id=instance.id)
    fake_cloud.stop_instance(instance.id)
    fake_cloud.advance(60)
    clients = fake_cloud.clients({"LCM_HISTORY_DIR": str(tmp_path)})
    for _ in range(2):
        lcm.reconcile_now("w-1", clients=clients)
        fake_cloud.advance(60)
    recording = lcm.Recording(tmp_path)
    [started] = recording.why("w-1")
    assert (started.from_status, started.to_status, started.reason) == ("stopped", "starting", "start_requested")
    assert started.observed["instance"].startswith(f"{instance.id} is stopped")
    assert started.effects == (f"start_instance {instance.id}",)
    assert started.results == ("done",)
    assert started.requested_by is None
    [stopped] = recording.why("w-1", started.at - timedelta(microseconds=1))
    assert (stopped.to_status, stopped.reason) == ("stopped", "drift")
    assert recording.why("w-2") == ()
    assert recording.replay().is_same
    with pytest.raises(ValueError, match="expected a time with a zone"):
        recording.why("w-1", datetime(2026, 2, 6))


def test_several_histories_are_replayed_together(fake_cloud: FakeCloud, tmp_path: Path) -> None:
    for name in "ab":
        worker = fake_cloud.add_worker(id=f"w-{name}", status="stopped")
        lcm.reconcile(worker, clients=fake_cloud.clients({"LCM_HISTORY_DIR": str(tmp_path / name)}))
    replayed = lcm.replay(tmp_path / "a", tmp_path / "b")
    assert (replayed.decisions, dict(replayed.by_worker), replayed.warnings) == (2, {}, ())


def test_history_is_complete_when_the_interpreter_exits(fake_cloud: FakeCloud, tmp_path: Path) -> None:
    """Without a flush, a close or the end of a `with`: an exit writes the queue."""
    for number in range(20):
        fake_cloud.add_worker(id=f"w-{number}", status="stopped")
    program = f"""
import lcm, sys
clients = lcm.Clients({{**{fake_cloud.env!r}, "LCM_HISTORY_DIR": {str(tmp_path)!r}, "LCM_HISTORY_SAMPLE": "1"}})
for number in range(20):
    lcm.reconcile_now(f"w-{{number}}", clients=clients)
sys.exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert lcm.replay(tmp_path).decisions == 20


def test_policy_object_replaces_the_recorded_one(fake_cloud: FakeCloud, tmp_path: Path) -> None:
    worker = fake_cloud.add_worker(id="w-1", status="stopped")
    lcm.reconcile(worker, clients=fake_cloud.clients({"LCM_HISTORY_DIR": str(tmp_path)}))
    assert lcm.replay(tmp_path, policy=lcm.Policy()).decisions == 1


def test_missing_history_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot read .*nowhere"):
        lcm.replay(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no history"):
        lcm.replay(tmp_path)


def test_unusable_directory_is_refused(fake_cloud: FakeCloud, tmp_path: Path) -> None:
    with pytest.raises(lcm.ConfigError, match="is no directory and cannot become one"):
        fake_cloud.clients({"LCM_HISTORY_DIR": str(tmp_path / "a" / "b")})
