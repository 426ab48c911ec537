"""The systems that the README names are those that the package is for, and another one is refused in one line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
WINDOWS = """
import os, runpy, signal, sys
for name in ("fcntl", "resource", "pwd"):
    sys.modules[name] = None
for module, names in {os: "O_NONBLOCK O_NOCTTY O_NOFOLLOW fork register_at_fork getuid", signal: "SIGHUP"}.items():
    for name in names.split():
        delattr(module, name)
os.name = "nt"
"""
"""A system without what POSIX has."""


def test_another_system_is_refused_in_one_line() -> None:
    run = f"{WINDOWS}sys.argv[1:] = ['devices']\nrunpy.run_module('poetopt', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (6, "")
    assert ended.stderr.startswith("poetopt: ")
    assert ended.stderr.count("\n") == 1
    in_python = f"{WINDOWS}import poetopt as po\ntry: po.solve\nexcept ImportError as error: print(error)"
    ended = subprocess.run([sys.executable, "-c", in_python], capture_output=True, text=True, check=True)
    assert "Linux and macOS" in ended.stdout


def test_the_readme_names_the_systems() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    systems = {entry.split(" :: ")[-1] for entry in entries if entry.startswith("Operating System")}
    assert systems == {"Linux", "MacOS"}
    readme = (ROOT / "README.md").read_text().casefold()
    assert all(system.casefold() in readme for system in systems)
