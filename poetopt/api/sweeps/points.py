"""Questions of a sweep: one TOML file, read into points, each with a key that says exactly what it is.

    models = ["lenet", { model = "net.onnx", batch = 4, train = ["fc.*"], loss = "mse" },
              { model = "open.onnx", dims = { height = 160 }, shapes = { x = "1x3x?x160" }, values = { sr = 16000 } }]
    devices = ["a72", "./board.toml"]
    ram = "20%..100%/9"             # or a list: ["40%", "300KiB"]
    deadlines = ["none", "1.5x"]    # optional, as are all that follow
    methods = ["poet", "dtr"]       # names of `poetopt compare`; default: poet
    time_limit = "20s"              # of one solve; gap, scope, threads and backend as in `poetopt solve`

Paths are relative to the file. Points are the product, in the order of the file; methods vary fastest. A model has the
options of `po.load` and `Model.differentiate`.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from poetopt.api import Training, TrainingFile, store_all_peak_bytes
from poetopt.api.models import read
from poetopt.api.problems import DERIVED, READ, checked_scope
from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.compare import compare
from poetopt.comparison.rows import in_bytes, parse_budgets
from poetopt.frontends.reading import ReadOptions, read_options
from poetopt.graph.problem import Problem
from poetopt.util.errors import DeviceError, ModelError, OptionError, PoetError
from poetopt.util.files import TABLE_BYTES, digest, is_regular, is_special, parse_toml, read_text
from poetopt.util.units import Factor, Share, parse_deadline, parse_fraction, parse_time

Value = str | int | float | None
"""The values of a row's cells."""
ERROR = "error"
"""The status of a point whose model or device could not be used at all."""
WHOLE_LIMIT = 0.95
"""A solve that took this share of its time limit was ended by it: another run may come further, or less far."""


def evaluate(point: SweepPoint) -> dict[str, Value]:
    """The row of a point, without its place in the sweep. What poetopt refuses is a row too, with the reason."""
    begin = time.monotonic()
    try:
        row = _row(point)
    except PoetError as error:
        row = {"status": ERROR, "reason": str(error), "solve_s": 0.0}
    solve_s = row["solve_s"]
    assert isinstance(solve_s, float)
    row["limited"] = int(solve_s >= WHOLE_LIMIT * point.settings.time_limit_s)
    return {**row, "total_s": time.monotonic() - begin}


def _row(point: SweepPoint) -> dict[str, Value]:
    problem = _problem(point.model, point.device.device)
    peak = store_all_peak_bytes(problem)
    (ram_bytes,) = in_bytes((point.ram,), peak)
    deadline = point.deadline
    deadline_s = deadline.times * problem.baseline_time_s if isinstance(deadline, Factor) else deadline
    settings = replace(point.settings, deadline_s=deadline_s)
    (found,) = compare(problem, (ram_bytes,), [point.method], settings).rows
    cells = {key: getattr(found, key) for key in found.to_dict() if key not in ("method", "beyond_scope")}
    return {
        **cells,
        "deadline_s": deadline_s,
        "operators": len(problem.operators),
        "tensors": len(problem.tensors),
        "store_all_peak_bytes": peak,
        "baseline_energy_j": problem.baseline_energy_j,
        "baseline_time_s": problem.baseline_time_s,
    }


@lru_cache(maxsize=2)
def _training(model: ModelSpec) -> Training | TrainingFile:
    return read(model.model, model.options).differentiate(**dict(model.step))  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _problem(model: ModelSpec, device: str) -> Problem:
    return _training(model).cost(device)


KEYS = ("models", "devices", "ram", "deadlines", "methods", "time_limit", "gap", "scope", "threads", "backend")
MODEL_KEYS = tuple(dict.fromkeys(("model", "name", "batch", *READ, *DERIVED)))
NONE = "none"
"""The deadline that isn't there."""


def _texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value))


Check = tuple[Callable[[object], bool], str]
_WHOLE: Check = (lambda value: type(value) is int and value >= 1, "a whole number from 1 on")
_TABLE: Check = (lambda value: isinstance(value, dict), "a table")
_FLAG: Check = (lambda value: isinstance(value, bool), "true or false")
_TEXT: Check = (lambda value: isinstance(value, str), "text")
MUST: Mapping[str, Check] = {
    **dict.fromkeys(("batch", "micro_batch"), _WHOLE),
    "train": (_texts, "a pattern, or a list of them"),
    "dims": (_TABLE[0], "a table, as in dims = { height = 160 }"),
    "shapes": (_TABLE[0], 'a table, as in shapes = { input = "1x3x160x160" }'),
    "values": (_TABLE[0], "a table, as in values = { sr = 16000 }"),
    **dict.fromkeys(("name", "loss", "output", "granularity", "optimizer", "scope", "backend"), _TEXT),
    "threads": (lambda value: type(value) is int and value >= 0, "a whole number from 0 on; 0 lets the solver choose"),
    **dict.fromkeys(("time_limit", "gap"), (lambda v: isinstance(v, str | int | float) and not isinstance(v, bool),
                                            "text or a number")),
}  # fmt: skip
"""The kinds of values of keys; of all others, true or false."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model and what the frontend and autodiff are asked of it.

    model
        A zoo name, or the absolute path of a file.
    name
        What rows call it.
    options, step
        How it is read, and what is asked of `differentiate`.
    content
        Of a file: SHA-256 of its bytes; else empty.
    """

    model: str
    name: str
    options: ReadOptions = field(default_factory=ReadOptions)
    step: tuple[tuple[str, str | bool], ...] = ()
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """A device: a name of the catalogue or of a problem file's costs, or a file's absolute path, with its SHA-256."""

    device: str
    name: str
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One solve. `ram` is bytes or a share (`40%`), `deadline` seconds, a factor (`1.5x`) or `none`."""

    index: int
    model: ModelSpec
    device: DeviceSpec
    ram: int | Share
    deadline: float | Factor | None
    method: str
    settings: Settings

    @property
    def said(self) -> dict[str, str]:
        """The columns of its row that it has by itself."""
        ram, deadline = self.ram, self.deadline
        return {
            "model": self.model.name,
            "device": self.device.name,
            "method": self.method,
            "ram": f"{100 * ram.fraction:.10g}%" if isinstance(ram, Share) else str(ram),
            "deadline": NONE if deadline is None else f"{deadline.times:.10g}x" if isinstance(deadline, Factor)
            else f"{deadline:.10g}",
        }  # fmt: skip

    @property
    def key(self) -> str:
        """Of everything that the row depends on, but not of the point's place in the sweep."""
        model, device, said = self.model, asdict(self.device), self.said
        asked: dict[str, object] = {"name": model.name, "content": model.content, "loss": "auto", "output": None}
        asked |= model.options.to_recipe() | dict(model.step)  # what isn't asked for isn't there
        if model.options.allow_symlinks:
            asked["allow_symlinks"] = True
        if not model.content:  # of a file the content says it; where it lies doesn't matter
            asked["model"] = model.model
        if self.device.content:
            del device["device"]
        what = [asked, device, said["ram"], said["deadline"], self.method, asdict(self.settings)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        said = self.said
        text = f"{self.method}, {self.model.name} on {self.device.name} at {said['ram']}"
        return text if self.deadline is None else f"{text} in {said['deadline']}"


def read_sweep(path: str | os.PathLike[str]) -> tuple[SweepPoint, ...]:
    """The points of a sweep file.

    A device may be one that a problem file of the sweep has costs for; other models on it are rows with an error.

    Raises OptionError for a file that can't be read or says what can't be understood, ModelError and DeviceError
    for models and devices that aren't there.
    """
    shown = os.fspath(path)
    try:
        table: dict[str, Any] = parse_toml(read_text(path, TABLE_BYTES))
    except OSError as error:
        raise OptionError(
            f"{shown}: the sweep can't be read: {error.strerror}; give the path of a TOML file"
        ) from error
    except ValueError as error:
        what = "it is not text" if isinstance(error, UnicodeDecodeError) else f"not valid TOML: {error}"
        raise OptionError(f"{shown}: {what}; a sweep is a TOML file with models, devices and ram") from error
    _check(shown, table, KEYS, "a sweep")
    for key in ("models", "devices", "ram"):
        if key not in table:
            raise OptionError(f"{shown}: '{key}' is missing; a sweep has at least models, devices and ram")
    folder = Path(shown).resolve().parent
    models = [_model(shown, folder, entry) for entry in _list(shown, table, "models", "text or a table")]
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f'{shown}: models: two are called {name!r}; tell them apart with name = "..."')
    costs = {key: None for model in models if model.content for key in _costs(model.model)}
    devices = [_device(shown, folder, str(entry), tuple(costs)) for entry in _list(shown, table, "devices", "text")]
    budgets = [
        budget
        for entry in _list(shown, table, "ram", "text or a whole number")
        for budget in parse_budgets(str(entry), option=f"{shown}: ram")
    ]
    deadlines = [
        None if entry == NONE else parse_deadline(str(entry), option=f"{shown}: deadlines")
        for entry in _list(shown, table, "deadlines", "text or a number", NONE)
    ]
    try:
        methods = [method(str(entry)).name for entry in _list(shown, table, "methods", "text", "poet")]
        settings = Settings(
            time_limit_s=parse_time(table.get("time_limit", "60s"), option="time_limit"),
            gap=parse_fraction(table.get("gap", 1e-3), option="gap"),
            threads=table.get("threads", 1),
            scope=checked_scope(table.get("scope", "auto")),
            backend=table.get("backend", "highs"),
        )
    except OptionError as error:
        raise OptionError(f"{shown}: {str(error).replace('--', '')}") from error
    once: dict[str, SweepPoint] = {}  # what is named twice is run once
    for model, device, deadline, ram, name in itertools.product(models, devices, deadlines, budgets, methods):
        point = SweepPoint(
            index=len(once), model=model, device=device, ram=ram, deadline=deadline, method=name, settings=settings
        )
        once.setdefault(point.key, point)
    return tuple(once.values())


def _check(shown: str, table: Mapping[str, object], keys: Sequence[str], what: str) -> None:
    """Refuse keys that aren't known, and values of another kind."""
    for key, value in table.items():
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise OptionError(f"{shown}: unknown key '{key}': {hint}{what} has {', '.join(keys)}")
        fits, must = MUST.get(key, _FLAG)
        if (key in MUST or keys is MODEL_KEYS) and key != "model" and not fits(value):
            raise OptionError(f"{shown}: {key} = {value!r} must be {must}")


def _list(shown: str, table: Mapping[str, object], key: str, must: str, default: object = None) -> list[object]:
    """The value as a list, which may be one entry alone. Raises OptionError for an empty one or another type."""
    value = table.get(key, default)
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise OptionError(f"{shown}: {key} is empty: then there are no points; name at least one")
    kinds = {"table": dict, "whole number": int, "a number": int | float}
    for entry in entries:
        known = isinstance(entry, str) or any(word in must and isinstance(entry, kinds[word]) for word in kinds)
        if not known or isinstance(entry, bool):
            hint = ' (bytes); a share is text, as in "50%"' if key == "ram" else ""
            raise OptionError(f"{shown}: {key}: {entry!r} must be {must}{hint}")
    return entries


def _model(shown: str, folder: Path, entry: object) -> ModelSpec:
    table: Mapping[str, object] = entry if isinstance(entry, dict) else {"model": entry}
    model = table.get("model")
    if not isinstance(model, str):
        raise OptionError(f'{shown}: models: {dict(table)}: say which, as in {{ model = "lenet", batch = 4 }}')
    where = f"{shown}: models: {model}"
    _check(where, table, MODEL_KEYS, "a model")
    try:
        asked = {key: table[key] for key in READ if key in table}
        if isinstance(asked.get("train"), str):
            asked["train"] = [asked["train"]]
        options = read_options(**asked)  # type: ignore[arg-type]
    except (ModelError, OptionError) as error:
        raise OptionError(f"{where}: {error}") from error
    place, content = _model_file(folder, model)
    said = [f"{key}={table[key]}" for key in MODEL_KEYS if key not in ("model", "name") and key in table]
    step = {key: table[key] for key in DERIVED if key in table}
    return ModelSpec(
        model=place,
        name=str(table.get("name") or " ".join([Path(model).stem if content else model, *said])),
        options=options,
        step=tuple(step.items()),  # type: ignore[arg-type]
        content=content,
    )


def _model_file(folder: Path, model: str) -> tuple[str, str]:
    """A zoo name as it is, or the absolute path of a file with its digest. Raises ModelError."""
    from poetopt import zoo

    path = folder / model
    if is_special(path):
        raise ModelError(f"{path}: a pipe or a device, and a sweep names regular files alone")
    if is_regular(path):
        return str(path), _digest(path)
    if model in zoo.names():
        return model, ""
    close = difflib.get_close_matches(model, zoo.names(), n=3)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise ModelError(
        f"{model}: neither a file in {folder} nor a network of the zoo; {hint}the zoo has {', '.join(zoo.names())}"
    )


def _costs(path: str) -> tuple[str, ...]:
    """The devices that a problem file has costs for; none of another file, or of one that can't be read as such."""
    if Path(path).suffix.lower() != ".json":
        return ()
    from poetopt.frontends.problem_file import load_problem_file

    try:
        return tuple(load_problem_file(path).costs)
    except ModelError:
        return ()  # each of its points says why


def _device(shown: str, folder: Path, text: str, costs: Sequence[str]) -> DeviceSpec:
    """A device file, a device of the catalogue, or one of `costs`, which problem files of the sweep have costs for."""
    from poetopt.devices import device

    path = folder / text
    if text not in costs and (text.endswith(".toml") or os.sep in text) and not is_regular(path):
        raise DeviceError(f"{shown}: devices: {text}: no regular file in {folder}; paths are relative to the sweep's")
    try:
        if (text.endswith(".toml") or os.sep in text) and is_regular(path):
            return DeviceSpec(device=str(path), name=device(str(path)).name, content=_digest(path))
        if text in costs:
            return DeviceSpec(device=text, name=text)
        return DeviceSpec(device=text.lower(), name=device(text).name)
    except DeviceError as error:
        own = f"; the problem files of the sweep have costs for {', '.join(costs)}" if costs else ""
        raise DeviceError(f"{shown}: devices: {error}{own}") from error


def _digest(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from error
