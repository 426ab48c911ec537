"""The house in figures: lines, code lines, ops named outside of their declarations, classes, constants, late imports.

    .venv/bin/python -m benchmarks.house [--check] [--output benchmarks/results/house.md]

A code line is a line with a token that is neither a comment nor part of a docstring. `--check` ends with code 1 where
a room has more code lines than `benchmarks/house.toml` allows: a commit of its own raises a ceiling and says why.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.output import put

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "benchmarks" / "house.toml"
NAMES_MANY = 6
"""A file that names so many ops knows about ops."""
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Numbers of the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def code_lines(text: str) -> int:
    """Count the lines of code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def names_assigned(node: ast.stmt) -> Iterator[str]:
    """Names that a statement at module level binds as constants."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(one, ast.Name):
                yield one.id


def is_not_none(node: ast.Assert) -> bool:
    """Return whether the assertion is `x is not None`."""
    return isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.IsNot)


def measured(files: Mapping[Path, str], tests: Mapping[Path, str]) -> dict[str, int]:
    """The house's figures by name."""
    from onnx.defs import get_all_schemas

    ops = {schema.name for schema in get_all_schemas()} - {"If", "Loop", "Scan"}
    found: Counter[str] = Counter()
    for text in files.values():
        tree = ast.parse(text)
        strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        late = {id(n) for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)}
        found["lines"] += text.count("\n")
        found["code lines"] += code_lines(text)
        found["files"] += 1
        found[f"files that name {NAMES_MANY} ops or more"] += len(strings & ops) >= NAMES_MANY
        found["files that name Conv"] += "Conv" in strings
        found["public classes"] += sum(isinstance(n, ast.ClassDef) and n.name[0] != "_" for n in tree.body)
        found["module constants"] += sum(len(list(names_assigned(n))) for n in tree.body)
        found["imports inside functions"] += len(late)
        found["annotations `: Any`"] += len(re.findall(r": Any\b", text))
        found["`assert x is not None`"] += sum(isinstance(n, ast.Assert) and is_not_none(n) for n in ast.walk(tree))
    found["lines of tests"] = sum(text.count("\n") for text in tests.values())
    return dict(found)


def by_room(files: Mapping[Path, str], package: Path) -> dict[str, int]:
    """Code lines of each room."""
    rooms: Counter[str] = Counter()
    for path, text in files.items():
        inside = path.relative_to(package).parts
        rooms[inside[0] if len(inside) > 1 else "."] += code_lines(text)
    return dict(rooms.most_common())


def sources(folder: Path) -> dict[Path, str]:
    """The Python files of a folder and their texts."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


def main() -> int:
    """Print the tables, or write them to a file; check them against the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout to measure")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    package = given.root / "poetopt"
    files = sources(package)
    rooms = by_room(files, package)
    figures = measured(files, sources(given.root / "tests"))
    budget: dict[str, int] = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["code_lines"] if BUDGET.exists() else {}
    lines = ["| | now |", "|---|---|", *(f"| {name} | {count:,} |" for name, count in figures.items())]
    lines += ["", "| room | code lines | at most |", "|---|---|---|"]
    lines += [f"| {room} | {count:,} | {budget.get(room, 0):,} |" for room, count in rooms.items()]
    put(lines, given.output)
    over = [
        f"{room} has {n:,} code lines, {budget[room]:,} at most" for room, n in rooms.items() if n > budget.get(room, n)
    ]
    if given.check and over:
        print("\n".join(over))
    return int(given.check and bool(over))


if __name__ == "__main__":
    raise SystemExit(main())
