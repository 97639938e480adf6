"""Runs clients of AWS against the fake cloud: moto's own tests of EC2, and a walk with the SDK for JavaScript.

The source distribution of moto contains its tests. They run twice: in moto itself, which shows the calls of each test,
and in moto's server mode against the fake cloud. A test counts if moto passes it and the fake serves each action that
it calls. Several of them expect a response that differs from AWS's documents: docs/other-fakes.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "target" / "peers"
EXTRAS = PEERS / "moto-extras"
JAVASCRIPT = {"ec2": "3.1169.0", "cloudwatch": "3.1162.0", "sts": "3.1169.0"}
# Fewer would be a regression.
AT_LEAST = 198

# Actions of the services beside EC2, whose actions are in the table of parameters.
OTHERS = {
    "sts.GetCallerIdentity",
    "cloudwatch.GetMetricData",
    "cloudwatch.GetMetricStatistics",
    "cloudwatch.ListMetrics",
    "cloudwatch.PutMetricData",
}


def served() -> set[str]:
    """The operations that the fake serves."""
    table = (ROOT / "fake-cloud/src/ec2/parameters.txt").read_text().splitlines()
    return {f"ec2.{line.strip()}" for line in table if line and not line.startswith(" ")} | OTHERS


@contextlib.contextmanager
def fake_cloud(program: str) -> Iterator[str]:
    """Run the fake cloud, in which instances change state at once, and yield the address of its AWS services."""
    command = [program, "--ephemeral", "--json", "--delays", "none", "--cml-limit", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())["aws_url"]
        finally:
            process.terminate()


def suite() -> Path:
    """Download the source distribution of the moto that is installed, and what its tests import beside it."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not EXTRAS.is_dir():
        requirements = Path(__file__).with_name("requirements-aws.txt")
        subprocess.run([*pip, "install", "--no-deps", "--target", EXTRAS, "--requirement", requirements], check=True)
    wanted = f"moto-{version('moto')}"
    if not (PEERS / wanted).is_dir():
        with tempfile.TemporaryDirectory() as downloads:
            pinned = wanted.replace("-", "==")
            subprocess.run(
                [*pip, "download", "--no-deps", "--no-binary", "moto", "--dest", downloads, pinned], check=True
            )
            [archive] = Path(downloads).glob("*.tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(PEERS, filter="data")
    return PEERS / wanted


Record = dict[str, dict[str, object]]


def run(directory: Path, record: Path, *tests: str, **environment: str) -> Record:
    """Run tests of moto and return the outcome and the operations of each."""
    path = os.pathsep.join([str(Path(__file__).parent), str(directory), str(EXTRAS)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "moto_plugin", "-p", "no:cacheprovider", "--tb=short"]
    command += ["--override-ini=addopts=", "--no-header", *tests]
    settings = {
        "PYTHONPATH": path,
        "MOTO_RECORD": str(record),
        "AWS_ACCESS_KEY_ID": "fake",
        "AWS_SECRET_ACCESS_KEY": "fake",
        "AWS_DEFAULT_REGION": "us-east-1",
        "no_proxy": "*",
    }
    with record.with_suffix(".log").open("w") as log:
        subprocess.run(command, cwd=directory, env=os.environ | settings | environment, stdout=log, stderr=log)
    found: Record = json.loads(record.read_text())
    return found


def javascript(program: str) -> tuple[int, dict[str, str]]:
    """Walk through EC2, CloudWatch and STS with the SDK for JavaScript. Returns what passed and what failed."""
    node = PEERS / "node"
    if not (node / "node_modules").is_dir():
        node.mkdir(parents=True, exist_ok=True)
        packages = [f"@aws-sdk/client-{service}@{version_}" for service, version_ in JAVASCRIPT.items()]
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(node)]
        subprocess.run([*npm, *packages], check=True)
    with fake_cloud(program) as url:
        settings = {"AWS_ENDPOINT_URL": url, "NODE_MODULES": str(node / "node_modules"), "no_proxy": "*"}
        command = ["node", "--no-warnings", str(Path(__file__).with_name("aws.mjs"))]
        found = json.loads(subprocess.check_output(command, env=os.environ | settings, text=True))
    return len(found["passed"]), found["failed"]


def main() -> int:
    """Run the clients and print a row for each. The exit code is 1 if a step fails or too few tests of moto pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake-cloud", default=str(ROOT / "target" / "debug" / "fake-cloud"), metavar="PROGRAM")
    parser.add_argument("--at-least", type=int, default=AT_LEAST, metavar="TESTS", help="tests of moto to pass")
    arguments = parser.parse_args()
    PEERS.mkdir(parents=True, exist_ok=True)
    print("| client | passed |\n|---|---|")
    steps, failed = javascript(arguments.fake_cloud)
    print(f"| AWS SDK for JavaScript {JAVASCRIPT['ec2']} | {steps} of {steps + len(failed)} |", flush=True)
    for step, problem in failed.items():
        print(f"  {step}: {problem}", file=sys.stderr)
    directory = suite()
    theirs = run(directory, PEERS / "moto.json", "tests/test_ec2")
    known = served()
    counted = [
        test
        for test, found in theirs.items()
        if found["outcome"] == "passed" and found["operations"] and set(found["operations"]) <= known
    ]
    with fake_cloud(arguments.fake_cloud) as url:
        mode = {"TEST_SERVER_MODE": "true", "TEST_SERVER_MODE_ENDPOINT": url, "FAKE_CLOUD_URL": url}
        ours = run(directory, PEERS / "moto-on-fake.json", *counted, **mode)
    # Some tests are left out in server mode.
    ran = [test for test in counted if test in ours and ours[test]["outcome"] != "skipped"]
    passed = [test for test in ran if ours[test]["outcome"] == "passed"]
    print(
        f"| suite | fake | moto |\n|---|---|---|\n| moto {version('moto')}, EC2 | {len(passed)} of {len(ran)} | all |"
    )
    for test in sorted(set(ran) - set(passed)):
        print(f"  {test}: {ours[test]['outcome']}", file=sys.stderr)
    return 1 if failed or len(passed) < arguments.at_least else 0


if __name__ == "__main__":
    sys.exit(main())
