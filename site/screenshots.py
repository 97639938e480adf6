"""Takes the screenshots in ``docs/images``: the consoles, the command ``lcm`` and the notebooks.

``make screenshots`` runs it. The command is shown on the scenario bad-day without its faults. The consoles are shown
after three minutes of a controller on that scenario, sixty times as fast, with a drain and a worker that EC2 has no
capacity for. Times differ from run to run, so the images are compared by people.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import pty
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbconvert.filters import ansi2html
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = os.environ.get("LCM_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
LCM = [sys.executable, "-m", "lcm"]
SECONDS = 180
COLUMNS = 150
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; display: inline-block; background: #292929; color: #d0d0d0; }
pre { margin: 0; padding: 12px; font: 14px/1.45 "DejaVu Sans Mono", monospace; }
.ansi-bold { font-weight: bold; }
.ansi-black-fg, .ansi-black-intense-fg { color: #8a8a8a; }
.ansi-red-fg, .ansi-red-intense-fg { color: #e06c5f; }
.ansi-green-fg, .ansi-green-intense-fg { color: #98b14a; }
.ansi-yellow-fg, .ansi-yellow-intense-fg { color: #d9b23e; }
.ansi-blue-fg, .ansi-blue-intense-fg { color: #6fa8dc; }
.ansi-magenta-fg, .ansi-magenta-intense-fg { color: #c08bd0; }
.ansi-cyan-fg, .ansi-cyan-intense-fg { color: #62b3b2; }
</style><body>"""


@contextmanager
def running(*command: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and stop it as Ctrl-C does."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()


def wait_for(process: subprocess.Popen[str], url: str) -> None:
    """Wait until a controller responds. Another program may have taken its port, or it may have ended."""
    for _ in range(120):
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the controller does not respond at {url}; its exit code is {process.returncode}")


def on_a_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """Return the output of a command with its colors."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    # Errors and progress are on standard error.
    process = subprocess.Popen([*LCM, *arguments], stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    output = b""
    try:
        while part := os.read(ours, 65536):
            output += part
    except OSError:
        # The end of a terminal is an error on Linux.
        pass
    finally:
        os.close(ours)
        process.wait()
    return output.decode().replace("\r\n", "\n")


def take_commands(browser: Browser, environment: dict[str, str]) -> None:
    tab = browser.new_page(device_scale_factor=1.5)
    commands = {"workers": ["workers"], "explain": ["explain", "w-09"], "plan": ["plan"], "doctor": ["doctor"]}
    for name, arguments in commands.items():
        shown = on_a_terminal(arguments, {**environment, "TERM": "xterm-256color"})
        colored = ansi2html(shown.rstrip())  # type: ignore[no-untyped-call]
        prompt = html.escape(f"$ lcm {' '.join(arguments)}")
        tab.set_content(f"{TERMINAL}<pre><b>{prompt}</b>\n{colored}</pre>")
        tab.locator("pre").screenshot(path=IMAGES / f"command-{name}.png")
    tab.close()


def open_view(tab: Page, url: str) -> None:
    tab.goto(url)
    expect(tab.locator("#link")).to_have_text("live")
    tab.wait_for_timeout(1500)


def take_consoles(browser: Browser, fake: str, controller: str) -> None:
    light = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    dark = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    open_view(light, f"{controller}/")
    light.screenshot(path=IMAGES / "console-controller-fleet.png")
    open_view(light, f"{controller}/#/queue")
    light.screenshot(path=IMAGES / "console-controller-queue.png")
    open_view(light, f"{controller}/#/discovery")
    light.screenshot(path=IMAGES / "console-controller-discovery.png")
    open_view(dark, f"{controller}/#/worker/w-06")
    dark.get_by_role("button", name="Dry run").click()
    expect(dark.locator(".forecast")).to_contain_text("A dry run: nothing was changed.")
    dark.screenshot(path=IMAGES / "console-controller-worker.png")
    open_view(light, f"{fake}/_fake/ui/")
    light.locator("select").last.select_option(label="6 h")
    light.wait_for_timeout(500)
    light.screenshot(path=IMAGES / "console-fake-fleet.png")
    open_view(dark, f"{fake}/_fake/ui/#/requests")
    dark.screenshot(path=IMAGES / "console-fake-requests.png")
    open_view(light, f"{fake}/_fake/ui/#/faults")
    light.screenshot(path=IMAGES / "console-fake-faults.png")
    for view, name in (("worker/w-01", "worker"), ("instances", "instances"), ("etcd", "etcd"), ("cml", "cml")):
        open_view(light, f"{fake}/_fake/ui/#/{view}")
        light.screenshot(path=IMAGES / f"console-fake-{name}.png")
    light.close()
    dark.close()


def take_notebooks(browser: Browser) -> None:
    """Run two notebooks, and show the first plot of each with the cells around it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, plot in (("01-lifecycle", 1), ("04-a-bad-day", 0)):
            command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "html", "--output-dir", folder]
            command += ["--KernelManager.transport=ipc", f"--KernelManager.ip={folder}/kernel"]
            subprocess.run([*command, str(ROOT / "notebooks" / f"{name}.ipynb")], check=True)
            tab = browser.new_page(viewport={"width": 1280, "height": 800})
            tab.goto(f"file://{folder}/{name}.html")
            image = tab.locator(".jp-OutputArea-output img, .jp-OutputArea-output svg").nth(plot)
            image.scroll_into_view_if_needed()
            tab.evaluate(
                "(place) => scrollBy(0, place - 200)", image.evaluate("(one) => one.getBoundingClientRect().top")
            )
            tab.wait_for_timeout(300)
            tab.screenshot(path=IMAGES / f"notebook-{name}.png")
            tab.close()


@contextmanager
def fake_cloud() -> Iterator[dict[str, str]]:
    """Run the scenario bad-day, and yield the variables for its clients."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ETCD_", "LCM_"))}
    options = ["--ephemeral", "--json", "--scenario", "bad-day", "--seed", "7", "--clock", "x60"]
    with running(*LCM, "fake-cloud", *options, environment=plain) as cloud:
        assert cloud.stdout is not None
        yield {**plain, **json.loads(cloud.stdout.readline())["env"]}


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with fake_cloud() as environment:
            faults = urllib.request.Request(f"{environment['AWS_ENDPOINT_URL']}/_fake/faults", method="DELETE")
            urllib.request.urlopen(faults, timeout=30).close()
            take_commands(browser, environment)
        with fake_cloud() as environment:
            fake, port = environment["AWS_ENDPOINT_URL"], free_port()
            capacity = {"kind": "error", "code": "InsufficientInstanceCapacity"}
            settings = {"ADMIN_PORT": str(port), "LCM_INSTANCE_ID": "controller-1", "LCM_RECONCILE_INTERVAL": "5"}
            post(f"{fake}/_fake/faults", {"service": "ec2", "operation": "StartInstances", "action": capacity})
            quiet = {**environment, **settings, "LCM_LOG_LEVEL": "error"}
            with running(*LCM, "controller", environment=quiet) as controller:
                wait_for(controller, f"http://127.0.0.1:{port}")
                time.sleep(SECONDS / 3)
                post(f"{fake}/_fake/console/worker/w-06", {"desired_status": "running"})
                post(f"{fake}/_fake/ui/workers/w-01/drain", {})
                time.sleep(SECONDS * 2 / 3)
                take_consoles(browser, fake, f"http://127.0.0.1:{port}")
        take_notebooks(browser)
        browser.close()


if __name__ == "__main__":
    main()
