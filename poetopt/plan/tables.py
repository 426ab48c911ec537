"""Form of a problem in a plan file: each field of its dataclasses under a key, and JSON text from untrusted sources.

All fields come from the dataclasses of `poetopt.graph.problem`: a new field of a tensor or an operator is written and
read without a change here. Numbers are at least 0; an index of -1 is null. pydantic is imported when a file is first
read. Messages report the first of pydantic's complaints, with its place.
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
"""Requirements of a value, by pydantic's error type; other errors concern whole numbers or have their own text."""


def told(error: ValidationError) -> str:
    """Return a message about the first error in a file, with its place."""
    first = error.errors(include_url=False, include_input=False)[0]
    place, what = first["loc"], first["type"]
    if what in ("model_type", "model_attributes_type", "dict_type"):
        return f"{_describe_place(place)} is not an object. The file is damaged"
    if what == "missing":
        return f'{_describe_place(place[:-1])} has no "{place[-1]}". The file is damaged'
    if what == "extra_forbidden":
        return f'{_describe_place(place[:-1])}: "{place[-1]}" is unknown to this version. A newer poetopt may read it'
    in_list = isinstance(place[-1], int)  # for a value in a list, the message names the list
    if in_list:
        place = place[:-1]
    requirement = f"a list of {_requirement(first).removeprefix('a ')}s" if in_list else _requirement(first)
    requirement = requirement.replace("number of at least 0s", "numbers of at least 0")
    return f'{_describe_place(place[:-1])}: "{place[-1]}" must be {requirement}. The file is damaged'


def _requirement(error: ErrorDetails) -> str:
    what, bounds = error["type"], error.get("ctx", {})
    if what in _KINDS:
        return _KINDS[what]
    if what == "enum":
        return f"one of {bounds['expected']}"
    if isinstance(bounds.get("ge", bounds.get("le")), float):
        return _KINDS["float_type"]
    return "a whole number of at least 0"


def _describe_place(place: Place) -> str:
    """Return the name of the object at `place`: the file, one of its parts, or a row of a table."""
    if not place:
        return "the plan file"
    if len(place) == 1:
        return f'"{place[0]}"'
    return f"{place[0]}[{place[1]}]" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place[2:])


LARGEST = 2**53
"""Maximum of whole numbers: JSON readers agree up to it, and sums stay within 64 bits."""


def parsed(text: str) -> object:
    """Return the JSON value in `text`, whose numbers are all finite. Raises PlanError."""

    def refuse(constant: str) -> NoReturn:
        raise PlanError(f"it contains {constant}, which is no number. The file is damaged")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"it is not a complete plan file: {error.msg} at line {error.lineno}, column {error.colno}. "
            "`poetopt solve MODEL --device DEVICE -o PLAN` writes one"
        ) from error
    except ValueError as error:
        raise PlanError("it contains a number with thousands of digits. The file is damaged") from error
    except RecursionError as error:
        raise PlanError("it is not a plan file: it is nested too deeply") from error


INDICES = ("producer", "updated_by")
"""Fields with an index, or -1."""
BESIDE = Transfers
"""Part whose fields are written among the others, not in an object of their own."""
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
"""Fields of the first version, which are always written; newer ones only if they differ from their default."""
LATER = (
    "count", "wake_j", "storage_bytes", "storage_block_bytes", "flash_bytes", "stack_bytes", "runtime",
    "runtime_version", "structure_hash",
)  # fmt: skip
"""Fields among them that the earliest files lack."""


@dataclass(frozen=True)
class Table:
    """Objects in a file that represent values of a dataclass.

    Attributes
    ----------
    kind
        The dataclass.
    keys
        Key of each field, in the order of the file; fields of a part that is written among the others (`BESIDE`) keep
        their names.
    first
        Fields that are written even with their default. No file lacks them, except those in `LATER`.
    """

    kind: type[Any]
    keys: Mapping[str, str]
    first: Collection[str]

    @cached_property
    def _fields(self) -> Mapping[str, Field[Any]]:
        by_name = {field.name: field for field in fields(self.kind)}
        return {name: by_name[name] for name in self.keys}

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return typing.get_type_hints(self.kind, localns={"TrainingGraph": TrainingGraph})

    @cached_property
    def model(self) -> type[BaseModel]:
        """Pydantic model that checks an object: its keys, and the kind of each value."""
        from pydantic import ConfigDict, create_model

        definitions: dict[str, Any] = {}
        for name, field in self._fields.items():
            default = ... if name in self.first and name not in LATER else _default(field)
            if self._hints[name] is BESIDE:
                for entry in fields(BESIDE):
                    definitions[entry.name] = (_file_type(float), ... if default is ... else entry.default)
            else:
                definitions[self.keys[name]] = (_index() if name in INDICES else _file_type(self._hints[name]), default)
        return create_model(self.kind.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **definitions)

    @cached_property
    def _columns(self) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[Reader, ...], int]:
        """Fields in the order of the dataclass, a getter of their values, converters by place, and `beside`.

        `beside` is the place of the part `BESIDE`, or -1: another field's value fills that place until the part is
        made.
        """
        names = tuple(field.name for field in fields(self.kind) if field.name in self.keys)
        beside = next((place for place, name in enumerate(names) if self._hints[name] is BESIDE), -1)
        keys = [self.keys[names[0 if place == beside else place]] for place in range(len(names))]
        readers = [_to_index if name in INDICES else _converter(self._hints[name]) for name in names]
        converters = tuple((place, read) for place, read in enumerate(readers) if read is not None and place != beside)
        return names, itemgetter(*keys, keys[0]), converters, beside  # itemgetter of a single key returns no tuple

    def _values(self, row: BaseModel) -> list[Any]:
        _, get, converters, beside = self._columns
        values = list(get(row.__dict__))
        del values[-1]
        if beside >= 0:
            values[beside] = BESIDE(*_get_parts(row.__dict__))
        for place, read in converters:
            values[place] = read(values[place])
        return values

    def given(self, row: BaseModel) -> dict[str, Any]:
        """Return the fields of a checked object by name."""
        return dict(zip(self._columns[0], self._values(row), strict=True))

    def value(self, row: BaseModel) -> Any:
        """Return the value of a checked object; `keys` must contain all fields of the dataclass."""
        return self.kind(*self._values(row))

    def row(self, value: object) -> dict[str, Any]:
        """Return the object for `value`, of dicts, lists, texts and numbers."""
        row: dict[str, Any] = {}
        for name, field in self._fields.items():
            entry = getattr(value, name)
            if name not in self.first and entry == _default(field):
                continue
            if self._hints[name] is BESIDE:
                row.update({part: getattr(entry, part) for part in _PARTS})
            else:
                row[self.keys[name]] = None if name in INDICES and entry < 0 else _to_json(entry)
        return row


@cache
def table(kind: type[Any]) -> Table:
    """Return the table of tensors, of operators, or of a part of one of them."""
    names = [field.name for field in fields(kind)]
    first = FIRST.get(kind, [field.name for field in fields(kind) if _default(field) is ...])
    ordered = [*(name for name in first if name in names), *(name for name in names if name not in first)]
    # Keys that differ from the names of their fields.
    keys = {"nbytes": "bytes", "overwrites": "takes"}
    return Table(kind, {name: keys.get(name, name) for name in ordered}, first)


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
"""Fields of the problem itself: one object of the file for each group."""


def _default(field: Field[Any]) -> Any:
    """Return the default of a field, or an ellipsis if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return ... if field.default is MISSING else field.default


def whole_number() -> Any:
    """Return the type of a size, a count or an index."""
    import pydantic

    return Annotated[int, pydantic.Field(ge=0, le=LARGEST)]


def number() -> Any:
    """Return the type of seconds and joules."""
    import pydantic

    # The limit keeps sums of seconds and joules finite.
    return Annotated[float, pydantic.Field(ge=0, le=1e300)]


def report_model() -> type[BaseModel]:
    """Return the model of the texts of a report that are shown unchanged; figures are compared with recomputed ones."""
    from pydantic import ConfigDict, Field, create_model

    def make_model(name: str, **fields: Any) -> Any:
        """Return a model of these fields, optional if they have a default, that allows any others."""
        make: Any = create_model
        config = ConfigDict(strict=True, extra="allow")
        return make(name, __config__=config, **{k: v if isinstance(v, tuple) else (v, ...) for k, v in fields.items()})

    count, as_list = whole_number(), list
    text = (str | None, None)
    figure = (number() | None, None)
    note = make_model("Important", about=Annotated[About, Field(strict=False)], text=str)
    largest = make_model("Largest", batch=count, proven=bool, refused=count | None, why=str | None)
    parts = make_model(
        "Parts", micro_batches=count, energy_j=figure, time_s=figure, total_ram_bytes=(count | None, None), why=text
    )
    texts = (as_list[str] | None, None)
    model: type[BaseModel] = make_model(
        "Report", reason=text, backend=text, notes=texts, asks=texts, important=(as_list[note] | None, None),
        largest_batch=(largest | None, None), micro_batches_tried=(as_list[parts] | None, None),
    )  # fmt: skip
    return model


def _index() -> Any:
    return whole_number() | None


def _file_type(hint: Any) -> Any:
    """Return the type in a file of a field whose type in a dataclass is `hint`."""
    import pydantic

    inner = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is UnionType:
        return _file_type(inner[0]) | None
    if origin is tuple:
        return list[_file_type(inner[0])]  # type: ignore[misc]  # created at run time
    if origin is not None:
        return dict[str, Any]
    if isinstance(hint, type) and is_dataclass(hint):
        return table(hint).model
    if issubclass(hint, Enum):
        return Annotated[hint, pydantic.Field(strict=False)]
    return whole_number() if hint is int else number() if hint is float else hint


def _to_index(value: int | None) -> int:
    return -1 if value is None else value


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts a checked value to a field, or None if they are equal."""
    if typing.get_origin(hint) is tuple:
        inner = _converter(typing.get_args(hint)[0])
        return tuple if inner is None else lambda values: tuple(map(inner, values)) if values else ()
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: value if isinstance(value, hint) else table(hint).value(value)
    return None


def _to_json(value: object) -> object:
    """Return the JSON value of a field."""
    kind: type[Any] = type(value)
    if is_dataclass(kind):
        return table(kind).row(value)
    if isinstance(value, tuple):
        return [_to_json(entry) for entry in value]
    if isinstance(value, Enum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else value
