"""Measured costs: a profile replaces a device's estimates for the operators and the storage that it has figures of.

A profile is a TOML file. Its operators are keyed by signature (`poetopt.ops.nodes`), so one profile serves all models
that share operators with it, and two profiles can be merged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from poetopt.devices.cost import storage_notes
from poetopt.devices.model import Device, Storage
from poetopt.graph.problem import Problem, ProblemOperator
from poetopt.ops.nodes import signature
from poetopt.ops.runtimes import runtime
from poetopt.util.errors import DeviceError
from poetopt.util.files import TABLE_BYTES, parse_toml, read_text

VERSION = 1
SHOWN = 8
"""Maximum number of missing operators or faults that a message names."""
AND_STORAGE = ", and the storage"
NO_WAITING = ("no waiting for processors", "the processors were free")
"""Values of `load` for an otherwise idle machine, now and in older profiles."""
BY_HAND = "measurements from "
"""Prefix of the machine in a profile of files that people filled in."""
MODELLED = "emulated "
"""Prefix of the machine in a profile of instruction counts."""


@dataclass(frozen=True, kw_only=True)
class OperatorProfile:
    """Measured costs of one operator.

    Attributes
    ----------
    time_s, spread_s
        Median of its runs, and half the distance between their quartiles.
    runs
        Number of runs.
    workspace_bytes
        Maximum bytes that its kernels allocate at once, or None if not measured.
    energy_j
        Joules of a run, or None: then time x power.
    """

    time_s: float
    spread_s: float = 0.0
    runs: int = 1
    workspace_bytes: int | None = None
    energy_j: float | None = None


@dataclass(frozen=True, kw_only=True)
class StorageProfile:
    """Measured costs of a storage: a transfer takes latency + bytes / rate seconds.

    Attributes
    ----------
    power_w
        Watts during a transfer, or None: then the device's.
    dma
        Whether transfers run beside the CPU.
    """

    page_in_latency_s: float
    page_in_bytes_per_s: float
    page_out_latency_s: float
    page_out_bytes_per_s: float
    power_w: float | None = None
    dma: bool = False


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Measurements of a machine.

    Attributes
    ----------
    about
        Description of the measurement: `machine`, `energy`, `threads`, ...
    power_w
        Watts of computing above idling, or None: then the device's.
    operators
        Costs of operators by signature.
    """

    about: Mapping[str, str] = field(default_factory=dict)
    power_w: float | None = None
    operators: Mapping[str, OperatorProfile] = field(default_factory=dict)
    storage: StorageProfile | None = None

    def merged(self, newer: Profile) -> Profile:
        """Return both profiles as one; a figure of the newer one replaces the older one.

        Raises
        ------
        DeviceError
            If they are of different machines (`check_machine`).
        """
        self.check_machine(newer.about.get("machine"))
        return Profile(
            about=_merge_descriptions(self, newer),
            power_w=self.power_w if newer.power_w is None else newer.power_w,
            operators={**self.operators, **newer.operators},
            storage=newer.storage or self.storage,
        )

    def check_machine(self, machine: str | None, where: str = "the profile") -> None:
        """Raise DeviceError, with `where`, if this profile has figures of another machine than `machine`.

        Files that people filled in don't name their board, so they agree with each other, and with figures of no
        machine.
        """
        if not self.operators and self.storage is None and self.power_w is None:
            return
        own_machine = self.about.get("machine")
        if own_machine == machine or (_is_by_hand(own_machine) and _is_by_hand(machine)):
            return
        raise DeviceError(
            f"{where}: its figures are of {own_machine or 'a machine without a name'}, but the new ones are of "
            f"{machine or 'a machine without a name'}. A profile has one machine. Write the new figures to another "
            "file (-o)"
        )

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """Return the profile as TOML; operators in order of their signatures."""
        lines = ["# Measured costs, for poetopt solve --profile. Times are medians in seconds.", f"version = {VERSION}"]
        if self.power_w is not None:
            lines.append(f"power_w = {self.power_w!r}")
        lines += _section("about", {key: self.about[key] for key in sorted(self.about)})
        if self.storage is not None:
            lines += _section("storage", vars(self.storage))
        for key in sorted(self.operators):
            lines += _section(f"operators.{_quoted(key)}", vars(self.operators[key]))
        return "\n".join(lines) + "\n"


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile. Raises DeviceError if it can't be read or is invalid."""
    shown = os.fspath(path)
    try:
        table = parse_toml(read_text(path, TABLE_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeviceError(
            f"{shown}: the profile can't be read: {reason}. Make one with poetopt profile MODEL"
        ) from error
    except ValueError as error:
        raise DeviceError(f"{shown}: not valid TOML: {error}. Make it again with poetopt profile MODEL") from error

    from pydantic import ValidationError

    from poetopt.devices.schema import ProfileTable

    try:
        return ProfileTable.model_validate(table).profile()
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:SHOWN])
        raise DeviceError(f"{shown}: not a usable profile: {faults}") from error


def with_profile(problem: Problem, device: Device, profile: Profile) -> Problem:
    """Return the problem with measured costs for the operators and the storage that the profile has.

    Missing operators keep the estimate of the roofline, and a note names them.

    Parameters
    ----------
    problem
        Problem of a training graph on `device`, whose figures stay where the profile has none.

    Raises
    ------
    DeviceError
        If the problem has no graph (a problem file), since its operators have no signatures; and as `measured_device`.
    """
    graph = problem.graph
    if graph is None:
        raise DeviceError(
            f"{problem.name}: a profile needs a network, but a problem file has none. Leave out --profile"
        )
    power_w = _computing_w(device, profile)
    scheduled = [operator for operator in graph.operators if not operator.view]
    operators: list[ProblemOperator] = []
    missing: list[str] = []
    device_runtime = runtime(device.runtime)
    kernel_bytes = 0
    for entry, operator in zip(problem.operators, scheduled, strict=True):
        measured = profile.operators.get(signature(operator, graph))
        if measured is not None:
            energy_j = measured.time_s * power_w if measured.energy_j is None else measured.energy_j
            entry = replace(entry, time_s=measured.time_s, energy_j=energy_j)
        else:
            missing.append(operator.name)
        if measured is not None and measured.workspace_bytes is not None:
            kernel_bytes = max(kernel_bytes, measured.workspace_bytes)
        else:
            kernel_bytes = max((kernel_bytes, *device_runtime.workspace(operator, graph.tensors).kernel_bytes))
        operators.append(entry)
    costed = replace(problem, operators=tuple(operators), reserve_bytes=device_runtime.reserve_bytes(kernel_bytes))
    costed = _with_storage(costed, device, profile)
    return replace(costed, notes=(*costed.notes, *_notes(profile, len(operators), missing, power_w)))


def measured_device(device: Device, profile: Profile) -> Device:
    """Return `device` with the storage that the profile measured; itself if the profile has none.

    Block size, capacity and wake-up stay those of the device. A transfer beside the CPU is charged the storage's power,
    and the CPU's only if the device charges that too. A transfer by the CPU is charged both.

    Raises
    ------
    DeviceError
        If the power of transfers is unknown: they would be free.
    """
    storage, own = profile.storage, device.storage
    if storage is None:
        return device
    charged_w = own.cpu_power_w if own is not None else 0.0
    if not storage.dma:  # the CPU moves the bytes, so its power is charged
        charged_w = charged_w or _computing_w(device, profile)
    elif not device.dma:
        charged_w = 0.0
    if storage.power_w is None and own is None and not charged_w:
        raise DeviceError(
            f"{device.name} has no storage, and that of the profile has no power: transfers would be free. Write "
            "power_w, in watts, under [storage] in the profile, or remove that section"
        )
    power_w = storage.power_w if storage.power_w is not None else own.power_w if own is not None else 0.0
    measured = replace(
        own or Storage(0.0, 1.0, 0.0, 1.0, 0.0, 0.0),
        page_in_latency_s=storage.page_in_latency_s,
        page_in_bytes_per_s=storage.page_in_bytes_per_s,
        page_out_latency_s=storage.page_out_latency_s,
        page_out_bytes_per_s=storage.page_out_bytes_per_s,
        power_w=power_w,
        cpu_power_w=charged_w,
    )
    return replace(device, storage=measured, dma=storage.dma)


def _is_by_hand(machine: str | None) -> bool:
    return machine is None or machine.startswith(BY_HAND)


def _load_percent(profile: Profile) -> int:
    """Return the percentage of the measuring time for which other processes had the processors."""
    match = re.search(r"(\d{1,9}) ?%", profile.about.get("load", ""))
    return int(match[1]) if match else 0


def _merge_descriptions(older: Profile, newer: Profile) -> Mapping[str, str]:
    """Return the descriptions of both profiles; the description of a figure comes with the figure."""
    about = {**older.about, **newer.about}
    if older.power_w is not None or newer.power_w is not None:
        energy = (older if newer.power_w is None else newer).about.get("energy")
        about = {key: text for key, text in about.items() if key != "energy"} | ({"energy": energy} if energy else {})
    if older.operators.keys() - newer.operators.keys() and _load_percent(older) > _load_percent(newer):
        about["load"] = older.about["load"]  # some of its figures remain
    old_machine, new_machine = older.about.get("machine"), newer.about.get("machine")
    if old_machine and new_machine and old_machine != new_machine:
        files = [*old_machine.removeprefix(BY_HAND).split(", "), *new_machine.removeprefix(BY_HAND).split(", ")]
        about["machine"] = BY_HAND + ", ".join(dict.fromkeys(files))
    return about


def _with_storage(problem: Problem, device: Device, profile: Profile) -> Problem:
    if profile.storage is None:
        return problem
    measured = measured_device(device, profile)
    tensors = tuple(replace(tensor, transfers=measured.transfers(tensor.nbytes)) for tensor in problem.tensors)
    outdated = storage_notes(device, problem.tensors)
    notes = [note for note in problem.notes if note not in outdated] + list(storage_notes(measured, tensors))
    if device.storage is None and profile.storage.power_w is None:
        notes.append(
            "the storage's own power is unknown, so transfers are charged only the CPU's. Add power_w under [storage] "
            "in the profile"
        )
    return replace(problem, tensors=tensors, paging=True, dma=measured.dma, notes=tuple(notes))


def _notes(profile: Profile, count: int, missing: Sequence[str], power_w: float) -> list[str]:
    machine = profile.about.get("machine", "")
    known = f"{_note_prefix(machine)}{_coverage(count - len(missing), count)}"
    if profile.storage is not None:
        known += AND_STORAGE
        if method := profile.about.get("transfers"):
            known += f" ({method})"
    energy = profile.about.get("energy", "")
    notes = [
        f"{known}; joules are seconds x {power_w:.3g} W{f' ({energy})' if energy else ''} where none were measured"
    ]
    load = profile.about.get("load", "")
    if load and load not in NO_WAITING:
        notes.append(f"when the profile was measured, {load}")
    if missing:
        names = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        notes.append(f"not in the profile, so from the roofline: {names}")
    return notes


def _note_prefix(machine: str) -> str:
    how = "modelled" if machine.startswith(MODELLED) else "measured"
    return f"{how} ({machine}): " if machine else f"{how}: "


def _coverage(covered: int, count: int) -> str:
    return f"the seconds of {covered} of {count} operators"


def costed_on(problem: Problem, machine: str, *, storage: bool) -> bool:
    """Return whether all operators of a problem (and its storage, if `storage`) have costs measured on `machine`.

    The answer comes from the problem's notes, which plan files contain too.
    """
    prefix = _note_prefix(machine) + _coverage(len(problem.operators), len(problem.operators))
    return any(note.startswith(prefix + AND_STORAGE if storage else prefix) for note in problem.notes)


def _computing_w(device: Device, profile: Profile) -> float:
    if profile.power_w is not None:
        return profile.power_w
    if device.active_power_w is not None:
        return device.active_power_w
    return device.flop_per_s / device.flop_per_j if device.flop_per_j else 0.0


def _section(name: str, values: Mapping[str, object]) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items() if value is not None)]


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Return a TOML basic string: JSON's escapes are among TOML's, which forbids one more character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
