"""The command ``fake-cloud``, from Python: ``python -m lcm.fake_cloud`` starts a cloud on this machine.

It is the same as the binary, with the same options; ``--help`` teaches them. In tests and notebooks
:class:`lcm.testing.FakeCloud` is the better door: it needs no process of its own.

>>> main("fake-cloud", ["--ephemeral", "--clock", "soon"])
2
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from lcm import _lcm

__all__ = ["main"]


def main(program: str = "fake-cloud", arguments: Sequence[str] | None = None) -> int:
    """Run the command until Ctrl-C or a request to end the process, and give its exit code.

    0 is stopped as asked, 1 could not start, and 2 wrong usage. ``arguments`` are those of this process unless they
    are given; ``program`` is what ``--help`` calls it. It is for the main thread: it listens to signals.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    # Else Ctrl-C would end the command cleanly and then be raised here all the same.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _lcm.fake_cloud_command(program, words)
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main("python -m lcm.fake_cloud"))
