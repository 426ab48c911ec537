"""Operators that differ in addresses and sizes alone have one C function, which takes these as parameters.

A network repeats its layers, and code is dear on a microcontroller. Small numbers (a kernel's taps, steps, flags) stay
constants: loops over them are unrolled, and what they decide is decided by the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from poetopt.backends.c.names import comment
from poetopt.backends.c.operators import OperatorCode

Key = TypeVar("Key")

SMALL = 16
"""Numbers below this are constants of a function."""
VALUE = re.compile(r"PO_(?:RESIDENT|FLASH)\(\d+u\)|(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?[uf]?(?![\w.])")
"""What may be a parameter: an address that no schedule moves, or a number."""
WHOLE = re.compile(r"memcpy\(|INT64|\b(?:float|double|u?int\d+_t) \w+\[")
"""A line that has this keeps its numbers: sizes of another type, and of arrays."""
COMMENT = re.compile(r"/\* ([^:]*?)(?:: .*?)? \*/")
HEAD = re.compile(r"(PO_\w+) (\w+)\((.*)\)\n")


def shared(operators: Mapping[Key, OperatorCode]) -> dict[Key, OperatorCode]:
    """`operators`, with a function for several where one will do: the first of these has its text."""
    groups: dict[str, list[Key]] = {}
    values: dict[Key, list[str]] = {}
    for key, code in operators.items():
        outline, values[key] = _outline(code.text)
        groups.setdefault(outline, []).append(key)
    found = dict(operators)
    for outline, keys in groups.items():
        if len(keys) > 1:
            found.update(_one(outline, {key: operators[key] for key in keys}, [values[key] for key in keys]))
    return found


def _outline(text: str) -> tuple[str, list[str]]:
    """A definition without names and with a gap for each value, and the values."""
    _, _, definition = text.partition("*/\n")
    head, _, body = definition.partition("{\n")
    values: list[str] = []

    def gap(found: re.Match[str]) -> str:
        value = found[0]
        if value.rstrip("u").isdigit() and int(value.rstrip("u")) < SMALL:
            return value
        values.append(value)
        return "\0"

    lines = []
    for line in body.splitlines():
        if "/*" in line:
            lines.append(COMMENT.sub(r"/* \1 */", line))
        elif WHOLE.search(line):
            lines.append(re.sub(r"PO_(?:RESIDENT|FLASH)\(\d+u\)", gap, line))
        else:
            lines.append(VALUE.sub(gap, line))
    return HEAD.sub(r"\1 \0(\3)\n", head) + "{\n" + "\n".join(lines) + "\n", values


def _one(outline: str, codes: Mapping[Key, OperatorCode], values: Sequence[Sequence[str]]) -> dict[Key, OperatorCode]:
    """The codes of a group: the first has the function."""
    taken: dict[tuple[str, ...], str] = {}
    kinds: list[str] = []
    filled: list[str] = []
    for column in zip(*values, strict=True):
        if len(set(column)) == 1:
            filled.append(column[0])
            continue
        if column not in taken:
            kind = _type(column[0])
            letter = "p" if kind.endswith("*") else "n"
            taken[column] = f"{letter}{len(taken)}"
            kinds.append(f"{kind}{taken[column]}" if kind.endswith("*") else f"{kind} {taken[column]}")
        filled.append(taken[column])
    head, *pieces = outline.split("\0")
    first = next(iter(codes.values()))
    function = f"{first.function}_and_{len(codes) - 1}"
    parts = zip(filled, pieces[1:], strict=True)
    definition = head + function + pieces[0] + "".join(value + piece for value, piece in parts)
    parameters = ", ".join(kinds)
    definition = HEAD.sub(
        lambda m: f"{m[1]} {m[2]}({', '.join(filter(None, (parameters, '' if m[3] == 'void' else m[3])))})\n",
        definition,
        count=1,
    )
    names = "".join(f"\n   {comment(code.name)}" for code in codes.values())
    text = f"/* one function for {len(codes)} operators:{names} */\n{definition}"
    return {
        key: replace(
            code, function=function, text=text if code is first else "", given=tuple(column[k] for column in taken)
        )
        for k, (key, code) in enumerate(codes.items())
    }


def _type(value: str) -> str:
    if value.startswith("PO_"):
        return "void *" if value.startswith("PO_RESIDENT") else "const void *"
    return {"u": "uint32_t", "f": "float"}.get(value[-1], "int32_t")
