"""Runs the command ``fake-cloud``: ``python -m lcm.fake_cloud`` starts a fake cloud on this machine.

It has the options of the binary; see ``--help``. Tests and notebooks use :class:`lcm.testing.FakeCloud`, which needs no
process of its own.

>>> main("fake-cloud", ["--ephemeral", "--clock", "soon"])
2
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lcm import _command, _lcm

__all__ = ["main"]


def main(program: str = "fake-cloud", arguments: Sequence[str] | None = None) -> int:
    """Run the command until SIGINT or SIGTERM, and return its exit code.

    The exit code is 0 after a stop, 1 after a failed start and 2 for wrong usage. ``arguments`` default to those of
    this process; ``program`` is the name in ``--help``. Call it from the main thread: it handles signals.
    """
    return _command.run(_lcm.fake_cloud_command, program, arguments)


if __name__ == "__main__":
    sys.exit(main("python -m lcm.fake_cloud"))
