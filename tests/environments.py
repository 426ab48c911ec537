"""Go a user's way in environments of their own, which are kept in build/.

    python -m tests.environments lowest    the lowest version of each dependency that pyproject.toml allows
    python -m tests.environments pythons   the wheel and what it needs, for each Python that it is for

`lowest` runs tests/test_from_files.py on the tree. `pythons` goes `WAY` with nothing installed beside the wheel, then
adds pytest and runs `TESTS` on it. Only the installations need a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.examples.try_extension import wheel

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
LOWEST = ("tests/test_from_files.py",)
TESTS = (
    *LOWEST, "tests/test_light_install.py", "tests/test_threads.py", "tests/cli/test_mistakes.py",
    "tests/plan/test_structure.py", "tests/training/test_checkpoint.py",
)  # fmt: skip
DATA = """
import numpy as np
rng = np.random.default_rng(1)
np.savez("train.npz", input=rng.standard_normal((16, 1, 28, 28), np.float32), labels=rng.integers(0, 10, 16))
"""
WAY = """
--help
zoo lenet --batch 8 -o net.onnx
inspect net.onnx
solve net.onnx --device a72 --optimizer adam -o plan.json
verify plan.json
show plan.json -o page.html
run plan.json
train plan.json --data train.npz -o trained.onnx
""".strip().splitlines()
EXTRAS = """
show plan.json -o page.png
solve net.onnx --device a72 --backend gurobi -o other.json
quantize net.onnx -o small.onnx --kind int8
train plan.json --data train.npz --log events -o again.onnx
""".strip().splitlines()
"""What ends with 6, for want of an extra."""


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")


def project() -> dict[str, Any]:
    """The project's table of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def lowest() -> list[str]:
    """`name==version` of every dependency, and of pytest, at its lower bound."""
    table = project()
    wanted = [
        *table["dependencies"],
        *(line for line in table["optional-dependencies"]["test"] if line.startswith("pytest>")),
    ]
    found = [re.fullmatch(r"([\w.-]+)>=([\w.]+)(?:,<[\w.]+)?", line) for line in wanted]
    unbound = [line for line, match in zip(wanted, found, strict=True) if match is None]
    if unbound:
        sys.exit(f"pyproject.toml: no lower bound: {', '.join(unbound)}")
    return [f"{match[1]}=={match[2]}" for match in found if match is not None]


def python_in(folder: Path) -> str:
    """The Python of an environment."""
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def install(python: str, *given: str | Path) -> None:
    """Install with an environment's own pip. Ends the program where that fails."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *map(str, given)]
    subprocess.run(command, check=True)


def test(python: str, tests: Sequence[str], cwd: Path, *options: str) -> int:
    """The exit code of tests."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    return subprocess.run(command, cwd=cwd, env=_environment(), check=False).returncode


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}


def try_lowest() -> int:
    """The exit code of the tests with the lowest versions; the environment is made anew where a bound has changed."""
    pins, place = lowest(), BUILD / "lowest"
    marker, python = place / "pins.txt", python_in(place)
    if not marker.is_file() or marker.read_text(encoding="utf-8").split() != pins:
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        install(python, *pins)
        marker.write_text("\n".join(pins), encoding="utf-8")
    say(f"lowest versions: {', '.join(pins)}")
    return test(python, LOWEST, ROOT)


def interpreter(version: str) -> str | None:
    """A Python of that version: on the path, or one of pyenv's; None where none runs."""
    found = [f"python{version}"]
    if shutil.which("pyenv"):
        asked = subprocess.run(["pyenv", "prefix", version], capture_output=True, text=True, check=False)
        found += [str(Path(asked.stdout.strip(), "bin", "python"))] if not asked.returncode else []
    code = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for name in found:
        if shutil.which(name) and not subprocess.run([name, "-c", code], capture_output=True, check=False).returncode:
            return name
    return None


def try_pythons() -> int:
    """0 where all that is tried works on each Python that is here."""
    pattern = r"Programming Language :: Python :: (3\.\d+)"
    versions = [match[1] for line in project()["classifiers"] if (match := re.fullmatch(pattern, line))]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        made = wheel(ROOT, Path(name))
        for version in versions:
            found = interpreter(version)
            say(f"Python {version}: {'not tried, for it is not here' if found is None else 'the wheel alone'}")
            if found is not None:
                place = Path(name) / version
                place.mkdir()
                failed |= try_wheel(found, made, BUILD / f"python{version}", place)
    return failed


def try_wheel(interpreter: str, made: Path, environment: Path, place: Path) -> int:
    """0 where a user's way works with the wheel alone in an empty environment, and the tests pass on it."""
    subprocess.run([interpreter, "-m", "venv", "--clear", environment], check=True)
    python = python_in(environment)
    install(python, "-c", ROOT / "constraints.txt", made)
    subprocess.run([python, "-c", DATA], cwd=place, check=True)
    for commands, wanted in ((WAY, 0), (EXTRAS, 6)):
        for command in commands:
            call = [str(Path(python).with_name("poetopt")), *command.split()]
            done = subprocess.run(call, cwd=place, env=_environment(), capture_output=True, text=True, check=False)
            if done.returncode != wanted or "Traceback" in done.stderr:
                say(f"poetopt {command}: ended with {done.returncode}, not {wanted}\n{done.stderr}")
                return 1
    install(python, "-c", ROOT / "constraints.txt", "pytest", "pytest-xdist")
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return test(python, TESTS, place, "-n2")


if __name__ == "__main__":
    tries = {"lowest": try_lowest, "pythons": try_pythons}
    sys.exit(tries[sys.argv[1]]())
