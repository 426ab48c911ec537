"""Evaluate annotations, including names imported only for type checkers, and check values against them."""

from __future__ import annotations

import ast
import collections.abc
import importlib
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

Text = tuple[str, str]
"""An annotation, and its module."""


class LazyHints(dict[str, object]):
    """Annotations of a function by name, evaluated on first access, with the imports that they need."""

    def __iter__(self) -> Iterator[str]:
        for name, text in self.items():
            self[name] = evaluated(text) if isinstance(text, tuple) else text
        return super().__iter__()

    def keys(self) -> typing.Any:
        """Return all names, after evaluating the annotations."""
        return list(self)


def make_readable(target: object) -> None:
    """Let `typing.get_type_hints` evaluate the annotations of a function, or of all functions of a class."""
    for function in vars(target).values() if isinstance(target, type) else (target,):
        if isinstance(function, types.FunctionType) and not isinstance(function.__annotations__, LazyHints):
            annotations = function.__annotations__.items()
            texts = {name: (text, function.__module__) if isinstance(text, str) else text for name, text in annotations}
            function.__annotations__ = LazyHints(texts)


def evaluated(text: Text) -> object:
    """Return the type of an annotation."""
    return eval(text[0], vars(importlib.import_module(text[1])), _CheckedNames(text[1]))


class _CheckedNames(dict[str, object]):
    """Names that a module imports or defines under `if TYPE_CHECKING`, created on first access."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> object:
        return _checked_factories(self.module)[name]()


@cache
def _checked_factories(module: str) -> Mapping[str, Callable[[], object]]:
    factories: dict[str, Callable[[], object]] = {}
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    blocks = (entry for entry in tree.body if isinstance(entry, ast.If) and ast.unparse(entry.test) == "TYPE_CHECKING")
    for line in (line for block in blocks for line in block.body):
        if isinstance(line, ast.ImportFrom) and line.module:
            factories |= {
                entry.asname or entry.name: partial(_import_checked, line.module, entry.name) for entry in line.names
            }
        elif isinstance(line, ast.Import):
            factories |= {
                entry.asname or entry.name: partial(importlib.import_module, entry.name) for entry in line.names
            }
        elif isinstance(line, ast.Assign):
            factories[ast.unparse(line.targets[0])] = partial(evaluated, (ast.unparse(line.value), module))
    return factories


def _import_checked(module: str, name: str) -> object:
    source = importlib.import_module(module)
    return getattr(source, name) if hasattr(source, name) else _checked_factories(module)[name]()


WORDS: Mapping[object, tuple[str, str]] = {
    str: ("a text", "texts"), int: ("a whole number", "whole numbers"), float: ("a number", "numbers"),
    bool: ("True or False", "booleans"), type(None): ("None", "None"), os.PathLike: ("a path", "paths"),
    collections.abc.Callable: ("a function", "functions"), object: ("anything", "anything"),
}  # fmt: skip
"""Words for one value of a type, and for several."""


def described(hint: object, *, many: bool = False) -> str:
    """Return words for the values of a type."""
    kind, parts = _split_type(hint)
    if kind is types.UnionType:
        return " or ".join(dict.fromkeys(described(part, many=many) for part in parts))
    if kind in (collections.abc.Sequence, collections.abc.Mapping):
        return f"a {'list' if kind is collections.abc.Sequence else 'dict'} of {described(parts[-1], many=True)}"
    name = getattr(kind, "__name__", str(kind))
    return WORDS.get(kind, (f"a {name}", f"{name}s"))[many]


def _split_type(hint: object) -> tuple[object, tuple[object, ...]]:
    """Return a type without its parameters, and the parameters."""
    kind = type(None) if hint is None else typing.get_origin(hint) or hint
    return types.UnionType if kind is typing.Union else kind, typing.get_args(hint)


def matches(value: object, text: Text) -> bool:
    """Return whether a value has the type of an annotation, with as few imports as possible."""
    tree, unresolved = ast.parse(text[0], mode="eval").body, []
    parts: list[ast.expr] = []
    while isinstance(tree, ast.BinOp):
        parts.append(tree.right)
        tree = tree.left
    for part in map(ast.unparse, (tree, *reversed(parts))):
        try:
            if fits(value, eval(part, vars(importlib.import_module(text[1])))):
                return True
        except NameError:
            unresolved.append(part)
    return any(fits(value, evaluated((part, text[1]))) for part in unresolved)


def fits(value: object, hint: object) -> bool:
    """Return whether a value has a type, as far as inspecting it shows. numpy's numbers count as numbers."""
    kind, parts = _split_type(hint)
    if kind is types.UnionType:
        return any(fits(value, entry) for entry in parts)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool) or (getattr(value, "dtype", None) == "bool" and not getattr(value, "ndim", True))
    if kind is collections.abc.Callable:
        return callable(value)
    if kind is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items())
    if kind is collections.abc.Sequence:
        if isinstance(value, str | bytes) or not (isinstance(value, Sequence) or bool(getattr(value, "ndim", 0))):
            return False
        values: Iterable[object] = value  # type: ignore[assignment]
        return all(fits(entry, parts[0]) for entry in values)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)
