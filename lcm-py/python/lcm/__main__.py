"""Runs the command ``lcm`` as ``python -m lcm``."""

import sys

from lcm.command import main

if __name__ == "__main__":
    sys.exit(main("python -m lcm"))
