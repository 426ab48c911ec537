"""What a sweep asks: one TOML file, read into points, each with a key that says exactly what it is.

    models = ["lenet", { model = "net.onnx", batch = 4, train = ["fc.*"], loss = "mse" },
              { model = "open.onnx", dims = { height = 160 }, shapes = { x = "1x3x?x160" }, values = { sr = 16000 } }]
    devices = ["a72", "./board.toml"]
    ram = "20%..100%/9"             # or a list: ["40%", "300KiB"]
    deadlines = ["none", "1.5x"]    # optional, as are all that follow
    methods = ["poet", "dtr"]       # names of `poetopt compare`; default: poet
    time_limit = "20s"              # of one solve; gap, scope and threads as in `poetopt solve`

Paths are relative to the file. Points are the product, in the order of the file; methods vary fastest.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.rows import parse_budgets
from poetopt.frontends.reading import ReadOptions, read_options
from poetopt.util.errors import DeviceError, ModelError, OptionError
from poetopt.util.inputs import TABLE_BYTES, digest, is_regular, is_special, parse_toml, read_text
from poetopt.util.units import Factor, Share, parse_deadline, parse_fraction, parse_time

KEYS = ("models", "devices", "ram", "deadlines", "methods", "time_limit", "gap", "scope", "threads")
READ_KEYS = ("batch", "train", "dims", "shapes", "values", "allow_symlinks")
"""As in `po.load`."""
MODEL_KEYS = ("model", "name", *READ_KEYS, "loss", "output", "straight_through")
NONE = "none"
"""The deadline that isn't there."""
TIME_LIMIT = "60s"
"""Of one solve, where the file says nothing."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model and what the frontend and autodiff are asked of it.

    model
        A zoo name, or the absolute path of a file.
    name
        What rows call it.
    options
        How it is read.
    content
        Of a file: SHA-256 of its bytes; else empty.
    """

    model: str
    name: str
    options: ReadOptions = field(default_factory=ReadOptions)
    loss: str = "auto"
    output: str | None = None
    straight_through: bool = False
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """A device: a name of the catalogue or of a problem file's costs, or a file's absolute path, with its SHA-256."""

    device: str
    name: str
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One solve. `ram` is bytes or a share (`40%`), `deadline` seconds, a factor (`1.5x`) or `none`."""

    index: int
    model: ModelSpec
    device: DeviceSpec
    ram: int | Share
    deadline: float | Factor | None
    method: str
    settings: Settings

    @property
    def ram_text(self) -> str:
        """As rows have it."""
        return f"{100 * self.ram.fraction:.10g}%" if isinstance(self.ram, Share) else str(self.ram)

    @property
    def deadline_text(self) -> str:
        """As rows have it."""
        if self.deadline is None:
            return NONE
        return f"{self.deadline.times:.10g}x" if isinstance(self.deadline, Factor) else f"{self.deadline:.10g}"

    @property
    def key(self) -> str:
        """Of everything that the row depends on, but not of the point's place in the sweep."""
        model, device = asdict(self.model), asdict(self.device)
        del model["options"]
        model |= self.model.options.to_recipe()  # what isn't asked for isn't there: keys of older sweeps stay
        if self.model.options.allow_symlinks:
            model["allow_symlinks"] = True
        if not self.model.straight_through:
            del model["straight_through"]
        if self.model.content:
            del model["model"]  # the file's content says it; where it lies doesn't matter
        if self.device.content:
            del device["device"]
        what = [model, device, self.ram_text, self.deadline_text, self.method, asdict(self.settings)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        text = f"{self.method}, {self.model.name} on {self.device.name} at {self.ram_text}"
        return text if self.deadline is None else f"{text} in {self.deadline_text}"


def read_sweep(path: str | os.PathLike[str]) -> tuple[Point, ...]:
    """The points of a sweep file.

    A device may be one that a problem file of the sweep has costs for; other models on it are rows with an error.

    Raises OptionError for a file that can't be read or says what can't be understood, ModelError and DeviceError
    for models and devices that aren't there.
    """
    shown = os.fspath(path)
    try:
        table = parse_toml(read_text(path, TABLE_BYTES))
    except OSError as error:
        raise OptionError(
            f"{shown}: the sweep can't be read: {error.strerror}; give the path of a TOML file"
        ) from error
    except ValueError as error:
        what = "it is not text" if isinstance(error, UnicodeDecodeError) else f"not valid TOML: {error}"
        raise OptionError(f"{shown}: {what}; a sweep is a TOML file with models, devices and ram") from error
    _known(shown, table, KEYS, "a sweep")
    for key in ("models", "devices", "ram"):
        if key not in table:
            raise OptionError(f"{shown}: '{key}' is missing; a sweep has at least models, devices and ram")
    folder = Path(shown).resolve().parent
    models = [_model(shown, folder, entry) for entry in _list(shown, table, "models", (str, dict))]
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f'{shown}: models: two are called {name!r}; tell them apart with name = "..."')
    costs = {key: None for model in models if model.content for key in _costs(model.model)}
    devices = [_device(shown, folder, str(entry), tuple(costs)) for entry in _list(shown, table, "devices", (str,))]
    budgets = [
        budget
        for entry in _list(shown, table, "ram", (str, int))
        for budget in parse_budgets(str(entry), option=f"{shown}: ram")
    ]
    deadlines = [_deadline(shown, str(entry)) for entry in _list(shown, table, "deadlines", (str, int, float), [NONE])]
    methods = [_method(shown, str(entry)) for entry in _list(shown, table, "methods", (str,), ["poet"])]
    settings = _settings(shown, table)
    product = itertools.product(models, devices, deadlines, budgets, methods)
    points = [
        Point(index=0, model=model, device=device, ram=ram, deadline=deadline, method=name, settings=settings)
        for model, device, deadline, ram, name in product
    ]
    # What is named twice is run once.
    once = {point.key: point for point in reversed(points)}
    ordered = sorted(once.values(), key=points.index)
    return tuple(
        Point(**{**{key: getattr(point, key) for key in Point.__dataclass_fields__}, "index": index})
        for index, point in enumerate(ordered)
    )


def _known(shown: str, table: Mapping[str, object], keys: Sequence[str], what: str) -> None:
    for key in table:
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise OptionError(f"{shown}: unknown key '{key}': {hint}{what} has {', '.join(keys)}")


def _list(
    shown: str, table: Mapping[str, object], key: str, kinds: tuple[type, ...], default: list[object] | None = None
) -> list[object]:
    """The value as a list, which may be one entry alone. Raises OptionError for an empty one or another type."""
    value = table.get(key, default)
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise OptionError(f"{shown}: {key} is empty: then there are no points; name at least one")
    for entry in entries:
        if not isinstance(entry, kinds) or isinstance(entry, bool):
            # Where fractions are allowed too, whole numbers needn't be named.
            words = {str: "text", dict: "a table", int: "" if float in kinds else "a whole number", float: "a number"}
            must = " or ".join(words[kind] for kind in kinds if words[kind])
            hint = ' (bytes); a share is text, as in "50%"' if key == "ram" else ""
            raise OptionError(f"{shown}: {key}: {entry!r} must be {must}{hint}")
    return entries


def _model(shown: str, folder: Path, entry: object) -> ModelSpec:
    table: Mapping[str, object] = entry if isinstance(entry, dict) else {"model": entry}
    _known(shown, table, MODEL_KEYS, "a model")
    model = table.get("model")
    if not isinstance(model, str):
        raise OptionError(f'{shown}: models: {dict(table)}: say which, as in {{ model = "lenet", batch = 4 }}')
    options = _read_options(f"{shown}: models: {model}", table)
    for key in ("name", "loss", "output"):
        if key in table and not isinstance(table[key], str):
            raise OptionError(f"{shown}: models: {model}: {key} = {table[key]!r} must be text")
    straight = table.get("straight_through", False)
    if not isinstance(straight, bool):
        raise OptionError(f"{shown}: models: {model}: straight_through = {straight!r} must be true or false")
    where, content = _model_file(folder, model)
    asked = [f"{key}={table[key]}" for key in MODEL_KEYS if key not in ("model", "name") and key in table]
    return ModelSpec(
        model=where,
        name=str(table.get("name") or " ".join([Path(model).stem if content else model, *asked])),
        options=options,
        loss=str(table.get("loss", "auto")),
        output=str(table["output"]) if "output" in table else None,
        straight_through=straight,
        content=content,
    )


def _read_options(where: str, table: Mapping[str, object]) -> ReadOptions:
    """How a model is read. Raises OptionError."""
    batch, train, links = table.get("batch"), table.get("train"), table.get("allow_symlinks", False)
    if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool) or batch < 1):
        raise OptionError(f"{where}: batch = {batch!r} must be a whole number from 1 on")
    patterns = [train] if isinstance(train, str) else train
    if patterns is not None and not (isinstance(patterns, list) and all(isinstance(text, str) for text in patterns)):
        raise OptionError(f"{where}: train = {train!r} must be a pattern, or a list of them")
    if not isinstance(links, bool):
        raise OptionError(f"{where}: allow_symlinks = {links!r} must be true or false")
    tables: dict[str, dict[str, object]] = {}
    for key, example in (("dims", "height = 160"), ("shapes", 'input = "1x3x160x160"'), ("values", "sr = 16000")):
        entries = table.get(key, {})
        if not isinstance(entries, dict):
            raise OptionError(f"{where}: {key} = {entries!r} must be a table, as in {key} = {{ {example} }}")
        tables[key] = entries
    try:
        return read_options(
            batch=batch,
            train=patterns,
            dims={name: size if isinstance(size, int) else str(size) for name, size in tables["dims"].items()},
            shapes={name: size if isinstance(size, list) else str(size) for name, size in tables["shapes"].items()},
            values=tables["values"],
            allow_symlinks=links,
        )
    except (ModelError, OptionError) as error:
        raise OptionError(f"{where}: {error}") from error


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


def _deadline(shown: str, text: str) -> float | Factor | None:
    return None if text == NONE else parse_deadline(text, option=f"{shown}: deadlines")


def _method(shown: str, name: str) -> str:
    try:
        return method(name).name
    except OptionError as error:
        raise OptionError(f"{shown}: {str(error).replace('--methods', 'methods')}") from error


def _settings(shown: str, table: Mapping[str, object]) -> Settings:
    scope, threads = table.get("scope", "auto"), table.get("threads", 1)
    kind, _, depth = str(scope).partition(":")
    deep = kind == "depth" and depth.isdecimal() and int(depth) >= 1
    if scope not in ("auto", "needed", "forward", "full") and not deep:
        raise OptionError(
            f"{shown}: scope = {scope!r} must be auto, depth:D (D >= 1, as in depth:4), needed, forward or full"
        )
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        raise OptionError(f"{shown}: threads = {threads!r} must be a whole number from 0 on; 0 lets the solver choose")
    return Settings(
        time_limit_s=parse_time(_plain(shown, table, "time_limit", TIME_LIMIT), option=f"{shown}: time_limit"),
        gap=parse_fraction(_plain(shown, table, "gap", 1e-3), option=f"{shown}: gap"),
        threads=threads,
        scope=str(scope),
    )


def _plain(shown: str, table: Mapping[str, object], key: str, default: str | float) -> str | float:
    value = table.get(key, default)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise OptionError(f"{shown}: {key} = {value!r} must be text or a number")
    return value


def _digest(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from error
