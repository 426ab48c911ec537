"""Completions of the shell: names that there are, for arguments and options that take one of them."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from importlib import import_module

Completion = Callable[[str], list[str]]
SCOPES = ("auto", "depth:1", "depth:2", "depth:4", "depth:8", "depth:16", "forward", "full")
"""Any depth may be asked for."""


def choices(*names: str) -> Completion:
    """Of a few fixed words."""
    return lambda incomplete: _begin(incomplete, names)


def named(module: str) -> Completion:
    """Of what a module has names for, which is imported once it is asked for."""
    return lambda incomplete: _begin(incomplete, import_module(module).names())


networks = named("poetopt.zoo")
formulations = named("poetopt.formulations")
runtimes = named("poetopt.ops.runtimes")
backends = named("poetopt.backends.solvers.solver")


def devices(incomplete: str) -> list[str]:
    """Names and aliases of the catalogue, and TOML files."""
    from poetopt.devices.loading import aliases, names

    return _begin(incomplete, (*names(), *sorted(aliases()))) + _files(incomplete, ".toml")


def models(incomplete: str) -> list[str]:
    """Networks of the zoo, and files of models."""
    return networks(incomplete) + _files(incomplete, ".onnx", ".json")


def blocks(incomplete: str) -> list[str]:
    """Blocks for `--with`, which take a value each."""
    from poetopt.formulations.options import names

    return _begin(incomplete, (f"{name}=" for name in names()))


def methods(incomplete: str) -> list[str]:
    """Methods of `compare`: the last one of a list is completed."""
    from poetopt.comparison.baselines import names

    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in _begin(last, ("all", *names()))]


def _begin(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _files(incomplete: str, *endings: str) -> list[str]:
    found = sorted(glob.glob(f"{glob.escape(incomplete)}*"))
    return [f"{path}{os.sep}" if os.path.isdir(path) else path for path in found if _fits(path, endings)]


def _fits(path: str, endings: tuple[str, ...]) -> bool:
    return os.path.isdir(path) or path.endswith(endings)
