"""The notebooks run, show the expected outputs, and are committed without outputs."""

from __future__ import annotations

import base64
import io
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image
from traitlets.config import Config

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PLOTS = {"01-lifecycle": 3, "02-orphans": 4, "03-draining": 4, "04-a-bad-day": 2, "05-what-if": 2, "06-replay": 0}
CARDS = {"01-lifecycle": 5, "02-orphans": 1, "03-draining": 2, "04-a-bad-day": 0, "05-what-if": 0, "06-replay": 1}
GRIDS = {"01-lifecycle": 1, "02-orphans": 0, "03-draining": 0, "04-a-bad-day": 0, "05-what-if": 0, "06-replay": 0}
IMAGE = re.compile(r'<img alt="(?P<alt>[^"]*)" .* src="data:image/png;base64,(?P<data>[^"]*)">')
LIMIT = 60.0
"""Longest run of a notebook, in seconds."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Settings for a fresh Python that shows every warning and listens on socket files instead of ports."""
    # Not pytest's folder: the path of a socket must be short.
    home = Path(tempfile.mkdtemp(prefix="lcm-"))
    monkeypatch.setenv("IPYTHONDIR", str(home / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    yield Config({"KernelManager": {"transport": "ipc", "ip": str(home / "socket")}})
    shutil.rmtree(home)


def load(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(notebook: Any, kind: str) -> list[str]:
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return [output.data[kind] for output in outputs if kind in output.get("data", {})]


def test_every_notebook_has_expected_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PLOTS) == set(CARDS) == set(GRIDS)


@every_notebook
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = load(path)
    nbformat.validate(notebook)
    for cell in code(notebook):
        assert cell.outputs == [] and cell.execution_count is None, f"{path.name} has outputs; clear all outputs"
        assert cell.metadata == {}, f"{path.name} has metadata of an editor: {cell.metadata}"


@every_notebook
@pytest.mark.timeout(2 * LIMIT)
def test_notebook_runs_with_the_expected_outputs(path: Path, settings: Config) -> None:
    notebook = load(path)
    began = time.monotonic()
    NotebookClient(
        notebook, config=settings, timeout=int(LIMIT), resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    took = time.monotonic() - began
    assert took < LIMIT, f"it took {took:.0f} s"

    for cell in code(notebook):
        errors = [output.text for output in cell.outputs if output.get("name") == "stderr"]
        assert errors == [], "a notebook must not write to stderr"
    images = [found for html in shown(notebook, "text/html") if (found := IMAGE.fullmatch(html))]
    assert shown(notebook, "image/png") == [] and all(len(image["alt"].split()) > 5 for image in images)
    pictures = [Image.open(io.BytesIO(base64.b64decode(image["data"]))) for image in images]
    assert len(pictures) == PLOTS[path.stem]
    for picture in pictures:
        assert picture.width > 600 and picture.height > 150
        colors = picture.convert("RGB").getcolors(maxcolors=picture.width * picture.height)
        assert colors is not None and len(colors) > 100, "the plot is empty"
    grids = [grid for grid in shown(notebook, "text/html") if grid.startswith("<svg")]
    assert len(grids) == GRIDS[path.stem] and all("<desc>" in grid for grid in grids)
    cards = [card for card in shown(notebook, "text/html") if "background:" in card]
    assert len(cards) == CARDS[path.stem]
