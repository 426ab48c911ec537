"""Install poetopt with the lowest version of each dependency that pyproject.toml allows, and use it there.

    python tests/lowest_bounds.py

The environment is build/lowest; it is kept, and made anew where a bound has changed. It runs
tests/test_from_files.py. Only the installation needs a network.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "lowest"
TESTS = ("tests/test_from_files.py",)


def lowest() -> list[str]:
    """`name==version` of every dependency, and of pytest, at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(line for line in project["optional-dependencies"]["test"] if line.startswith("pytest>")),
    ]
    found = [re.fullmatch(r"([\w.-]+)>=([\w.]+)(?:,<[\w.]+)?", line) for line in wanted]
    unbound = [line for line, match in zip(wanted, found, strict=True) if match is None]
    if unbound:
        sys.exit(f"pyproject.toml: no lower bound: {', '.join(unbound)}")
    return [f"{match[1]}=={match[2]}" for match in found if match is not None]


def main() -> int:
    """The exit code of the tests."""
    pins, marker = lowest(), PLACE / "pins.txt"
    python = str(PLACE / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    if not marker.is_file() or marker.read_text(encoding="utf-8").split() != pins:
        shutil.rmtree(PLACE, ignore_errors=True)
        venv.create(PLACE, with_pip=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *pins], check=True)
        marker.write_text("\n".join(pins), encoding="utf-8")
    sys.stderr.write(f"lowest versions: {', '.join(pins)}\n")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
