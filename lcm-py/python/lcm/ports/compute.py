"""EC2, as a port that you can write in Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from lcm.failure import CallFailure
from lcm.observation import Image, Instance
from lcm.ports.bridge import Answer
from lcm.values import Absent, FrozenMap

__all__ = ["Compute"]


class Compute(Protocol):
    """EC2. Every call is made with a region, and every change can be asked for twice without harm."""

    @abstractmethod
    def instances(
        self, region: str, ids: list[str], /
    ) -> Answer[Mapping[str, Instance | Mapping[str, Any] | str | Absent | CallFailure]]:
        """Describe instances by id.

        Only :data:`lcm.ABSENT` says that there is none. An id that is left out was not answered, and nothing is
        concluded from that.
        """

    @abstractmethod
    def tagged(self, region: str, worker_id: str, /) -> Answer[Iterable[Instance | Mapping[str, Any]]]:
        """Every instance whose tag ``lcm:worker_id`` names the worker, dead ones included."""

    @abstractmethod
    def images(self, region: str, pattern: str, /) -> Answer[Iterable[Image | Mapping[str, Any]]]:
        """The AMIs whose name matches a pattern; ``*`` and ``?`` are wildcards."""

    @abstractmethod
    def scan(
        self, region: str, ami_name_pattern: str | None, tags: list[tuple[str, str | None]], /
    ) -> Answer[Iterable[Instance | Mapping[str, Any]]]:
        """Every instance that meets all conditions, all pages of them; a tag without a value may have any.

        Raise if one page fails, or the missing ones look gone. Nobody asks without a condition.
        """

    @abstractmethod
    def sees_subnet(self, region: str, subnet_id: str, /) -> Answer[bool]:
        """Whether the subnet is visible with these credentials."""

    @abstractmethod
    def launch(self, plan: FrozenMap, /) -> Answer[str]:
        """Launch exactly this plan, ``client_token`` included, and give the instance's id.

        The same plan again gives the same instance, or is ``launch_died`` if that one is terminated. Another plan with
        the same token is ``refused``.
        """

    @abstractmethod
    def start(self, region: str, id: str, /) -> Answer[None]:
        """Start an instance. One that runs already is a success, one that is dead a ``conflict``."""

    @abstractmethod
    def stop(self, region: str, id: str, /) -> Answer[None]:
        """Stop an instance. One that is stopped already is a success, one that is dead a ``conflict``."""

    @abstractmethod
    def terminate(self, region: str, id: str, /) -> Answer[None]:
        """Terminate an instance. One that is gone already is a success."""
