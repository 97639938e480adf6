"""The packages and programs in `dist`, used as a newcomer uses them: without cargo, without this source tree.

`make test-dist` builds them and runs these tests. `tests/python/test_package.py` builds the source distribution.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
PROGRAMS = ("lcm", "worker-controller", "fake-cloud")
RELEASING = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
# Engines that run a container, or the steps of one, without a service of their own.
ENGINES = [engine for engine in ("podman", "buildah") if shutil.which(engine)]
# A directory of the tools is on the path of the developer, not on that of a newcomer.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

pytestmark = pytest.mark.timeout(600)


def run(*command: str | Path, cwd: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """Run a program with an empty home and without the variables of this shell, and return its output."""
    environment = {"PATH": PATH, "HOME": "/nonexistent", "LANG": "C.UTF-8", **(variables or {})}
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, f"{command} failed:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def only(pattern: str) -> Path:
    [found] = DIST.glob(pattern)
    return found


def newcomer(folder: Path, *packages: str | Path) -> Path:
    """Return an empty virtual environment with packages, made without an own cache."""
    venv.create(folder)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    proxies = {name: value for name, value in os.environ.items() if name.upper().startswith(("PIP_", "HTTPS_PROXY"))}
    run(*pip, "install", *quiet, "--constraint", ROOT / "requirements-dev.txt", *packages, variables=proxies)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with nothing but the wheel."""
    assert shutil.which("cargo", path=PATH) is None, f"cargo is in {PATH}: these tests would not notice a missing file"
    return newcomer(tmp_path_factory.mktemp("wheel"), "--no-index", only("*.whl"))


@pytest.fixture(scope="module")
def with_pytest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, pytest and boto3."""
    return newcomer(tmp_path_factory.mktemp("tested"), only("*.whl"), "pytest", "boto3")


def examples(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@contextmanager
def fake_cloud(
    *command: str | Path, variables: Mapping[str, str] | None = None, ends_with: tuple[int, ...] = (0,)
) -> Iterator[dict[str, Any]]:
    """Run a fake cloud as a process, yield the line that it prints, and stop it as Ctrl-C does."""
    arguments = [*map(str, command), "--ephemeral", "--json", "--scenario", "drain", "--clock", "x60"]
    environment = {"PATH": PATH, "HOME": "/nonexistent", **(variables or {})}
    # With a handler here, the process starts with the default action, also under `nohup`.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        signal.signal(signal.SIGINT, before)
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode in ends_with, f"{arguments} ended with {process.returncode}"


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


# The wheel.


def test_wheel_is_for_old_versions_of_glibc() -> None:
    wheel = only("*.whl")
    [stated] = re.findall(r"the wheel has the tag `(\w+)`", RELEASING)
    assert f"-cp311-abi3-{stated}_{os.uname().machine}." in wheel.name
    shown = run(ROOT / "target" / "tools" / "dist" / "bin" / "auditwheel", "show", wheel)
    [tag] = re.findall(r'the following\s+platform tag: "(\w+?)_(?:x86_64|aarch64)"', " ".join(shown.split()))
    assert tag in (stated, {"manylinux2014": "manylinux_2_17"}.get(stated)), shown


def test_wheel_needs_nothing_else(installed: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(installed / "python")]
    assert [one["name"] for one in json.loads(run(*pip, "list", "--format", "json"))] == ["lcm-sdk"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_the_wheel_report_the_version(installed: Path, program: str) -> None:
    version = run(installed / "python", "-c", "import lcm; print(lcm.__version__)").strip()
    assert run(installed / program, "--version") == f"{program} {version}\n"


@pytest.mark.parametrize("number", range(3))
def test_quick_start_runs(installed: Path, number: int) -> None:
    run(installed / "python", "-I", "-W", "error", "-c", examples("start/python.md")[number])


def test_tests_with_the_plugin_run(with_pytest: Path, tmp_path: Path) -> None:
    for number, example in enumerate(examples("start/testing.md")):
        (tmp_path / f"test_{number}.py").write_text(example, encoding="utf-8")
    assert "2 passed" in run(with_pytest / "pytest", "-q", tmp_path, cwd=tmp_path)


def test_fake_cloud_of_the_wheel_serves_boto3(installed: Path, with_pytest: Path) -> None:
    script = "import boto3; print(len(boto3.client('ec2').describe_instances()['Reservations']))"
    with fake_cloud(installed / "lcm", "fake-cloud") as ready:
        count = run(with_pytest / "python", "-c", script, variables=ready["env"])
        listed = json.loads(run(installed / "lcm", "workers", "-o", "json", variables=ready["env"]))
    assert int(count) >= 1 and [worker["id"] for worker in listed]


def test_source_distribution_has_every_crate() -> None:
    names = run("tar", "--list", "--file", only("*.tar.gz")).splitlines()
    for crate in ("lcm-sdk", "lcm-cli", "lcm-console", "fake-cloud", "lcm-py"):
        assert any(name.endswith(f"/{crate}/Cargo.toml") for name in names), crate
    assert any(name.endswith("/Cargo.lock") for name in names)


# The programs.


def program_headers(file: Path) -> set[int]:
    """Return the types of the program headers of a 64-bit ELF file."""
    content = file.read_bytes()
    assert content[:6] == b"\x7fELF\x02\x01", f"{file} is no 64-bit little-endian ELF file"
    [start] = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    return {struct.unpack_from("<I", content, start + number * size)[0] for number in range(count)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_needs_no_interpreter(program: str) -> None:
    interpreter = 3
    assert interpreter not in program_headers(DIST / "bin" / program)
    assert interpreter in program_headers(Path(sys.executable).resolve()), "the check finds an interpreter"


@pytest.fixture
def empty_root(tmp_path: Path) -> Path:
    """A root directory as of an image from scratch: the programs, the certificates, and the names of an engine."""
    for folder in ("dev", "etc/ssl/certs", "tmp"):
        (tmp_path / folder).mkdir(parents=True)
    for program in PROGRAMS:
        shutil.copy(DIST / "bin" / program, tmp_path)
    shutil.copy(DIST / "ca-certificates.crt", tmp_path / "etc/ssl/certs")
    (tmp_path / "etc" / "hosts").write_text("127.0.0.1 localhost etcd control-plane ec2\n", encoding="utf-8")
    return tmp_path


def in_root(root: Path, program: str) -> list[str]:
    """Return the command for a program that sees no other file than those of a root directory."""
    # With devices, as an engine provides them: a static program reads random numbers from one.
    enter = f'mount --rbind /dev "{root}/dev" && exec chroot "{root}" "/{program}" "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", enter, program]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs_in_an_empty_root(empty_root: Path, program: str) -> None:
    assert run(*in_root(empty_root, program), "--version").startswith(f"{program} ")


def named(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables of a fake cloud with names of hosts instead of addresses."""
    names = {"AWS_ENDPOINT_URL": "ec2", "CONTROL_PLANE_API_URL": "control-plane", "ETCD_ENDPOINTS": "etcd"}
    assert names.keys() <= environment.keys()
    return {name: value.replace("127.0.0.1", names.get(name, "127.0.0.1")) for name, value in environment.items()}


def test_controller_resolves_names_in_an_empty_root(empty_root: Path) -> None:
    with fake_cloud(*in_root(empty_root, "fake-cloud")) as ready:
        controller = in_root(empty_root, "worker-controller")
        plan = run(*controller, "--once", "--dry-run", variables=named(ready["env"]))
    assert re.search(r"^\d+ workers? in ", plan, re.MULTILINE), plan


# The container.


@pytest.fixture(scope="module", params=ENGINES)
def image(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """An engine, and the image of the fake cloud that it has built. Without an engine there is no such test."""
    engine, name = str(request.param), "lcm-test-dist"
    own = {"HOME": os.environ["HOME"]}
    build = [engine, "build", "--file", "deploy/Containerfile", "--build-arg", "PROGRAM=fake-cloud", "--tag", name, "."]
    run(*build, cwd=ROOT, variables=own)
    yield engine, name
    run(engine, "rmi", name, variables=own)


def test_container_serves(image: tuple[str, str]) -> None:
    engine, name = image
    own = {"HOME": os.environ["HOME"]}
    if engine == "podman":
        with fake_cloud("podman", "run", "--rm", "--network=host", name, variables=own) as ready:
            state = fetch(f"{ready['env']['AWS_ENDPOINT_URL']}/_fake/")
    else:
        container = run("buildah", "from", name, variables=own).strip()
        try:
            # `run` ignores the entry point of an image.
            step = ["buildah", "run", "--isolation=chroot", container, "--", "/program"]
            # Its exit code after a signal is its own, not that of the program.
            with fake_cloud(*step, variables=own, ends_with=(0, 1)) as ready:
                state = fetch(f"{ready['env']['AWS_ENDPOINT_URL']}/_fake/")
        finally:
            run("buildah", "rm", container, variables=own)
    assert state
