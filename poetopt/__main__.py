"""The program: `poetopt`, or `python -m poetopt`. Imports little, so that Ctrl-C is met from the start."""

from __future__ import annotations

import gc
import sys

from poetopt.util.errors import BackendUnavailableError
from poetopt.util.systems import check_system

YOUNG = 50_000
"""Objects made between two looks of the collector: what imports and models make stays, and is looked at in vain."""


def main() -> None:
    """Entry point of the program."""
    try:
        check_system()
    except BackendUnavailableError as error:
        sys.stderr.write(f"poetopt: {error}\n")
        sys.exit(error.exit_code)
    from poetopt.util import interrupts, shortage

    shortage.supervise()
    gc.set_threshold(YOUNG)
    interrupts.install()
    try:
        from poetopt.cli.app import main as command

        command()
    except KeyboardInterrupt:  # before the command line's own guard is there
        interrupts.stop_here()


if __name__ == "__main__":
    main()
