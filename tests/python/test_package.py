"""The wheel and the source distribution, each installed into an empty virtual environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lcm
import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
TOOLS = Path(sys.executable).parent

# Three crates are compiled once more for the source distribution; all they depend on is shared with other builds.
pytestmark = pytest.mark.timeout(1200)


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Run a program in a clean environment and return its output."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PROTOC", "PYTHONPATH", "VIRTUAL_ENV"}}
    environment = kept | {"CARGO_TARGET_DIR": str(TARGET)} | variables
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command} failed:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


@pytest.fixture(scope="session")
def workshop() -> Path:
    """Folder for packages and environments. It is reused, because they are large."""
    folder = TARGET / "packages-under-test"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def wheel(workshop: Path) -> Path:
    """The wheel of this source tree, compiled with the profile of the tests."""
    out = workshop / "wheel"
    # Stored, not compressed: it is large with the dev profile, and temporary.
    options = ["--profile", "dev", "--features", "test-build", "--compatibility", "linux"]
    options += ["--compression-method", "stored"]
    run(TOOLS / "maturin", "build", "--out", out, *options, cwd=ROOT, PROTOC=str(TOOLS / "protoc"))
    return only(out, "*.whl")


@pytest.fixture(scope="session")
def sdist(workshop: Path) -> Path:
    out = workshop / "sdist"
    run(TOOLS / "maturin", "sdist", "--out", out, cwd=ROOT)
    return only(out, "*.tar.gz")


@pytest.fixture(scope="session")
def wheel_of_sdist(sdist: Path, workshop: Path) -> Iterator[Path]:
    """The wheel that pip builds from the source distribution."""
    with tarfile.open(sdist) as archive:
        archive.extractall(workshop, filter=_as_of_now)
    unpacked = only(workshop, "lcm_sdk-*")
    out = workshop / "wheel-of-sdist"
    options = ["--no-deps", "--no-cache-dir"]
    options += ["--config-settings=build-args=--profile=dev --features=test-build --compression-method=stored"]
    run(sys.executable, "-m", "pip", "wheel", "--wheel-dir", out, *options, unpacked)
    yield only(out, "*.whl")
    # Both source trees share `target`. Cargo rebuilds the workspace crates once the sources that were compiled last are
    # gone; otherwise it would treat them as up to date.
    shutil.rmtree(unpacked)


def _as_of_now(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    # Cargo compiles files that are newer than its last build; in the archive all have the same time.
    return tarfile.data_filter(member.replace(mtime=time.time()), path)


@dataclass
class Installed:
    """A virtual environment that only contains the package."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return only(self.folder, "lib/python*/site-packages")

    def script(self, text: str) -> str:
        return run(self.python, "-I", "-W", "error", "-c", textwrap.dedent(text))


@pytest.fixture(scope="session", params=["wheel", "wheel_of_sdist"])
def installed(request: pytest.FixtureRequest, workshop: Path) -> Installed:
    package: Path = request.getfixturevalue(request.param)
    environment = Installed(workshop / f"{request.param}-installed")
    venv.create(environment.folder)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", environment.python]
    run(*pip, "install", "--no-index", "--quiet", package)
    assert [each["name"] for each in json.loads(run(*pip, "list", "--format", "json"))] == ["lcm-sdk"]
    return environment


def test_test_wheel_shares_dependencies_with_rust_tests() -> None:
    # A dependency with other features would be compiled again, which takes minutes for the EC2 client.
    tree = ["cargo", "tree", "--locked", "--format", "{p} {f}", "--prefix", "none", "--edges"]

    def packages(*selection: str) -> set[str]:
        listed = run(*tree, *selection, cwd=ROOT).splitlines()
        return {line.removesuffix(" (*)") for line in listed if not line.startswith("lcm-")}

    names = {line.split()[0] for line in packages("normal,build", "--package", "aws-sdk-ec2")}
    wheel = packages("normal,build", "--package", "lcm-py", "--features", "test-build")
    of_client = {line for line in wheel if line.split()[0] in names}
    assert len(of_client) > 50
    assert of_client - packages("normal,build,dev", "--workspace") == set()


def test_installed_package_decides_and_reconciles(installed: Installed) -> None:
    output = installed.script("""
        import lcm
        from lcm.testing import FakeCloud
        worker = lcm.Worker("w-1", "running", desired_status="running", ec2_instance_id="i-1")
        print(lcm.decide(worker, lcm.Observation(ec2="stopped")).to_status)
        with FakeCloud() as cloud:
            instance = cloud.run()
            cloud.advance(60)
            record = cloud.add_worker(id="w-2", status="stopped", ec2_instance_id=instance.id)
            print(lcm.reconcile(record, clients=cloud.clients()))
    """)
    assert output.splitlines() == [
        "stopped",
        "w-2: stopped → running: The instance was started from outside (EC2: running).",
    ]


def test_quick_start_runs_without_rust_and_other_packages(installed: Installed) -> None:
    page = (ROOT / "docs" / "start" / "python.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        installed.script(example)


def test_fake_cloud_command_is_installed(installed: Installed) -> None:
    assert "Usage: python -m lcm.fake_cloud [OPTIONS]" in run(installed.python, "-m", "lcm.fake_cloud", "--help")
    assert "Usage: fake-cloud [OPTIONS]" in run(installed.folder / "bin" / "fake-cloud", "--help")


def test_lcm_command_is_installed(installed: Installed) -> None:
    assert run(installed.folder / "bin" / "lcm", "--version") == run(installed.python, "-m", "lcm", "--version")
    assert "Usage: lcm fake-cloud [OPTIONS]" in run(installed.folder / "bin" / "lcm", "fake-cloud", "--help")


def test_package_is_typed_for_mypy(installed: Installed, tmp_path: Path) -> None:
    for name in ["py.typed", "_lcm.pyi"]:
        assert (installed.site_packages / "lcm" / name).is_file()
    user = tmp_path / "user.py"
    user.write_text(
        textwrap.dedent("""
            import lcm
            from lcm.testing import FakeCloud

            def next_status(worker: lcm.Worker) -> lcm.WorkerStatus:
                return lcm.decide(worker, lcm.Observation(ec2="stopped")).to_status

            async def pass_over(worker: lcm.Worker, cloud: FakeCloud) -> lcm.ReconcileResult:
                return await lcm.reconcile_async(worker, clients=cloud.clients(), timeout=5)
        """)
    )
    run(TOOLS / "mypy", "--strict", "--python-executable", installed.python, user, cwd=tmp_path)
    run(TOOLS / "pyright", "--pythonpath", installed.python, user, cwd=tmp_path)
    user.write_text(user.read_text().replace("timeout=5", 'timeout="soon"'))
    with pytest.raises(AssertionError, match="timeout"):
        run(TOOLS / "mypy", "--strict", "--python-executable", installed.python, user, cwd=tmp_path)


def test_public_types_are_complete(installed: Installed) -> None:
    # pyright ignores --pythonpath here and uses the first Python on the path.
    path = f"{installed.python.parent}{os.pathsep}{os.environ['PATH']}"
    command: list[str | Path] = [TOOLS / "pyright", "--outputjson", "--verifytypes", "lcm", "--ignoreexternal"]
    environment = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(installed.folder)}
    ended = subprocess.run(command, cwd=installed.folder, env=environment, capture_output=True, text=True)
    report = json.loads(ended.stdout)["typeCompleteness"]
    assert report["pyTypedPath"] == str(installed.site_packages / "lcm" / "py.typed")
    unknown = [symbol["name"] for symbol in report["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    # Its base classes belong to neuroglia, which is not installed here.
    assert unknown == ["lcm.integrations.neuroglia.ControllerService"], ended.stdout


def test_metadata_has_summary_and_license(installed: Installed) -> None:
    information = only(installed.site_packages, "lcm_sdk-*.dist-info")
    metadata = (information / "METADATA").read_text(encoding="utf-8")
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    for line in [
        f"Version: {cargo['workspace']['package']['version']}",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.11",
        "Classifier: Typing :: Typed",
    ]:
        assert line in metadata.splitlines()
    assert (ROOT / "lcm-py" / "README.md").read_text(encoding="utf-8").strip() in metadata
    license = only(information, "**/LICENSE").read_text(encoding="utf-8")
    assert license == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_import_is_fast(installed: Installed) -> None:
    measured = """
        import sys, time
        began = time.process_time()
        import lcm
        took = time.process_time() - began
        print(took, "asyncio" in sys.modules, "logging" in sys.modules)
    """
    runs = [installed.script(measured).split() for _ in range(5)]
    # CPU time of this process, which does not depend on the load of the machine.
    assert min(float(took) for took, *_ in runs) < 0.150
    assert all(heavy == ["False", "False"] for _, *heavy in runs), "asyncio and logging are imported lazily"


def test_build_finds_protoc(tmp_path: Path) -> None:
    # The other tests reuse a compiled etcd client; this build script looks for `protoc` itself.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requires = json.dumps(project["build-system"]["requires"])
    (tmp_path / "pyproject.toml").write_text(
        f'[build-system]\nrequires = {requires}\nbuild-backend = "looking"\nbackend-path = ["."]\n'
        '[project]\nname = "nothing"\nversion = "1"\n'
    )
    (tmp_path / "looking.py").write_text(
        textwrap.dedent("""
            import pathlib, subprocess

            def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
                output = subprocess.run(["protoc", "--version"], check=True, capture_output=True, text=True).stdout
                pathlib.Path(__file__).with_name("output").write_text(output)
                raise SystemExit("there is nothing to build")
        """)
    )
    path = os.pathsep.join(
        part for part in os.environ["PATH"].split(os.pathsep) if not (Path(part) / "protoc").exists()
    )
    with pytest.raises(AssertionError, match="there is nothing to build"):
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", tmp_path, PATH=path)
    assert (tmp_path / "output").read_text().startswith("libprotoc ")


def test_dir_is_the_public_surface() -> None:
    assert dir(lcm) == sorted(lcm.__all__)


def test_every_public_name_can_be_imported() -> None:
    imported: dict[str, object] = {}
    exec("from lcm import *", imported)
    assert set(lcm.__all__) <= imported.keys()
    assert imported["reconcile"] is lcm.reconcile is sys.modules["lcm.reconcile"].reconcile
    unknown = "recouncil"
    with pytest.raises(AttributeError, match="module 'lcm' has no attribute 'recouncil'"):
        getattr(lcm, unknown)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Action", lcm.Effect),
        ("ActionName", lcm.EffectName),
        ("ActionResult", lcm.EffectResult),
        ("LookAgain", lcm.Requeue),
        ("OutcomeKind", lcm.Outcome),
    ],
)
def test_renamed_name_warns_and_is_its_successor(old: str, new: type) -> None:
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=rf"lcm\.{old} is deprecated: use lcm\.{new.__name__}$") as reported:
            assert getattr(lcm, old) is new
        assert [Path(one.filename).name for one in reported] == [Path(__file__).name]
    assert old not in dir(lcm)
