"""Solution files of solvers: HiGHS, Gurobi, CBC, SCIP, CPLEX, AMPL, or plain lines of a name and a value."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from poetopt.util.errors import PlanError
from poetopt.util.files import read_text

LARGEST_BYTES = 500_000_000
KNOWN = (
    "the formats known are those of HiGHS, Gurobi (.sol, .json), CBC, SCIP, CPLEX and AMPL, and lines of a name "
    "and a value"
)


@dataclass(frozen=True)
class SolutionFile:
    """A solution as a solver wrote it.

    form
        Whose format it is.
    values
        By variable name.
    sparse
        Whether the format leaves zeros out, so that a variable that isn't named is 0.
    """

    form: str
    values: dict[str, float]
    sparse: bool


def read_solution(path: str | os.PathLike[str]) -> SolutionFile:
    """Read a solution file; the format is known by its content.

    Raises PlanError for a file that is no solution file, holds no solution, or breaks off.
    """
    shown = os.fspath(path)
    try:
        text = read_text(shown, LARGEST_BYTES)
    except UnicodeDecodeError as error:
        raise PlanError(f"{shown}: not a text file; give the solution file that the solver wrote") from error
    except IsADirectoryError as error:
        raise PlanError(f"{shown}: a folder; give the solution file that the solver wrote") from error
    except OSError as error:
        raise PlanError(f"{shown}: {error.strerror}; give the solution file that the solver wrote") from error
    lines = [line.strip() for line in text.splitlines()]
    if not any(lines):
        raise PlanError(f"{shown}: the file is empty; the solver found no solution, or has not ended yet")
    reader = _Reader(shown, lines)
    form, read, sparse = next(((f, r, z) for f, fits, r, z in _FORMS if fits(text)), ("plain", _plain, True))
    values = read(reader)
    if not values:
        why = f"there is no solution in it{reader.status}"
        raise PlanError(f"{shown}: {why}; give the solver more time, or export the model with a larger budget")
    bad = next((name for name, value in values.items() if not math.isfinite(value)), None)
    if bad is not None:
        raise PlanError(f"{shown}: the variable '{bad}' has the value {values[bad]}; it must be a finite number")
    return SolutionFile(form, values, sparse)


class _Reader:
    def __init__(self, path: str, lines: Sequence[str]) -> None:
        self.path, self.lines = path, lines
        self.status = ""

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Lines with something on them, with their numbers; comments left out."""
        for x, line in enumerate(self.lines, 1):
            if line and not line.startswith(("#", "//", "*")):
                yield x, line

    def value(self, number: int, text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise PlanError(
                f"{self.path}:{number}: '{_short(self.lines[number - 1])}' has no number for a value; {KNOWN}"
            ) from error

    def put(self, values: dict[str, float], number: int, name: str, text: str) -> None:
        if name in values:
            raise PlanError(f"{self.path}:{number}: the variable '{name}' comes twice; give the file of one solution")
        values[name] = self.value(number, text)


def _short(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:57]}..."


def _highs(reader: _Reader) -> dict[str, float]:
    """`Model status`, a status, then `# Primal solution values`, their status, and `# Columns N` with N lines."""
    values: dict[str, float] = {}
    lines = reader.lines
    status = next((line for line in lines[1:] if line), "")
    reader.status = f" (HiGHS says: {status.lower()})"
    place = next((x for x, line in enumerate(lines) if line.startswith("# Columns")), None)
    if place is None or (place >= 2 and lines[place - 2] == "Infeasible"):
        return {}
    count = int(reader.value(place + 1, lines[place].rpartition(" ")[2]))
    for number, line in enumerate(lines[place + 1 : place + 1 + count], place + 2):
        fields = line.split()
        if len(fields) != 2 or line.startswith("#"):
            break
        reader.put(values, number, fields[0], fields[1])
    if len(values) != count:
        raise PlanError(
            f"{reader.path}: the file breaks off: it announces {count} columns and has {len(values)}; write it again"
        )
    return values


def _cbc(reader: _Reader) -> dict[str, float]:
    """A line of status, then `index name value dual`; ** before what breaks a bound."""
    head = next(line for line in reader.lines if line)
    reader.status = f" (CBC says: {head.partition(' - ')[0].lower()})"
    values: dict[str, float] = {}
    if head.startswith(("Infeasible", "Integer infeasible", "Unbounded")) or "no integer solution" in head:
        return values
    for number, line in list(reader.numbered())[1:]:
        fields = line.replace("**", " ").split()
        if len(fields) != 4:
            raise PlanError(
                f"{reader.path}:{number}: '{_short(line)}' isn't `index name value dual`; the file breaks off there"
            )
        reader.put(values, number, fields[1], fields[2])
    return values


def _scip(reader: _Reader) -> dict[str, float]:
    """`solution status: ...`, `objective value: ...`, then `name value (obj:c)`; zeros are left out."""
    values: dict[str, float] = {}
    for number, line in reader.numbered():
        if line.startswith("solution status:"):
            reader.status = f" (SCIP says: {line.partition(':')[2].strip()})"
        elif line.startswith(("objective value:", "no solution available")):
            continue
        else:
            fields = line.split()
            if len(fields) < 2:
                raise PlanError(f"{reader.path}:{number}: '{_short(line)}' has no value; the file breaks off there")
            reader.put(values, number, fields[0], fields[1])
    return values


_CPLEX_VARIABLE = re.compile(r"<variable\b[^>]*?\bname=\"([^\"]*)\"[^>]*?\bvalue=\"([^\"]*)\"")


def _cplex(reader: _Reader) -> dict[str, float]:
    values: dict[str, float] = {}
    if not any("</CPLEXSolution>" in line for line in reader.lines):
        raise PlanError(f"{reader.path}: the file breaks off before </CPLEXSolution>; write it again")
    for number, line in enumerate(reader.lines, 1):
        for match in _CPLEX_VARIABLE.finditer(line):
            reader.put(values, number, match[1], match[2])
    return values


def _ampl(reader: _Reader) -> dict[str, float]:
    """A message, `Options` and their numbers, four counts, duals, values in the order of the .col file beside it."""
    names_path = Path(reader.path).with_suffix(".col")
    try:
        names = read_text(names_path, LARGEST_BYTES, named_by_file=True).split()
    except OSError as error:
        raise PlanError(
            f"{reader.path}: an AMPL solution has no names; put {names_path.name}, which was exported with the model, "
            "beside it"
        ) from error
    begin = reader.lines.index("Options")
    body = [(x, line) for x, line in enumerate(reader.lines[begin + 1 :], begin + 2) if line]
    numbers = [text for _, text in body if not text.startswith(("objno", "suffix"))]
    reader.status = f" (the solver says: {next((line for line in reader.lines if line), '').lower()})"
    try:
        skipped = int(numbers[0]) + 1
        _, duals, _, primals = (int(text) for text in numbers[skipped : skipped + 4])
    except (ValueError, IndexError) as error:
        raise PlanError(f"{reader.path}: the file breaks off in its head, after `Options`; write it again") from error
    first = skipped + 4 + duals
    if primals and primals != len(names):
        raise PlanError(
            f"{reader.path}: it has {primals} values, and {names_path.name} {len(names)} names: not of one model"
        )
    chosen = body[first : first + primals]
    if len(chosen) != primals:
        raise PlanError(f"{reader.path}: the file breaks off: {len(chosen)} of {primals} values; write it again")
    return {name: reader.value(number, text) for name, (number, text) in zip(names, chosen, strict=primals > 0)}


def _gurobi_json(reader: _Reader) -> dict[str, float]:
    """`{"SolutionInfo": {...}, "Vars": [{"VarName": "x", "X": 1.0}, ...]}`; zeros are left out."""
    text = "\n".join(reader.lines)
    try:
        document = json.loads(text)
        entries = document.get("Vars", [])
        info = document.get("SolutionInfo", {})
        reader.status = f" (Gurobi's status is {info.get('Status')})"
        named = [(str(entry["VarName"]), float(entry["X"])) for entry in entries if "X" in entry]
    except json.JSONDecodeError as error:
        raise PlanError(f"{reader.path}:{error.lineno}: the JSON breaks off or is damaged; write it again") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PlanError(
            f"{reader.path}: an entry of its `Vars` has no `VarName`, or an `X` that is no number; "
            "write a .sol file instead"
        ) from error
    values = dict(named)
    if len(values) != len(named):
        raise PlanError(f"{reader.path}: a variable comes twice; give the file of one solution")
    return values


def _plain(reader: _Reader) -> dict[str, float]:
    """Lines of a name and a value, with blanks, `=`, `,` or `:` between them."""
    values: dict[str, float] = {}
    for number, line in reader.numbered():
        fields = line.replace("=", " ").replace(",", " ").replace(":", " ").split()
        if len(fields) < 2:
            raise PlanError(f"{reader.path}:{number}: '{_short(line)}' isn't a name and a value; {KNOWN}")
        if number == 1 and fields[1].lower() == "value":
            continue
        reader.put(values, number, fields[0], fields[1])
    return values


_FORMS: tuple[tuple[str, Callable[[str], bool], Callable[[_Reader], dict[str, float]], bool], ...] = (
    ("HiGHS", lambda text: text.startswith("Model status"), _highs, False),
    ("Gurobi", lambda text: text.lstrip().startswith("{") and '"SolutionInfo"' in text, _gurobi_json, True),
    ("CPLEX", lambda text: "<CPLEXSolution" in text[:2000], _cplex, False),
    ("SCIP", lambda text: text.lstrip().startswith("solution status:"), _scip, True),
    ("CBC", lambda text: " - objective value" in text.lstrip().partition("\n")[0], _cbc, True),
    ("AMPL", lambda text: re.search(r"^Options\s*\n\s*\d+\s*$", text, re.MULTILINE) is not None, _ampl, False),
    ("Gurobi", lambda text: text.startswith("# ") and "# Objective value =" in text[:2000], _plain, False),
)
