"""Runs a fake etcd alone: ``python -m lcm.fake_etcd`` serves etcd's API from memory on this machine.

It is the command ``fake-cloud etcd``; see ``--help`` for its options. Tests start it on a free port and read the
endpoint from its first line:

>>> main(["--clock", "soon"])
2
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lcm import fake_cloud

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command until SIGINT or SIGTERM, and return its exit code.

    The exit code is 0 after a stop, 1 after a failed start and 2 for wrong usage. ``arguments`` default to those of
    this process. Call it from the main thread: it handles signals.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    return fake_cloud.main("python -m lcm.fake_cloud", ["etcd", *words])


if __name__ == "__main__":
    sys.exit(main())
