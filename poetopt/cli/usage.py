"""What is wrong with a command line that the parser refuses, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from poetopt.cli.options import REMOVED

MISSING = {
    "--device": "say for which device, as in --device a72; `poetopt devices` lists them",
    "--data": "say what to train on, as in --data train.npz",
    "--out": "say where to write it, as in -o FILE",
    "MODEL": "give an .onnx file, or a network that `poetopt zoo` lists",
    "PLAN": "give a plan, which `poetopt solve MODEL --device a72 -o plan.json` writes",
    "SOLUTION": "give the solution that a solver wrote of what `poetopt export` wrote",
    "SWEEP.toml": "give a TOML file with models, devices and ram",
}
"""What to do where a parameter is missing."""
KINDS = (
    (r"greater than or equal to (\S+)", r"must be at least \1"),
    (r"less than or equal to (\S+)", r"must be at most \1"),
    (r"valid (integer|number)", r"must be a \1"),
)
"""What the parser says of a value, and what people say."""


def usage_message(said: str, command: str, arguments: Sequence[str]) -> str:
    """One message: what the parser said of the arguments of a command, with a remedy.

    command
        The program and the command, `poetopt solve`.
    """
    text = said.rstrip(".")
    text = text[:1].lower() + text[1:]
    remedy = (
        _removed(text)
        or _extra(text, command, arguments)
        or _missing(text)
        or _no_command(text)
        or _value(text, arguments)
    )
    return f"{remedy or text}; see {command} --help"


def _removed(text: str) -> str | None:
    """An option of the last release."""
    match = re.match(r"no such option: (--[\w-]+)", text)
    instead = REMOVED.get(match[1]) if match else None
    return instead and f"{match[1]}: there is no such option any more; give {instead}" if match else None


def _extra(text: str, command: str, arguments: Sequence[str]) -> str | None:
    """An argument too many: mostly a unit that a blank parted from its number, or a name that wants an option."""
    match = re.match(r"got unexpected extra arguments?\(?s?\)? \((.*)\)", text)
    if match is None:
        return None
    extra = match[1].split(" ")[0]
    place = next((k for k, argument in enumerate(arguments) if k and argument == extra), 0)
    before = arguments[place - 1] if place else ""
    if re.fullmatch(r"[\d.,]+", before) and re.fullmatch(r"%|×|[A-Za-zµ]{1,5}", extra):
        option = f"{arguments[place - 2]} " if place > 1 and arguments[place - 2].startswith("-") else ""
        return f"{option}{before} {extra}: write it without the blank, {option}{before}{extra}"
    if command.rpartition(" ")[2] in ("devices", "formulations"):
        return f"unexpected: {match[1]}; did you mean --show {extra}?"
    if extra.startswith("*") or len(match[1].split(" ")) > 1:
        return f"unexpected: {match[1]}; put patterns and names with blanks in quotes"
    return f"unexpected: {match[1]}; {command} takes one argument less, and options begin with --"


def _missing(text: str) -> str | None:
    match = re.match(r"missing (?:option|argument) (.*)", text)
    known = [remedy for name, remedy in MISSING.items() if match is not None and f"'{name}'" in match[1]]
    return f"{text}: {known[0]}" if known else None


def _no_command(text: str) -> str | None:
    """A model where the command should be."""
    match = re.match(r"no such command '(.*?)'$", text)
    if match is None:
        return None
    from poetopt import zoo

    name = match[1]
    found = name.lower() if name.lower() in zoo.names() else name if Path(name).suffix == ".onnx" else None
    return None if found is None else f"{text}; did you mean poetopt solve {found} --device a72?"


def _value(text: str, arguments: Sequence[str]) -> str | None:
    match = re.match(r"invalid value for '(?:.*?/ )?(--?[\w-]+)'(?: .*?)?: (.*)", text)
    if match is None:
        return None
    option, said = match[1], match[2]
    given = next((argument for before, argument in pairwise(arguments) if before == option), "")
    given = given or next((a.partition("=")[2] for a in arguments if a.startswith(f"{option}=")), "")
    for pattern, words in KINDS:
        found = re.search(pattern, said)
        if found is not None:
            kind = found.expand(words).replace("must be a integer", "must be a whole number")
            point = given.replace(",", ".")
            hint = f"; did you mean {point}?" if kind.endswith("a number") and re.fullmatch(r"\d+,\d+", given) else ""
            return f"{option} {given}: {kind}{hint}"
    return None
