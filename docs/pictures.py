"""Draw the pictures of the README and the index page: a plan's schedule, and a front of energy against RAM.

python docs/pictures.py                     # solves first
python docs/pictures.py --plan plan.json    # the README's plan exists already

The README's plan is made by its own command, with time enough for its proof on a busy machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"
README = "solve resnet18-cifar --device a72 --ram 40% --deadline 1.5x --time-limit 300s"
FIRST_SCHEDULE = "solve ds-cnn --device m4 --optimizer sgd"
FRONT = "pareto ds-cnn --device m4 --points 8 --time-limit 100s"


def poetopt(*arguments: str) -> None:
    """Run the command of this checkout. Raises CalledProcessError."""
    subprocess.run((sys.executable, "-m", "poetopt", *arguments), check=True)


def main() -> None:
    """Solve, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="the README's plan, where it has been solved already")
    plan: Path | None = parser.parse_args().plan
    with tempfile.TemporaryDirectory() as name:
        if plan is None:
            plan = Path(name) / "plan.json"
            poetopt(*README.split(), "-o", str(plan))
        first = Path(name) / "first.json"
        poetopt(*FIRST_SCHEDULE.split(), "-o", str(first))
        poetopt("show", str(plan), "-o", str(IMAGES / "show-resnet18-cifar.png"))
        poetopt("show", str(first), "-o", str(IMAGES / "show-ds-cnn.png"))
        poetopt(*FRONT.split(), "-o", str(IMAGES / "pareto-ds-cnn.png"))


if __name__ == "__main__":
    main()
