"""The program: `poetopt`, or `python -m poetopt`. Imports little, so that Ctrl-C is met from the start."""

from __future__ import annotations

from poetopt import interrupts


def main() -> None:
    """Entry point of the program."""
    interrupts.install()
    try:
        from poetopt.cli import main as command
    except KeyboardInterrupt:
        interrupts.stop_here()
    command()


if __name__ == "__main__":
    main()
