"""The house: root links, the one direction of data flow, what is packaged, what is imported when."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "poetopt"
LINKS = ("formulations", "frontends", "backends")

LAYERS = (
    ("util",), ("graph",), ("ops", "frontends", "zoo", "autodiff"), ("devices",), ("plan", "formulations"),
    ("backends",), ("training",), ("search",), ("comparison", "testing"), ("report",), ("api",), ("torch",),
    ("__init__",), ("cli", "__main__"),
)  # fmt: skip
"""From upstream to downstream. A part imports its own layer and those before it."""
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
HEAVY = {
    "capstone", "dask", "distributed", "elftools", "highspy", "hypothesis", "matplotlib", "networkx", "numpy", "onnx",
    "onnxruntime", "pint", "pydantic", "pyomo", "scipy", "torch", "unicorn",
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Absolute names of all that a file imports, inside functions too, but not for type checkers alone."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" if module == "poetopt" else module for alias in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_links_at_the_root() -> None:
    if (ROOT / "PKG-INFO").exists():
        pytest.skip("a source distribution has no links")
    for name in LINKS:
        assert (ROOT / name).is_symlink()
        assert os.readlink(ROOT / name) == f"poetopt/{name}"
        assert (ROOT / name).resolve() == PACKAGE / name


def test_every_part_has_a_layer() -> None:
    assert {part_of(path) for path in modules()} <= set(RANK)


def test_imports_go_upstream() -> None:
    wrong = []
    for path in modules():
        part = part_of(path)
        for name in imports(path):
            top, _, rest = name.partition(".")
            if top in LINKS:
                wrong.append(f"{path} imports through the link {top}")
            elif top == "poetopt" and rest:
                # a name that is no part is one of the package's root
                imported = rest.partition(".")[0]
                if RANK[imported if imported in RANK else "__init__"] > RANK[part]:
                    wrong.append(f"{path} imports {name}, which is downstream of {part}")
    assert wrong == []


def test_what_the_root_hands_on_is_upstream_of_it() -> None:
    """Its public names are imported when they are first named, from modules that it knows by their names."""
    import poetopt

    for name, home in poetopt._HOMES.items():
        assert RANK[f"{home}.{name}".split(".")[1]] < RANK["__init__"], name


def test_a_wheel_from_the_source_distribution_is_whole(tmp_path: Path) -> None:
    """What `python -m build` does: the wheel is built from the unpacked archive, not from the tree."""
    pytest.importorskip("hatchling")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path / "made"), versions=["standard"])
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    present = {path.relative_to(unpacked).parts[0] for path in unpacked.iterdir()}
    assert {".ci", "CITATION.cff", "LICENSE", "Makefile", "README.md", "docs", "tests"} <= present
    assert not present & set(LINKS)
    wheel = {file.distribution_path for file in WheelBuilder(str(unpacked)).recurse_included_files()}
    tree = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert wheel == tree
    names = {path.name for path in ROOT.iterdir() if path.suffix in (".md", ".cff", ".txt") or path.name == ".ci"}
    assert names <= present


def test_constraints_cover_what_make_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    for requirement in wanted:
        name, _, least = requirement.partition(">=")
        version = tuple(int(digits) for digits in pinned[name].split("."))
        assert version >= tuple(int(digits) for digits in least.split(".")), requirement


@pytest.mark.parametrize("module", ["poetopt", "poetopt.cli.app"])
def test_heavy_libraries_wait_until_they_are_needed(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(run.stdout.split())


def test_public_names_exist() -> None:
    import poetopt

    for name in poetopt.__all__:
        assert getattr(poetopt, name) is not None
        assert name in dir(poetopt)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = poetopt.nothing


DECODED = re.compile(r"(Gives|Says|Holds|Tells|What|Of|The same|Such|See|Whether)\b")
"""Beginnings of summaries that have to be read twice."""


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                assert not DECODED.match(text), f"{path}: {text.splitlines()[0]}"
