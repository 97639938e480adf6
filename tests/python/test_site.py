"""The documentation site is built without warnings, needs no other host, and has a page or an anchor for each name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import lcm
import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
DRAWING = ROOT / "docs" / "lifecycle.svg"
ALERTS = ROOT / "docs" / "operations" / "alerts.yml"
RUNBOOK = ROOT / "docs" / "operations" / "runbook.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors: unknown links, unknown anchors, pages outside of the navigation."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file"]
    command += [str(ROOT / "site" / "mkdocs.yml"), "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr
    return place


class Loaded(HTMLParser):
    """Collects the addresses that a browser loads with a page, and the text that it shows without scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.text: list[str] = []
        self._hidden = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._hidden += tag in {"script", "style"}
        if name := values.get("id"):
            self.ids.add(name)
        is_loaded = tag in {"script", "img", "iframe", "source"} or (
            tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}
        )
        if is_loaded:
            self.addresses += [value for key, value in attrs if key in {"src", "href", "srcset"} and value]

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text.append(data)


def page(site: Path, path: str) -> Loaded:
    return Loaded((site / path / "index.html").read_text(encoding="utf-8"))


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = {(file.name, address) for file in pages for address in Loaded(file.read_text(encoding="utf-8")).addresses}
    assert loaded and not [one for one in loaded if re.match(r"(https?:)?//", one[1])]
    styles = [file.read_text(encoding="utf-8") for file in site.rglob("*.css")]
    assert styles and not re.findall(r"(?:url\(|@import )[\"']?https?:[^)]*", "".join(styles))


def test_front_page_names_the_four_quick_starts(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    for start in ("python", "rust", "testing", "notebook"):
        assert f'href="start/{start}/"' in front


def test_every_reason_code_has_an_anchor(site: Path) -> None:
    ids = page(site, "reference/reasons").ids
    assert not [code.value for code in lcm.ReasonCode if code.value not in ids]


def test_every_public_name_has_an_anchor(site: Path) -> None:
    ids = page(site, "reference/python").ids
    modules = {"ports", "testing"}
    assert not [name for name in lcm.__all__ if f"lcm.{name}" not in ids and name not in modules]
    assert not [name for name in lcm.ports.__all__ if f"lcm.ports.{name}" not in ids]


def test_transitions_page_has_every_transition(site: Path) -> None:
    text = " ".join(" ".join(page(site, "reference/transitions").text).split())
    for row in lcm.transitions():
        assert f"{row.from_status} {row.to_status} {row.kind} {row.when}" in text


def test_every_command_has_a_section_with_its_options(site: Path) -> None:
    named = set(
        re.findall(r"^\| `lcm ([a-z-]+)", (ROOT / "docs" / "command.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert named and {f"lcm-{name}" for name in named} <= page(site, "reference/command").ids


def test_admin_page_lists_the_routes_of_the_server() -> None:
    source = (ROOT / "lcm-sdk" / "src" / "admin" / "handlers.rs").read_text(encoding="utf-8")
    router = source[source.index("pub(crate) fn router") : source.index(".fallback(not_found)")]
    routes = {(method, path) for path, method in re.findall(r'\.route\("([^"]+)", (get|post)\(', router)}
    for path, method in re.findall(r'format!\("\{admin\}([^"]+)"\), (get|post)\(', router):
        routes |= {(method, f"/admin{path}"), (method, f"/api/admin{path}")}
    for paths, method in re.findall(r"for path in \[(.*?)\].*?route\(path, (get|post)\(", router, re.DOTALL):
        routes |= {(method, path) for path in re.findall(r'"([^"]+)"', paths)}
    listed = set()
    page = (ROOT / "docs" / "reference" / "admin.md").read_text(encoding="utf-8")
    for method, paths in re.findall(r"^\| (GET|POST) \| ([^|]+\|[^|]+)\|", page, re.MULTILINE):
        listed |= {(method.lower(), path) for path in re.findall(r"`([^`]+)`", paths)}
    assert len(routes) > 20 and listed == routes


def test_llms_txt_lists_pages_that_exist_as_markdown(site: Path) -> None:
    listed = re.findall(r"\]\(https://[^/]+/lcm/([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(listed) > 40
    assert not [path for path in listed if not (site / path).read_text(encoding="utf-8").startswith(("#", "<"))]


def test_every_alert_has_a_runbook_section() -> None:
    alerts = re.findall(r"alert: (\w+)", ALERTS.read_text(encoding="utf-8"))
    assert alerts and re.findall(r"^## (\w+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE) == alerts


def draw() -> None:
    """Draw the commanded transitions."""
    matplotlib.use("svg")
    from lcm import plot
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lcm"}):
        figure = plot.state_machine()
        figure.savefig(DRAWING, metadata={"Date": None})
        pyplot.close(figure)


def test_drawing_shows_every_commanded_transition() -> None:
    """With `UPDATE_DOCS=1` the drawing is written first."""
    if os.environ.get("UPDATE_DOCS"):
        draw()
    drawn = DRAWING.read_text(encoding="utf-8")
    rows = [row for row in lcm.transitions() if row.kind == "commanded"]
    assert not [row for row in rows if f">{row.when}</text>" not in drawn]
    assert not [row.from_status for row in rows if f">{row.from_status}</text>" not in drawn]
