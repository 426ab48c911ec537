"""Install poetopt and the example extension as wheels into a fresh environment outside the tree, and use them there.

    python docs/examples/try_extension.py

The environment gets two wheels and nothing of the repository; the libraries that poetopt needs are those of the
running Python (`--download`: fetched anew, as a user's pip would). The extension must then appear in
`poetopt formulations`, solve, and pass its own tests, among them the contract suites of po.testing. Ends with 0, or
says what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPED = Path(__file__).resolve().parent / "typed.py"
EXTENSION = Path(__file__).resolve().parent / "extension"


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """What a command prints. Ends the program with what it said where it fails."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        sys.exit(f"failed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a project, with the build tools that are installed."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    before = set(folder.glob("*.whl"))
    run([*pip, "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source], folder)
    (made,) = set(folder.glob("*.whl")) - before
    return made


def environment(folder: Path, wheels: Sequence[Path], download: bool) -> Path:
    """A fresh environment with the wheels; its folder of programs."""
    venv.create(folder, with_pip=False)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder, "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    if download:
        run([*pip, *wheels, "pytest"], folder)
        return programs
    run([*pip, "--no-index", "--no-deps", *wheels], folder)
    # a .pth file, which stands behind the environment's own folder: the wheels come first, libraries from here
    own = run([programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip()
    theirs = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    Path(own, "libraries.pth").write_text("\n".join(theirs) + "\n", encoding="utf-8")
    return programs


def check_types(folder: Path, python: Path) -> None:
    """mypy --strict and, where it is installed, pyright find every type in a user's program and in the extension."""
    shutil.copy(TYPED, folder)
    files = [folder / TYPED.name, folder / "extension" / "src"]
    mypy: list[str | Path] = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python]
    # Pyomo and its kin come without types
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-pyomo.*]\nignore_missing_imports = true\n", encoding="utf-8")
    print("mypy:", run([*mypy, *files], folder).strip())
    pyright = Path(sys.executable).with_name("pyright")
    if not _runs(pyright):
        print("pyright: not checked, as it isn't installed here, or can't run (pip install pyright brings it)")
        return
    print("pyright:", run([pyright, "--pythonpath", python, *files], folder).strip())


def _runs(program: Path) -> bool:
    """Whether a program is there and starts: pyright's package is a stub that fetches the rest at its first run."""
    if not program.exists():
        return False
    return subprocess.run([str(program), "--version"], capture_output=True).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--download", action="store_true", help="fetch the libraries too, as a user's pip would")
    parser.add_argument("--types", action="store_true", help="check typed.py with mypy --strict and pyright instead")
    given = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy = folder / "extension"
        shutil.copytree(EXTENSION, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        wheels = [wheel(ROOT, folder), wheel(copy, folder)]
        programs = environment(folder / "venv", wheels, given.download)
        poetopt, python = programs / "poetopt", programs / "python"
        where = run([python, "-c", "import poetopt; print(poetopt.__file__)"], folder).strip()
        assert Path(where).is_relative_to(folder.resolve() / "venv"), f"{where} is not the wheel's"
        if given.types:
            check_types(folder, python)
            print(f"the public interface is typed: {time.monotonic() - begin:.0f} s")
            return
        listed = json.loads(run([poetopt, "formulations", "--json", "-"], folder))["formulations"]
        names = {entry["name"] for entry in listed}
        assert {"retention", "poet", "calm", "static-power", "wakeups"} <= names, f"listed are {sorted(names)}"
        assert "N" in run([poetopt, "formulations", "--show", "wakeups"], folder)
        options = ["--device", "a72", "--batch", "1", "--ram", "60%", "--scope", "depth:2", "--gap", "5%"]
        asked: list[str | Path] = [
            poetopt,
            "solve",
            "resnet18-cifar",
            *options,
            "--block",
            "wakeups=2",
            "--backend",
            "highs-single",
        ]
        found = json.loads(run([*asked, "--json", "-", "-o", folder / "plan.json"], folder))
        assert found["formulation"] == "retention+wakeups", found["formulation"]
        assert found["page_ins"] + found["page_outs"] <= 2, found
        run([poetopt, "run", folder / "plan.json"], folder)
        folder.joinpath("net.layers").write_text("input 64\nlinear 32\nshrink 0.3\nlinear 10\n", encoding="utf-8")
        run([poetopt, "solve", "net.layers", "--device", "a72", "--ram", "100%", "-o", "net.json"], folder)
        run([poetopt, "run", "net.json"], folder)
        print(run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", copy / "tests"], copy).strip())
    print(f"the extension is listed, solves, runs and passes its tests: {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
