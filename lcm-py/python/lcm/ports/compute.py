"""Port to EC2."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from lcm.failure import CallFailure
from lcm.observation import Image, Instance
from lcm.ports.bridge import MaybeAwaitable
from lcm.values import Absent, FrozenMap

__all__ = ["Compute"]


class Compute(Protocol):
    """EC2. Every call names a region, and every change is idempotent."""

    @abstractmethod
    def instances(
        self, region: str, ids: list[str], /
    ) -> MaybeAwaitable[Mapping[str, Instance | Mapping[str, Any] | str | Absent | CallFailure]]:
        """Describe instances by id.

        :data:`lcm.ABSENT` states that the instance does not exist. A missing id counts as a failed call, from which
        nothing is concluded.
        """

    @abstractmethod
    def tagged(self, region: str, worker_id: str, /) -> MaybeAwaitable[Iterable[Instance | Mapping[str, Any]]]:
        """Return every instance whose tag ``lcm:worker_id`` names the worker, terminated ones included."""

    @abstractmethod
    def images(self, region: str, pattern: str, /) -> MaybeAwaitable[Iterable[Image | Mapping[str, Any]]]:
        """Return the AMIs whose name matches a pattern; ``*`` and ``?`` are wildcards."""

    @abstractmethod
    def scan(
        self, region: str, ami_name_pattern: str | None, tags: list[tuple[str, str | None]], /
    ) -> MaybeAwaitable[Iterable[Instance | Mapping[str, Any]]]:
        """Return all pages of the instances that meet all conditions; a tag of value None matches any value.

        Raise if one page fails: instances of a missing page would look terminated. At least one condition is given.
        """

    def subnet_owner(self, region: str, subnet_id: str, /) -> MaybeAwaitable[str | None]:
        """Return the id of the account that owns a subnet; None, the default, if the subnet is not visible."""
        return None

    def account_id(self, region: str, /) -> MaybeAwaitable[str | None]:
        """Return the id of the account behind the calls in a region; None, the default, if it is not known.

        An absent instance is believed to be gone only if the account is proved: this id is the configured one, the one
        in which the instance was last found, or the owner of the configured subnet. Without an id, another recorded
        instance must be found.
        """
        return None

    @abstractmethod
    def launch(self, plan: FrozenMap, /) -> MaybeAwaitable[str]:
        """Launch an instance as planned, with the plan's ``client_token``, and return its id.

        The same plan returns the same instance, or fails with ``launch_died`` if that instance is terminated. Another
        plan with the same token is ``refused``.
        """

    @abstractmethod
    def start(self, region: str, id: str, /) -> MaybeAwaitable[None]:
        """Start an instance. A running instance is a success, a terminated one a ``conflict``."""

    @abstractmethod
    def stop(self, region: str, id: str, /) -> MaybeAwaitable[None]:
        """Stop an instance. A stopped instance is a success, a terminated one a ``conflict``."""

    @abstractmethod
    def terminate(self, region: str, id: str, /) -> MaybeAwaitable[None]:
        """Terminate an instance. A terminated or missing instance is a success."""
