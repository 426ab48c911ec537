"""Measurements of one's own, from a board or a meter, as a CSV file: `docs/profiles.md` has the format."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from poetopt.devices.profile import BY_HAND, OperatorProfile, Profile, StorageProfile
from poetopt.devices.sanity import FIGURES, LONGEST_S, MEASURED
from poetopt.graph import Graph
from poetopt.ops.nodes import signatures
from poetopt.util.errors import DeviceError
from poetopt.util.files import TABLE_BYTES, read_text
from poetopt.util.numbers import read_number

COLUMNS = ("operator", "time_s", "energy_j", "workspace_bytes", "bytes")
PAGE_IN, PAGE_OUT = "page_in", "page_out"


def from_csv(path: str | os.PathLike[str], graph: Graph, *, power_w: float | None = None, dma: bool = False) -> Profile:
    """The profile that a CSV file holds.

    graph
        The training graph whose operators the rows name (by name or signature).
    power_w
        Watts of computing, where the rows have no joules.
    dma
        Whether the board's transfers run beside its CPU.

    Raises DeviceError, with the line, for a row that can't be.
    """
    shown = os.fspath(path)
    try:
        text = read_text(path, TABLE_BYTES, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeviceError(f"{shown}: the measurements can't be read: {reason}") from error
    known = signatures(graph)
    inside = {member: operator.name for operator in graph.operators for member in operator.members}
    rows: dict[str, list[Mapping[str, float]]] = {}
    moves: dict[str, list[tuple[float, float]]] = {PAGE_IN: [], PAGE_OUT: []}
    paid: list[tuple[float, float]] = []
    for line, row in _rows(text, shown):
        where = f"{shown}, line {line}"
        name = row.pop("operator", "")
        values = {key: _number(value, key, where) for key, value in row.items() if value}
        if "time_s" not in values:
            # a template whose row was left out
            continue
        if name in moves:
            if "bytes" not in values:
                raise DeviceError(f"{where}: {name} needs the column bytes: how many it moved")
            moves[name].append((values["bytes"], values["time_s"]))
            if "energy_j" in values:
                paid.append((values["energy_j"], values["time_s"]))
            continue
        key = known.get(name, name)
        if (whole := inside.get(name)) is not None and whole != name:
            raise DeviceError(
                f"{where}: {name!r} is one operator with what works in place behind it; give {whole!r} the seconds of "
                "all of it"
            )
        if key not in known.values():
            raise DeviceError(
                f"{where}: {graph.name!r} has no operator {name!r}; write the names that poetopt profile MODEL "
                "--template FILE.csv lists, or page_in or page_out"
            )
        rows.setdefault(key, []).append(values)
    if not rows and not any(moves.values()):
        raise DeviceError(f"{shown}: it holds no measurement: the column time_s is empty in every row")
    operators = {key: _operator(values) for key, values in rows.items()}
    about = {"machine": f"{BY_HAND}{Path(path).name}"}
    if power_w is not None:
        about["energy"] = "seconds x a power given by hand"
    storage = _storage(moves, dma, shown)
    if storage is not None and paid:
        storage = replace(storage, power_w=_transfer_w(paid, power_w, dma, shown))
    return Profile(about=about, power_w=power_w, operators=operators, storage=storage)


def template(graph: Graph) -> str:
    """A CSV file to fill in: a row for each distinct operator, and some for the storage."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    seen: dict[str, None] = dict.fromkeys(signatures(graph).values())
    writer.writerows((key, "", "", "", "") for key in seen)
    writer.writerows((way, "", "", "", nbytes) for way in (PAGE_OUT, PAGE_IN) for nbytes in (512, 65536, 1048576))
    return out.getvalue()


def fit(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Latency (s) and rate (B/s) of transfers of so many bytes in so many seconds: least squares of relative errors.

    With one size alone the latency is 0. Raises ValueError where time does not grow with size, or nothing moved.
    """
    weighted = [(n, t, 1 / t**2) for n, t in points if t > 0]
    sizes = {n for n, _, _ in weighted}
    if not sizes or max(sizes) <= 0:
        raise ValueError("no transfer of at least one byte took any time")
    total = sum(w for _, _, w in weighted)
    mean_n = sum(w * n for n, _, w in weighted) / total
    mean_t = sum(w * t for _, t, w in weighted) / total
    square = sum(w * (n - mean_n) ** 2 for n, _, w in weighted)
    slope = sum(w * (n - mean_n) * (t - mean_t) for n, t, w in weighted) / square if len(sizes) > 1 else math.inf
    if slope <= 0:
        raise ValueError("larger transfers took no longer than smaller ones")
    latency = mean_t - slope * mean_n
    if len(sizes) == 1 or latency < 0:
        # through the origin
        return 0.0, sum(w * n * n for n, _, w in weighted) / sum(w * n * t for n, t, w in weighted)
    return latency, 1 / slope


def quartile_spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles; 0 for fewer than four values."""
    if len(values) < 4:
        return 0.0
    ordered = sorted(values)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / 2


def _operator(rows: Sequence[Mapping[str, float]]) -> OperatorProfile:
    times = [row["time_s"] for row in rows]
    joules = [row["energy_j"] for row in rows if "energy_j" in row]
    spaces = [row["workspace_bytes"] for row in rows if "workspace_bytes" in row]
    return OperatorProfile(
        time_s=median(times),
        spread_s=quartile_spread(times),
        runs=len(times),
        workspace_bytes=math.ceil(max(spaces)) if spaces else None,
        energy_j=median(joules) if joules else None,
    )


def _transfer_w(paid: Sequence[tuple[float, float]], power_w: float | None, dma: bool, shown: str) -> float:
    """Watts of the storage from joules and seconds of transfers; those that the CPU makes hold its joules too."""
    watts = sum(joules for joules, _ in paid) / sum(seconds for _, seconds in paid)
    if dma:
        return watts
    if power_w is None:
        raise DeviceError(
            f"{shown}: the joules of page_in and page_out hold the CPU's, which makes the transfers: give its watts "
            "with --power, or --dma where they run beside it"
        )
    return max(0.0, watts - power_w)


def _storage(moves: Mapping[str, Sequence[tuple[float, float]]], dma: bool, shown: str) -> StorageProfile | None:
    if not any(moves.values()):
        return None
    found: dict[str, tuple[float, float]] = {}
    for way, points in moves.items():
        if not points:
            raise DeviceError(f"{shown}: it has measurements of one direction of the storage alone; add rows of {way}")
        try:
            found[way] = fit(points)
        except ValueError as error:
            raise DeviceError(f"{shown}: {way}: {error}; measure several sizes, several times") from error
        latency, rate = found[way]
        _, least, most, _ = FIGURES[f"{way}_bytes_per_s"]
        if latency > LONGEST_S or not least <= rate <= most:
            raise DeviceError(
                f"{shown}: {way}: its rows make {rate:.3g} B/s after {latency:.3g} s, which no storage does; check the "
                "units of time_s and bytes"
            )
    return StorageProfile(
        page_in_latency_s=found[PAGE_IN][0],
        page_in_bytes_per_s=found[PAGE_IN][1],
        page_out_latency_s=found[PAGE_OUT][0],
        page_out_bytes_per_s=found[PAGE_OUT][1],
        dma=dma,
    )


def _rows(text: str, shown: str) -> Iterable[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
    try:
        yield from _read(reader, shown)
    except csv.Error as error:
        raise DeviceError(f"{shown}: it is no table: {error}; look for a quote that is not closed") from error


def _read(reader: csv.DictReader[str], shown: str) -> Iterable[tuple[int, dict[str, str]]]:
    given = [name.strip() for name in reader.fieldnames or ()]
    if "operator" not in given or "time_s" not in given:
        raise DeviceError(
            f"{shown}: the first line must name the columns, separated by commas: operator and time_s, and of "
            f"{', '.join(COLUMNS[2:])} what there is"
        )
    if repeated := [name for name in COLUMNS if given.count(name) > 1]:
        raise DeviceError(f"{shown}: the column {repeated[0]} is there twice; leave one of them out")
    if unknown := [name for name in given if name not in COLUMNS]:
        raise DeviceError(f"{shown}: unknown column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    reader.fieldnames = given
    for row in reader:
        if None in row:
            raise DeviceError(f"{shown}, line {reader.line_num}: more cells than columns; quote cells that hold commas")
        yield reader.line_num, {key: (value or "").strip() for key, value in row.items()}


def _number(text: str, column: str, where: str) -> float:
    try:
        value = read_number(text)
    except ValueError:
        value = math.nan
    least, most = MEASURED[column]
    if not (least < value if column == "time_s" else least <= value):
        more = "more than" if column == "time_s" else "at least"
        raise DeviceError(f"{where}: {column} is {text!r}; it must be a number of {more} {least:g}")
    if value > most:
        raise DeviceError(f"{where}: {column} is {text!r}, more than {most:g}, which nothing takes; check the unit")
    return value
