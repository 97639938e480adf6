"""Pytest plugin with the fixtures ``fake_cloud`` and ``lcm_clients``, installed with the package.

The marker ``fake_cloud`` configures the fixture of its test. The report of a failed test has the requests to every fake
cloud among its fixtures.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lcm import Clients
    from lcm.testing import FakeCloud


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    options = "scenario, clock, control_plane, seed, delays, leases"
    config.addinivalue_line("markers", f"fake_cloud({options}): configure the fixture fake_cloud of the test")


@pytest.fixture
def fake_cloud(request: pytest.FixtureRequest) -> Iterator[FakeCloud]:
    """A separate fake cloud per test, with a manual clock unless ``@pytest.mark.fake_cloud(clock=…)`` sets another."""
    from lcm.testing import FakeCloud

    with FakeCloud(**_options(request.node)) as cloud:
        yield cloud


@pytest.fixture
def lcm_clients(fake_cloud: FakeCloud) -> Clients:
    """Clients for ``fake_cloud``: ``lcm.reconcile(worker, clients=lcm_clients)``."""
    return fake_cloud.clients()


def _options(node: pytest.Item) -> dict[str, Any]:
    """Return the options of the markers of a test; those of the closest marker win."""
    from lcm.testing import FakeCloud, did_you_mean

    accepted = [name for name in inspect.signature(FakeCloud).parameters if name != "self"]
    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers("fake_cloud"))):
        if marker.args:
            raise pytest.UsageError("@pytest.mark.fake_cloud takes keywords only: " + ", ".join(accepted))
        for name in marker.kwargs:
            if name not in accepted:
                hint = did_you_mean(name, accepted)
                expected = ", ".join(accepted)
                raise pytest.UsageError(
                    f"unknown option {name!r} of @pytest.mark.fake_cloud: expected {expected}{hint}"
                )
        options.update(marker.kwargs)
    return options


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add the requests to the clouds of a failed test."""
    report: pytest.TestReport = yield
    # A test that uses no cloud does not import the package.
    testing = sys.modules.get("lcm.testing")
    if report.when == "call" and report.failed and testing is not None:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, testing.FakeCloud) and value.is_running:
                report.sections.append((f"requests to {name}", value.request_report()))
    return report
