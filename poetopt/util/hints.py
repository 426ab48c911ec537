"""Annotations, also of names that a module imports for type checkers alone, and values that are held against them."""

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
"""An annotation, and the module that it stands in."""


class LazyHints(dict[str, object]):
    """Annotations of a function, by name, that are evaluated when somebody reads them, with all that they import."""

    def __iter__(self) -> Iterator[str]:
        for name, text in self.items():
            self[name] = evaluated(text) if isinstance(text, tuple) else text
        return super().__iter__()

    def keys(self) -> typing.Any:
        """All names, once the annotations are evaluated."""
        return list(self)


def make_readable(found: object) -> None:
    """Let `typing.get_type_hints` evaluate the annotations of a function, or those of a class's own functions."""
    for function in vars(found).values() if isinstance(found, type) else (found,):
        if isinstance(function, types.FunctionType) and not isinstance(function.__annotations__, LazyHints):
            written = function.__annotations__.items()
            texts = {name: (text, function.__module__) if isinstance(text, str) else text for name, text in written}
            function.__annotations__ = LazyHints(texts)


def evaluated(text: Text) -> object:
    """Return the type that an annotation names."""
    return eval(text[0], vars(importlib.import_module(text[1])), _CheckedNames(text[1]))


class _CheckedNames(dict[str, object]):
    """Names that a module imports and defines under `if TYPE_CHECKING`; each is made when it is asked for."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> object:
        return _makers(self.module)[name]()


@cache
def _makers(module: str) -> Mapping[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    checked = (one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING")
    for line in (line for block in checked for line in block.body):
        if isinstance(line, ast.ImportFrom) and line.module:
            found |= {one.asname or one.name: partial(_imported, line.module, one.name) for one in line.names}
        elif isinstance(line, ast.Import):
            found |= {one.asname or one.name: partial(importlib.import_module, one.name) for one in line.names}
        elif isinstance(line, ast.Assign):
            found[ast.unparse(line.targets[0])] = partial(evaluated, (ast.unparse(line.value), module))
    return found


def _imported(module: str, name: str) -> object:
    source = importlib.import_module(module)
    return getattr(source, name) if hasattr(source, name) else _makers(module)[name]()


WORDS: Mapping[object, tuple[str, str]] = {
    str: ("a text", "texts"), int: ("a whole number", "whole numbers"), float: ("a number", "numbers"),
    bool: ("True or False", "booleans"), type(None): ("None", "None"), os.PathLike: ("a path", "paths"),
    collections.abc.Callable: ("a function", "functions"), object: ("anything", "anything"),
}  # fmt: skip
"""A value of a type, and several."""


def described(hint: object, *, many: bool = False) -> str:
    """Return in words what fits a type."""
    kind, parts = _taken_apart(hint)
    if kind is types.UnionType:
        return " or ".join(dict.fromkeys(described(one, many=many) for one in parts))
    if kind in (collections.abc.Sequence, collections.abc.Mapping):
        return f"a {'list' if kind is collections.abc.Sequence else 'dict'} of {described(parts[-1], many=True)}"
    name = getattr(kind, "__name__", str(kind))
    return WORDS.get(kind, (f"a {name}", f"{name}s"))[many]


def _taken_apart(hint: object) -> tuple[object, tuple[object, ...]]:
    """A type without its parameters, and these."""
    kind = type(None) if hint is None else typing.get_origin(hint) or hint
    return types.UnionType if kind is typing.Union else kind, typing.get_args(hint)


def matches(value: object, text: Text) -> bool:
    """Return whether a value is of the type that an annotation names; what it need not import for that, it doesn't."""
    tree, later = ast.parse(text[0], mode="eval").body, []
    parts: list[ast.expr] = []
    while isinstance(tree, ast.BinOp):
        parts.append(tree.right)
        tree = tree.left
    for part in map(ast.unparse, (tree, *reversed(parts))):
        try:
            if fits(value, eval(part, vars(importlib.import_module(text[1])))):
                return True
        except NameError:
            later.append(part)
    return any(fits(value, evaluated((part, text[1]))) for part in later)


def fits(value: object, hint: object) -> bool:
    """Return whether a value is of a type, as far as looking at it tells. Numbers of numpy are numbers."""
    kind, parts = _taken_apart(hint)
    if kind is types.UnionType:
        return any(fits(value, one) for one in parts)
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
        each: Iterable[object] = value  # type: ignore[assignment]
        return all(fits(one, parts[0]) for one in each)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)
