"""Runs the command ``lcm``, which shows a fleet of workers and steers it: the same program as the binary.

``lcm --help`` lists the commands; ``python -m lcm`` is the same. In Python, the functions of :mod:`lcm` are easier to
use: these are for a process that does nothing else, because they take over its signals and its log output.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from lcm import _command, _lcm

__all__ = ["main", "worker_controller"]


def main(program: str = "lcm", arguments: Sequence[str] | None = None) -> int:
    """Run the command until it ends or SIGINT or SIGTERM stops it, and return its exit code.

    ``lcm --help`` lists the exit codes; 0 is success. ``arguments`` default to those of this process;
    ``program`` is the name in ``--help``. Call it from the main thread: it handles signals.
    """
    _print_sentences_only()
    return _command.run(_lcm.lcm_command, program, arguments)


def worker_controller(program: str = "worker-controller", arguments: Sequence[str] | None = None) -> int:
    """Run the command ``worker-controller``, which is ``lcm controller`` under the name of the binary.

    Arguments, signals and exit codes are those of :func:`main`.
    """
    _print_sentences_only()
    return _command.run(_lcm.worker_controller_command, program, arguments)


def _print_sentences_only() -> None:
    # Failures are printed as sentences; without a handler, Python would print warnings of calls as well.
    logging.getLogger("lcm").addHandler(logging.NullHandler())


if __name__ == "__main__":
    sys.exit(main("python -m lcm.command"))
