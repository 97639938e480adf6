"""Runs the commands of the native module with the signal handling of a program."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence


def run(native: Callable[[str, Sequence[str]], int], program: str, arguments: Sequence[str] | None) -> int:
    """Run a command until it ends or a signal stops it, and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    # Otherwise Ctrl-C would stop the command cleanly and then raise KeyboardInterrupt here.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return native(program, words)
    finally:
        signal.signal(signal.SIGINT, before)
