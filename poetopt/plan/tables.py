"""The form of a problem in a plan file: each field of its dataclasses under a key.

Everything is read off the dataclasses of `poetopt.graph.problem`: a field that is added to a tensor or an operator is
written and read again without a word here. Numbers are at least 0; an index of -1 is null. pydantic is imported when a
file is first read.

What is wrong with a plan file, in words: the first of pydantic's complaints, with its place.

JSON text that someone else may have written, and how large its numbers may be.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from operator import itemgetter
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.util.errors import PlanError
from poetopt.util.notes import About

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Place = tuple[int | str, ...]

_KINDS = {
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "float_type": "a number of at least 0",
    "finite_number": "a number of at least 0",
}
"""Requirements of a value, by the complaint; all others are about whole numbers, or say it themselves."""


def told(error: ValidationError) -> str:
    """The first thing that is wrong, and where it stands."""
    first = error.errors(include_url=False, include_input=False)[0]
    place, what = first["loc"], first["type"]
    if what in ("model_type", "model_attributes_type", "dict_type"):
        return f"{_where(place)} is not an object; the file is damaged"
    if what == "missing":
        return f'{_where(place[:-1])} has no "{place[-1]}"; the file is damaged'
    if what == "extra_forbidden":
        return f'{_where(place[:-1])}: "{place[-1]}" is nothing that this version knows; a newer poetopt may read it'
    listed = isinstance(place[-1], int)  # a value in a list: the list is told
    if listed:
        place = place[:-1]
    kind = f"a list of {_kind(first).removeprefix('a ')}s" if listed else _kind(first)
    kind = kind.replace("number of at least 0s", "numbers of at least 0")
    return f'{_where(place[:-1])}: "{place[-1]}" must be {kind}; the file is damaged'


def _kind(error: ErrorDetails) -> str:
    what, bounds = error["type"], error.get("ctx", {})
    if what in _KINDS:
        return _KINDS[what]
    if what == "enum":
        return f"one of {bounds['expected']}"
    if isinstance(bounds.get("ge", bounds.get("le")), float):
        return _KINDS["float_type"]
    return "a whole number of at least 0"


def _where(place: Place) -> str:
    """The object at `place`: the file, one of its parts, or a row of a table."""
    if not place:
        return "the plan file"
    if len(place) == 1:
        return f'"{place[0]}"'
    return f"{place[0]}[{place[1]}]" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place[2:])


LARGEST = 2**53
"""No whole number may exceed it: JSON readers agree up to there, and sums stay within 64 bits."""


def parsed(text: str) -> object:
    """The JSON value in `text`, whose numbers are all finite. Raises PlanError."""

    def refuse(constant: str) -> NoReturn:
        raise PlanError(f"it holds {constant}, which is no number; the file is damaged")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"it is not a whole plan file: {error.msg} at line {error.lineno}, column {error.colno}; "
            "`poetopt solve MODEL --device DEVICE -o PLAN` writes one"
        ) from error
    except ValueError as error:
        raise PlanError("it holds a number of thousands of digits; the file is damaged") from error
    except RecursionError as error:
        raise PlanError("it is not a plan file: it is nested too deeply") from error


INDICES = ("producer", "updated_by")
"""Fields that hold an index, or -1."""
BESIDE = Transfers
"""The fields of this part stand beside the others, and not in an object of their own."""
_PARTS = tuple(field.name for field in fields(BESIDE))
_get_parts = itemgetter(*_PARTS)
Reader = tuple[int, Callable[[Any], Any]]
FIRST: Mapping[type, Collection[str]] = {
    ProblemTensor: ("name", "nbytes", "producer", "transfers"),
    ProblemOperator: (
        "name", "kind", "count", "inputs", "outputs", "workspace_bytes", "time_s", "energy_j", "recomputable",
        "backward",
    ),
}  # fmt: skip
"""The fields of the first version, which are always written; a new field is, where it hasn't its default."""
LATER = (
    "count", "wake_j", "storage_bytes", "storage_block_bytes", "flash_bytes", "stack_bytes", "runtime",
    "runtime_version", "structure_hash",
)  # fmt: skip
"""Those of them that the earliest files lack."""


@dataclass(frozen=True)
class Table:
    """The objects in a file that stand for values of a dataclass.

    kind
        The dataclass.
    keys
        The key of each field, in the order of the file; fields of a part that stands `BESIDE` have their own names.
    first
        The fields that are written in their default too. No file lacks them, unless they came `LATER`.
    """

    kind: type[Any]
    keys: Mapping[str, str]
    first: Collection[str]

    @cached_property
    def _fields(self) -> Mapping[str, Field[Any]]:
        found = {field.name: field for field in fields(self.kind)}
        return {name: found[name] for name in self.keys}

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return typing.get_type_hints(self.kind, localns={"TrainingGraph": TrainingGraph})

    @cached_property
    def model(self) -> type[BaseModel]:
        """Checks an object: which keys it has, and the kind of each value."""
        from pydantic import ConfigDict, create_model

        found: dict[str, Any] = {}
        for name, field in self._fields.items():
            default = ... if name in self.first and name not in LATER else _default(field)
            if self._hints[name] is BESIDE:
                for part in fields(BESIDE):
                    found[part.name] = (_checked(float), ... if default is ... else part.default)
            else:
                found[self.keys[name]] = (_index() if name in INDICES else _checked(self._hints[name]), default)
        return create_model(self.kind.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **found)

    @cached_property
    def _columns(self) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[Reader, ...], int]:
        """The fields in the dataclass's order; their values in a checked object; what makes some of them, by place.

        Last the place of the part that stands `BESIDE`, or -1: another field's value holds it until it is made.
        """
        names = tuple(field.name for field in fields(self.kind) if field.name in self.keys)
        beside = next((place for place, name in enumerate(names) if self._hints[name] is BESIDE), -1)
        keys = [self.keys[names[0 if place == beside else place]] for place in range(len(names))]
        reads = [_to_index if name in INDICES else _reader(self._hints[name]) for name in names]
        made = tuple((place, read) for place, read in enumerate(reads) if read is not None and place != beside)
        return names, itemgetter(*keys, keys[0]), made, beside  # of one key alone it would give no tuple

    def _values(self, row: BaseModel) -> list[Any]:
        _, get, made, beside = self._columns
        found = list(get(row.__dict__))
        del found[-1]
        if beside >= 0:
            found[beside] = BESIDE(*_get_parts(row.__dict__))
        for place, read in made:
            found[place] = read(found[place])
        return found

    def given(self, row: BaseModel) -> dict[str, Any]:
        """The fields in a checked object, by name."""
        return dict(zip(self._columns[0], self._values(row), strict=True))

    def value(self, row: BaseModel) -> Any:
        """The value that a checked object stands for; `keys` name all fields of the dataclass."""
        return self.kind(*self._values(row))

    def row(self, value: object) -> dict[str, Any]:
        """The object for `value`, of dicts, lists, texts and numbers alone."""
        found: dict[str, Any] = {}
        for name, field in self._fields.items():
            held = getattr(value, name)
            if name not in self.first and held == _default(field):
                continue
            if self._hints[name] is BESIDE:
                found.update({part: getattr(held, part) for part in _PARTS})
            else:
                found[self.keys[name]] = None if name in INDICES and held < 0 else _written(held)
        return found


@cache
def table(kind: type[Any]) -> Table:
    """The table of tensors, of operators, or of a part of one of them."""
    names = [field.name for field in fields(kind)]
    first = FIRST.get(kind, [field.name for field in fields(kind) if _default(field) is ...])
    ordered = [*(name for name in first if name in names), *(name for name in names if name not in first)]
    # fields of tensors and operators whose key is another word
    return Table(kind, {name: {"nbytes": "bytes"}.get(name, name) for name in ordered}, first)


_MODEL = {
    "name": "name", "model_ref": "reference", "model_hash": "sha256", "structure_hash": "structure",
    **{name: name for name in ("recipe", "device", "notes")},
}  # fmt: skip
_DEVICE = {
    name: "ram_bytes" if name == "device_ram_bytes" else name
    for name in (
        "dma", "paging", "alignment", "reserve_bytes", "wake_j", "storage_bytes", "storage_block_bytes",
        "storage_erase_bytes", "resident_bytes", "device_ram_bytes", "flash_bytes", "stack_bytes", "runtime",
        "runtime_version", "parts", "closing_ram_bytes", "placed",
    )
}  # fmt: skip
_ADDED = frozenset({"storage_erase_bytes", "parts", "closing_ram_bytes", "placed"})
BLOCKS: Mapping[str, Table] = {
    "model": Table(Problem, _MODEL, [name for name in _MODEL if name != "structure_hash"]),
    "device": Table(Problem, _DEVICE, [name for name in _DEVICE if name not in _ADDED]),
}
"""The problem's own fields: an object of the file for each kind of them."""


def _default(field: Field[Any]) -> Any:
    """The default of a field; an ellipsis where it has to be said."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return ... if field.default is MISSING else field.default


def whole_number() -> Any:
    """The type of a size, a count or a place."""
    import pydantic

    return Annotated[int, pydantic.Field(ge=0, le=LARGEST)]


def number() -> Any:
    """The type of seconds and joules."""
    import pydantic

    # no other number may exceed it: sums of seconds and joules stay finite
    return Annotated[float, pydantic.Field(ge=0, le=1e300)]


def report_model() -> type[BaseModel]:
    """The words of a report that are shown as they stand, as nothing gives them again; its figures are compared."""
    from pydantic import ConfigDict, Field, create_model

    def of(name: str, **fields: Any) -> Any:
        """A model of these fields, which may be missing where they have a default, and of any others."""
        make: Any = create_model
        config = ConfigDict(strict=True, extra="allow")
        return make(name, __config__=config, **{k: v if isinstance(v, tuple) else (v, ...) for k, v in fields.items()})

    count, listed = whole_number(), list
    word = (str | None, None)
    figure = (number() | None, None)
    note = of("Important", about=Annotated[About, Field(strict=False)], text=str)
    largest = of("Largest", batch=count, proven=bool, refused=count | None, why=str | None)
    parts = of(
        "Parts", micro_batches=count, energy_j=figure, time_s=figure, total_ram_bytes=(count | None, None), why=word
    )
    words = (listed[str] | None, None)
    made: type[BaseModel] = of(
        "Report", reason=word, backend=word, notes=words, asks=words, important=(listed[note] | None, None),
        largest_batch=(largest | None, None), micro_batches_tried=(listed[parts] | None, None),
    )  # fmt: skip
    return made


def _index() -> Any:
    return whole_number() | None


def _checked(hint: Any) -> Any:
    """The type in a file of what has the type `hint` in a dataclass."""
    import pydantic

    inner = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is UnionType:
        return _checked(inner[0]) | None
    if origin is tuple:
        return list[_checked(inner[0])]  # type: ignore[misc]  # made at run time
    if origin is not None:
        return dict[str, Any]
    if isinstance(hint, type) and is_dataclass(hint):
        return table(hint).model
    if issubclass(hint, Enum):
        return Annotated[hint, pydantic.Field(strict=False)]
    return whole_number() if hint is int else number() if hint is float else hint


def _to_index(value: int | None) -> int:
    return -1 if value is None else value


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """The reader that makes a field of a checked value, where that is another."""
    if typing.get_origin(hint) is tuple:
        inner = _reader(typing.get_args(hint)[0])
        return tuple if inner is None else lambda values: tuple(map(inner, values)) if values else ()
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: value if isinstance(value, hint) else table(hint).value(value)
    return None


def _written(value: object) -> object:
    """A field's value in JSON."""
    kind: type[Any] = type(value)
    if is_dataclass(kind):
        return table(kind).row(value)
    if isinstance(value, tuple):
        return [_written(entry) for entry in value]
    if isinstance(value, Enum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else value
