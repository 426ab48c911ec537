"""Take the README's picture anew: the page of `poetopt show`, as Chromium draws it.

.venv/bin/python docs/pictures.py                     # solves first
.venv/bin/python docs/pictures.py --plan plan.json    # of a plan that is there already

The plan is made by the README's own command, with time enough for its proof on a busy machine: after docs/tour.py,
from the same version.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).resolve().parent / "images" / "show-resnet18-cifar.png"
COMMAND = "solve resnet18-cifar --device a72 --ram 40% --deadline 1.5x --time-limit 300s"
SIZE = (1440, 2140)
"""Of the window, in pixels."""


def poetopt(*arguments: str) -> None:
    """Run the command of this checkout. Raises CalledProcessError."""
    subprocess.run((sys.executable, "-m", "poetopt", *arguments), check=True)


def take(plan: Path, picture: Path, folder: Path) -> None:
    """The page of a plan as a picture. Raises FileNotFoundError without Chromium, CalledProcessError."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise FileNotFoundError("chromium isn't there; install it to take pictures of pages")
    page = folder / "page.html"
    poetopt("show", str(plan), "-o", str(page))
    subprocess.run(
        (
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={SIZE[0]},{SIZE[1]}",
            "--virtual-time-budget=5000",
            f"--screenshot={picture}",
            page.as_uri(),
        ),
        check=True,
    )


def main() -> None:
    """Solve where there is no plan, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="the README's plan, where it has been solved already")
    plan: Path | None = parser.parse_args().plan
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if plan is None:
            plan = folder / "plan.json"
            poetopt(*COMMAND.split(), "-o", str(plan))
        take(plan, PICTURE, folder)


if __name__ == "__main__":
    main()
