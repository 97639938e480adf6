"""What Rust takes in place of what Python gives it.

Each is known by what it holds, not by its class: to import the classes takes longer than to decide.
"""

from __future__ import annotations

from lcm import _lcm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta

    from lcm.observation import Observation
    from lcm.policy import Policy

__all__ = ["native_observation", "native_policy", "seconds"]


def native_observation(observation: Observation) -> _lcm.Observation:
    """An observation as Rust takes it."""
    native = getattr(observation, "_native", None)
    if not isinstance(native, _lcm.Observation):
        raise TypeError(f"an observation is a {type(observation).__name__}; accepted: lcm.Observation")
    return native


def native_policy(policy: Policy | None) -> _lcm.Policy | None:
    """A policy as Rust takes it."""
    if policy is None:
        return None
    native = getattr(policy, "_native", None)
    if not isinstance(native, _lcm.Policy):
        raise TypeError(f"policy is a {type(policy).__name__}; accepted: lcm.Policy or None")
    return native


def seconds(timeout: float | timedelta | None) -> float | None:
    """A time limit as Rust takes it."""
    if timeout is None:
        return None
    from datetime import timedelta

    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
