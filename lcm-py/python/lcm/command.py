"""Runs the command ``lcm``, which shows a fleet of workers and steers it: the same program as the binary.

``lcm --help`` lists the commands; ``python -m lcm`` is the same.

>>> main("lcm", ["workers", "--wach"])
2
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from lcm import _command, _lcm

__all__ = ["main"]


def main(program: str = "lcm", arguments: Sequence[str] | None = None) -> int:
    """Run the command until it ends or SIGINT or SIGTERM stops it, and return its exit code.

    ``lcm --help`` lists the exit codes; 0 is success. ``arguments`` default to those of this process;
    ``program`` is the name in ``--help``. Call it from the main thread: it handles signals.
    """
    # Failures are printed as sentences; without a handler, Python would print warnings of calls as well.
    logging.getLogger("lcm").addHandler(logging.NullHandler())
    return _command.run(_lcm.lcm_command, program, arguments)


if __name__ == "__main__":
    sys.exit(main("python -m lcm.command"))
