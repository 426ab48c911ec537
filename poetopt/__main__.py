"""The program: `poetopt`, or `python -m poetopt`. Imports little, so that Ctrl-C is met from the start."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the program."""
    try:
        from poetopt.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("poetopt: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
