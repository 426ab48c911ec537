"""The program: `poetopt`, or `python -m poetopt`. Imports little, so that Ctrl-C is met from the start."""

from __future__ import annotations

from poetopt.util import interrupts


def main() -> None:
    """Entry point of the program."""
    interrupts.install()
    try:
        from poetopt.cli.app import main as command

        command()
    except KeyboardInterrupt:  # before the command line's own guard is there
        interrupts.stop_here()


if __name__ == "__main__":
    main()
