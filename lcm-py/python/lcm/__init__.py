"""LCM keeps a fleet of cloud workers honest.

The pure part of the lifecycle, callable without a network:

>>> import lcm
>>> [lcm.backoff_delay(retries) for retries in range(8)]
[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
>>> lcm.transitions()[0]
Transition(source='pending', target='provisioning', kind='commanded', when='launched or adopted')
"""

from typing import Literal, NamedTuple

from lcm import _lcm

__all__ = ["Transition", "backoff_delay", "diagram", "transitions"]


class Transition(NamedTuple):
    """One legal change of a worker's status."""

    source: str
    """The status left."""
    target: str
    """The status entered."""
    kind: str
    """``commanded`` by the lifecycle, or ``observed`` in EC2."""
    when: str
    """When it happens, in a few words."""


def transitions() -> tuple[Transition, ...]:
    """Every legal change of status.

    >>> {edge.target for edge in transitions() if edge.source == "draining" and edge.kind == "commanded"} == {
    ...     "running", "stopping", "terminating"}
    True
    """
    return tuple(Transition(*edge) for edge in _lcm.transitions())


def diagram(format: Literal["mermaid", "dot"] = "mermaid") -> str:
    """Draw the state machine from the same table that decides.

    >>> print(diagram().splitlines()[0])
    stateDiagram-v2
    >>> diagram("svg")
    Traceback (most recent call last):
    ...
    ValueError: 'svg' is not a diagram format; accepted: dot, mermaid
    """
    diagrams = _lcm.diagrams()
    if format not in diagrams:
        raise ValueError(f"{format!r} is not a diagram format; accepted: {', '.join(sorted(diagrams))}")
    return diagrams[format]


def backoff_delay(retries: int) -> float:
    """Seconds to wait before a retry, counted from zero.

    >>> backoff_delay(3)
    8.0
    >>> backoff_delay(-1)
    Traceback (most recent call last):
    ...
    ValueError: retries is -1; accepted: a whole number from 0 up
    """
    if retries < 0:
        raise ValueError(f"retries is {retries}; accepted: a whole number from 0 up")
    return _lcm.backoff_seconds(min(retries, 2**32 - 1))
