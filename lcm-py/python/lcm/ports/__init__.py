"""Ports that applications can implement in Python, with plain or ``async`` methods.

A port passed to :class:`lcm.Clients` replaces the provider that the settings select; a :class:`Coordination` is passed
to the controller. A method reports the kind of a failure with :class:`lcm.PortError`. After any other exception the
effect of the call is unknown, and the reconcile is retried. :meth:`lcm.ReconcileResult.raise_for_error` raises the
exception again.

:mod:`lcm.testing.conformance` checks that a port keeps its contract.
"""

from lcm.ports.bridge import Bridge, fence
from lcm.ports.cml import Cml, CmlTarget
from lcm.ports.compute import Compute
from lcm.ports.control_plane import ControlPlane, Patch
from lcm.ports.coordination import (
    Changed,
    Compacted,
    Coordination,
    Held,
    Lease,
    Listing,
    Progress,
    Watch,
    Won,
)
from lcm.ports.events import Events
from lcm.ports.metrics import Metrics
from lcm.ports.resources import Resources

__all__ = [
    "Bridge",
    "Changed",
    "Cml",
    "CmlTarget",
    "Compacted",
    "Compute",
    "ControlPlane",
    "Coordination",
    "Events",
    "Held",
    "Lease",
    "Listing",
    "Metrics",
    "Patch",
    "Progress",
    "Resources",
    "Watch",
    "Won",
    "fence",
]
