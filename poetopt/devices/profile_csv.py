"""Measurements by the user, from a board or a meter, as a CSV file; `docs/profiles.md` has the format."""

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
    """Return the profile in a CSV file.

    Parameters
    ----------
    graph
        Training graph whose operators the rows name (by name or signature).
    power_w
        Watts of computing, if the rows have no joules.
    dma
        Whether the board's transfers run beside its CPU.

    Raises
    ------
    DeviceError
        For an invalid row; the message has its line.
    """
    shown = os.fspath(path)
    try:
        text = read_text(path, TABLE_BYTES, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeviceError(f"{shown}: the measurements can't be read: {reason}") from error
    signature_of = signatures(graph)
    joined_into = {member: operator.name for operator in graph.operators for member in operator.members}
    rows: dict[str, list[Mapping[str, float]]] = {}
    transfers: dict[str, list[tuple[float, float]]] = {PAGE_IN: [], PAGE_OUT: []}
    transfer_energies: list[tuple[float, float]] = []
    for line, row in _rows(text, shown):
        where = f"{shown}, line {line}"
        name = row.pop("operator", "")
        values = {key: _read_value(value, key, where) for key, value in row.items() if value}
        if "time_s" not in values:
            # The user left this row of the template empty.
            continue
        if name in transfers:
            if "bytes" not in values:
                raise DeviceError(f"{where}: {name} has no bytes. Give the bytes of the transfer in the column bytes")
            transfers[name].append((values["bytes"], values["time_s"]))
            if "energy_j" in values:
                transfer_energies.append((values["energy_j"], values["time_s"]))
            continue
        key = signature_of.get(name, name)
        if (joined := joined_into.get(name)) is not None and joined != name:
            raise DeviceError(
                f"{where}: {name!r} is scheduled as part of {joined!r}, because it works in place. Give {joined!r} the "
                "seconds of all of it"
            )
        if key not in signature_of.values():
            raise DeviceError(
                f"{where}: {graph.name!r} has no operator {name!r}. Use the names that poetopt profile MODEL "
                "--template FILE.csv lists, or page_in or page_out"
            )
        rows.setdefault(key, []).append(values)
    if not rows and not any(transfers.values()):
        raise DeviceError(f"{shown}: it has no measurement: the column time_s is empty in every row. Fill in some rows")
    operators = {key: _operator_profile(values) for key, values in rows.items()}
    about = {"machine": f"{BY_HAND}{Path(path).name}"}
    if power_w is not None:
        about["energy"] = "seconds x a power given by hand"
    storage = _storage(transfers, dma, shown)
    if storage is not None and transfer_energies:
        storage = replace(storage, power_w=_transfer_w(transfer_energies, power_w, dma, shown))
    return Profile(about=about, power_w=power_w, operators=operators, storage=storage)


def template(graph: Graph) -> str:
    """Return a CSV file to fill in: one row for each distinct operator, and some for the storage."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    seen: dict[str, None] = dict.fromkeys(signatures(graph).values())
    writer.writerows((key, "", "", "", "") for key in seen)
    writer.writerows((way, "", "", "", nbytes) for way in (PAGE_OUT, PAGE_IN) for nbytes in (512, 65536, 1048576))
    return out.getvalue()


def fit(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return latency (s) and rate (B/s) of transfers, by least squares of relative errors.

    With a single size the latency is 0.

    Parameters
    ----------
    points
        Bytes and seconds of each transfer.

    Raises
    ------
    ValueError
        If time does not grow with size, or nothing moved.
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
        # A line through the origin.
        return 0.0, sum(w * n * n for n, _, w in weighted) / sum(w * n * t for n, t, w in weighted)
    return latency, 1 / slope


def quartile_spread(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles; 0 for fewer than four values."""
    if len(values) < 4:
        return 0.0
    ordered = sorted(values)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / 2


def _operator_profile(rows: Sequence[Mapping[str, float]]) -> OperatorProfile:
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


def _transfer_w(energies: Sequence[tuple[float, float]], power_w: float | None, dma: bool, shown: str) -> float:
    """Return the watts of the storage during transfers; joules of transfers by the CPU include the CPU's."""
    watts = sum(joules for joules, _ in energies) / sum(seconds for _, seconds in energies)
    if dma:
        return watts
    if power_w is None:
        raise DeviceError(
            f"{shown}: the joules of page_in and page_out include those of the CPU, which makes the transfers. Give "
            "its watts with --power, or --dma if transfers run beside it"
        )
    return max(0.0, watts - power_w)


def _storage(moves: Mapping[str, Sequence[tuple[float, float]]], dma: bool, shown: str) -> StorageProfile | None:
    if not any(moves.values()):
        return None
    fits: dict[str, tuple[float, float]] = {}
    for way, points in moves.items():
        if not points:
            raise DeviceError(f"{shown}: it has only one direction of the storage. Add rows of {way}")
        try:
            fits[way] = fit(points)
        except ValueError as error:
            raise DeviceError(f"{shown}: {way}: {error}. Measure several sizes, several times") from error
        latency, rate = fits[way]
        _, least, most, _ = FIGURES[f"{way}_bytes_per_s"]
        if latency > LONGEST_S or not least <= rate <= most:
            raise DeviceError(
                f"{shown}: {way}: its rows give {rate:.3g} B/s after {latency:.3g} s, which no storage has. "
                "Check the units of time_s and bytes"
            )
    return StorageProfile(
        page_in_latency_s=fits[PAGE_IN][0],
        page_in_bytes_per_s=fits[PAGE_IN][1],
        page_out_latency_s=fits[PAGE_OUT][0],
        page_out_bytes_per_s=fits[PAGE_OUT][1],
        dma=dma,
    )


def _rows(text: str, shown: str) -> Iterable[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
    try:
        yield from _read_rows(reader, shown)
    except csv.Error as error:
        raise DeviceError(f"{shown}: it is no table: {error}. Look for a quote that is not closed") from error


def _read_rows(reader: csv.DictReader[str], shown: str) -> Iterable[tuple[int, dict[str, str]]]:
    columns = [name.strip() for name in reader.fieldnames or ()]
    if "operator" not in columns or "time_s" not in columns:
        raise DeviceError(
            f"{shown}: the first line must name the columns, separated by commas: operator and time_s, and optionally "
            f"{', '.join(COLUMNS[2:])}"
        )
    if repeated := [name for name in COLUMNS if columns.count(name) > 1]:
        raise DeviceError(f"{shown}: the column {repeated[0]} is there twice. Remove one of them")
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise DeviceError(f"{shown}: unknown column {unknown[0]!r}. There are {', '.join(COLUMNS)}")
    reader.fieldnames = columns
    for row in reader:
        if None in row:
            raise DeviceError(f"{shown}, line {reader.line_num}: more cells than columns. Quote cells with commas")
        yield reader.line_num, {key: (value or "").strip() for key, value in row.items()}


def _read_value(text: str, column: str, where: str) -> float:
    try:
        value = read_number(text)
    except ValueError:
        value = math.nan
    least, most = MEASURED[column]
    if not (least < value if column == "time_s" else least <= value):
        more = "more than" if column == "time_s" else "at least"
        raise DeviceError(f"{where}: {column} is {text!r}, but must be a number of {more} {least:g}")
    if value > most:
        raise DeviceError(f"{where}: {column} is {text!r}, more than any measurement ({most:g}). Check the unit")
    return value
