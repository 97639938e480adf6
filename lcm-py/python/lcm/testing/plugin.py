"""The pytest plugin. Installed with the package: ask for ``fake_cloud`` or ``lcm_clients`` in any test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lcm import Clients
    from lcm.testing import FakeCloud


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """A cloud of the test's own, whose clock stands still until the test moves it."""
    from lcm.testing import FakeCloud

    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def lcm_clients(fake_cloud: FakeCloud) -> Clients:
    """Clients for ``fake_cloud``: ``lcm.reconcile(worker, clients=lcm_clients)``."""
    return fake_cloud.clients()
