"""Ports that you can write in Python, with plain or ``async`` methods.

Give one to :class:`lcm.Clients` and every pass asks it instead of the adapter that the settings would choose; a
:class:`Coordination` goes to the controller. A method that raises :class:`lcm.PortError` says what kind of failure it
was; after any other exception nobody knows what was done, and the pass is repeated. Either way the exception is kept:
see :meth:`lcm.ReconcileResult.raise_for_error`.

Whether a port keeps its promises is checked by :mod:`lcm.testing.conformance`.
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
