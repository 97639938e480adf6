"""Pytest plugin with the fixtures ``fake_cloud`` and ``lcm_clients``, installed with the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lcm import Clients
    from lcm.testing import FakeCloud


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """A separate fake cloud per test, with a manual clock."""
    from lcm.testing import FakeCloud

    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def lcm_clients(fake_cloud: FakeCloud) -> Clients:
    """Clients for ``fake_cloud``: ``lcm.reconcile(worker, clients=lcm_clients)``."""
    return fake_cloud.clients()
