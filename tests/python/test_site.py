"""The documentation site is built without warnings, needs no other host, and has a page or an anchor for each name."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import lcm
import matplotlib
import pytest
from conftest import browser_test, look
from playwright.sync_api import Browser, expect

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "site"))
import reference  # noqa: E402

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
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.text: list[str] = []
        self._hidden = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._hidden += tag in {"script", "style"}
        if name := values.get("id"):
            self.ids.add(name)
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
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


def test_every_address_of_a_reason_is_an_anchor(site: Path) -> None:
    ids = page(site, "reference/reasons").ids
    base = "https://lcm-project.github.io/lcm/reference/reasons/"
    for code in lcm.ReasonCode:
        assert lcm.Reason(code, "").url == f"{base}#{code.value}" and code.value in ids
    assert f'"{base}#"' in (ROOT / "lcm-console" / "assets" / "format.js").read_text(encoding="utf-8")


def test_every_code_of_the_run_loop_has_an_anchor(site: Path) -> None:
    source = (ROOT / "lcm-sdk" / "src" / "controller" / "result.rs").read_text(encoding="utf-8")
    names = source[source.index("impl WorkReason") : source.index("impl fmt::Display for WorkReason")]
    codes = set(re.findall(r'=> "(\w+)"', names))
    assert len(codes) > 5 and codes <= page(site, "reference/reasons").ids


def test_every_public_name_has_an_anchor(site: Path) -> None:
    ids = page(site, "reference/python").ids
    modules = {"ports", "testing"}
    assert not [name for name in lcm.__all__ if f"lcm.{name}" not in ids and name not in modules]
    assert not [name for name in lcm.ports.__all__ if f"lcm.ports.{name}" not in ids]


def test_rust_page_links_to_every_public_module(site: Path) -> None:
    pages = [one for one in page(site, "reference/rust").links if one.startswith(reference.RUST_DOCS)]
    sources = {"lcm_sdk": reference.SDK, "fake_cloud": reference.FAKE, "lcm_cli": ROOT / "lcm-cli" / "src"}
    for address in pages:
        crate, *modules = address.removeprefix(f"{reference.RUST_DOCS}/").removesuffix("/index.html").split("/")
        module = sources[crate].joinpath(*modules)
        assert (module if modules else module / "lib.rs").exists() or module.with_suffix(".rs").exists(), address
    public = re.findall(r"^pub mod (\w+);", (reference.SDK / "lib.rs").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(public) > 10
    assert not [name for name in public if f"{reference.RUST_DOCS}/lcm_sdk/{name}/index.html" not in pages]


def test_transitions_page_has_every_transition(site: Path) -> None:
    text = " ".join(" ".join(page(site, "reference/transitions").text).split())
    for row in lcm.transitions():
        assert f"{row.from_status} {row.to_status} {row.kind} {row.when}" in text


def test_every_command_has_a_section_with_its_options(site: Path) -> None:
    named = set(
        re.findall(r"^\| `lcm ([a-z-]+)", (ROOT / "docs" / "command.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert named and {f"lcm-{name}" for name in named} <= page(site, "reference/command").ids


def routes_of(source: str) -> set[tuple[str, str]]:
    """Return method and path of each route of a router in Rust."""
    found = set()
    for path, handlers in re.findall(
        r'\.route\(\s*"([^"]+)",\s*((?:[^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*)\)', source
    ):
        found |= {
            (method, path) for method in re.findall(r"\b(get|post|delete)\(", handlers.replace("order(", "post("))
        }
    return found


def test_admin_page_lists_the_routes_of_the_server() -> None:
    admin = ROOT / "lcm-sdk" / "src" / "admin"
    source = (admin / "handlers.rs").read_text(encoding="utf-8")
    router = source[source.index("pub(crate) fn router") : source.index(".fallback(not_found)")]
    routes = routes_of(router)
    for file in ("console.rs", "stream.rs"):
        # The page of the console; its files have no route in the source.
        routes |= routes_of((admin / file).read_text(encoding="utf-8")) - {("get", "/")}
    for path, method in re.findall(r'format!\("\{admin\}([^"]+)"\), (get|post)\(', router):
        routes |= {(method, f"/admin{path}"), (method, f"/api/admin{path}")}
    for paths, method in re.findall(r"for path in \[(.*?)\].*?route\(path, (get|post)\(", router, re.DOTALL):
        routes |= {(method, path) for path in re.findall(r'"([^"]+)"', paths)}
    listed = set()
    page = (ROOT / "docs" / "reference" / "admin.md").read_text(encoding="utf-8")
    for method, paths in re.findall(r"^\| (GET|POST) \| ([^|]+\|[^|]+)\|", page, re.MULTILINE):
        listed |= {(method.lower(), path) for path in re.findall(r"`([^`]+)`", paths)}
    assert len(routes) > 20 and {("get", "/admin/stream"), ("get", "/admin/discovery")} <= routes
    assert listed == routes


def test_admin_page_of_the_fake_lists_its_routes() -> None:
    sources = (ROOT / "fake-cloud" / "src" / "admin").rglob("*.rs")
    source = "\n".join(file.read_text(encoding="utf-8") for file in sources)
    # The only path with a name of its own.
    routes = routes_of(source.replace(".route(RESTORE,", '.route("/_fake/restore",'))
    listed = set()
    for method, text in re.findall(r"^\| (GET|POST|DELETE) \| `([^`]+)`", reference.admin_page(), re.MULTILINE):
        path = text.replace("\\|", "|").split("?")[0]
        choice = re.search(r"\{([^}]*\|[^}]*)\}", path)
        listed |= {
            (method.lower(), path.replace(choice[0], one) if choice else path)
            for one in (choice[1].split("|") if choice else [""])
        }
    # The list itself, another spelling of the console, its files, and the faults of etcd, which are listed by name.
    unlisted = {("get", "/_fake"), ("get", "/_fake/"), ("get", "/_fake/ui"), ("get", "/_fake/ui/{file}")}
    faults = {route for route in listed if route[1].startswith("/_fake/etcd/")}
    assert len(faults) > 5 and listed - faults == routes - unlisted - {("post", "/_fake/etcd/{fault}")}


PAGES = ("", "reference/reasons/", "reference/python/", "settings/", "start/python/", "explanation/choosing/")


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site on a server."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@browser_test
def test_pages_are_readable_without_scripts(served: str, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    tab = context.new_page()
    for path in PAGES:
        tab.goto(served + path)
        expect(tab.locator("article h1")).to_be_visible()
        expect(tab.get_by_role("link", name="Reference").first).to_be_visible()
        tables = tab.locator("article table")
        assert all(tables.nth(number).is_visible() for number in range(min(3, tables.count())))
    tab.goto(served + "reference/reasons/#drain_waiting")
    expect(tab.locator("#drain_waiting")).to_be_in_viewport()
    context.close()


def contrast(one: str, other: str) -> float:
    """Return the contrast of two opaque colors, as WCAG defines it."""

    def luminance(color: str) -> float:
        red, green, blue = (int(float(part)) / 255 for part in re.findall(r"[\d.]+", color)[:3])
        parts = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue))
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


OPAQUE = """(element) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
    canvas.fillRect(0, 0, 1, 1);
    const background = canvas.getImageData(0, 0, 1, 1).data.slice(0, 3).join(" ");
    canvas.fillStyle = getComputedStyle(element).color;
    canvas.fillRect(0, 0, 1, 1);
    return [background, canvas.getImageData(0, 0, 1, 1).data.slice(0, 3).join(" ")];
}"""


@browser_test
@pytest.mark.parametrize(("preference", "scheme"), [("light", "default"), ("dark", "slate")])
def test_pages_follow_the_preferred_colors(
    served: str, browser: Browser, preference: Literal["light", "dark"], scheme: str
) -> None:
    context = browser.new_context(color_scheme=preference, viewport={"width": 1280, "height": 800})
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    for path in PAGES:
        tab.goto(served + path)
        expect(tab.locator("body")).to_have_attribute("data-md-color-scheme", scheme)
        expect(tab.locator("article p").first).to_be_visible()
        for selector in ("article p", "article :is(p, td) a", "article code"):
            for element in tab.locator(selector).all()[:3]:
                background, text = element.evaluate(OPAQUE)
                assert contrast(background, text) >= 4.5, (path, selector, background, text)
        look(tab, f"site-{preference}-{path.strip('/').replace('/', '-') or 'home'}")
    assert not problems
    context.close()


@browser_test
def test_pages_fit_a_phone(served: str, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab = context.new_page()
    for path in PAGES:
        tab.goto(served + path)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, path
    context.close()


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
