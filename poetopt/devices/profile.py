"""Measured costs: a profile takes the place of a device's estimates wherever it has a figure.

A profile is a TOML file. Operators are keyed by their signature (`poetopt.ops.nodes`), so that one profile
serves every model that has operators in common with it, and two profiles can be merged.
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
"""How many operators that a profile lacks are named."""
AND_STORAGE = ", and the storage"
NO_WAITING = ("no waiting for processors", "the processors were free")
"""What `load` says of a machine that nothing else kept busy, now and in older profiles."""
BY_HAND = "measurements from "
"""So begins what a profile of files that people filled in calls its machine."""
MODELLED = "emulated "
"""So begins what a profile of instruction counts calls it."""


@dataclass(frozen=True, kw_only=True)
class OperatorProfile:
    """One operator as it was measured.

    time_s, spread_s
        Median of its runs, and half the distance between their quartiles.
    runs
        How many there were.
    workspace_bytes
        What its kernels allocate at once, or None where that was not measured.
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
    """Storage as it was measured: a transfer takes latency + bytes / rate seconds.

    power_w
        Watts while it transfers, or None: then the device's.
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
    """Holds what was measured of a machine.

    about
        How and on what: `machine`, `energy`, `threads`, ... in words.
    power_w
        Watts of computing over idling, or None: then the device's.
    operators
        By signature.
    """

    about: Mapping[str, str] = field(default_factory=dict)
    power_w: float | None = None
    operators: Mapping[str, OperatorProfile] = field(default_factory=dict)
    storage: StorageProfile | None = None

    def merged(self, newer: Profile) -> Profile:
        """Both profiles as one; where both have a figure, the newer one's counts.

        Raises DeviceError as `check_machine`.
        """
        self.check_machine(newer.about.get("machine"))
        return Profile(
            about=_merged_words(self, newer),
            power_w=self.power_w if newer.power_w is None else newer.power_w,
            operators={**self.operators, **newer.operators},
            storage=newer.storage or self.storage,
        )

    def check_machine(self, machine: str | None, where: str = "the profile") -> None:
        """Raise DeviceError, with `where`, if figures of `machine` can't stand beside these: they are of another one.

        Files that people filled in don't name their board, so that they go together, and with figures of no machine.
        """
        if not self.operators and self.storage is None and self.power_w is None:
            return
        mine = self.about.get("machine")
        if mine == machine or (_by_hand(mine) and _by_hand(machine)):
            return
        raise DeviceError(
            f"{where}: its figures are of {mine or 'a machine without a name'}, and the new ones of "
            f"{machine or 'a machine without a name'}: one profile holds one machine's; write them to another file (-o)"
        )

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """The profile as TOML; operators in order of their signatures."""
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
    """Read a profile. Raises DeviceError where it can't be read, or says what can't be."""
    shown = os.fspath(path)
    try:
        table = parse_toml(read_text(path, TABLE_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeviceError(
            f"{shown}: the profile can't be read: {reason}; make one with poetopt profile MODEL"
        ) from error
    except ValueError as error:
        raise DeviceError(f"{shown}: not valid TOML: {error}; make it again with poetopt profile MODEL") from error

    from pydantic import ValidationError

    from poetopt.devices.schema import ProfileTable

    try:
        return ProfileTable.model_validate(table).profile()
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:SHOWN])
        raise DeviceError(f"{shown}: not a usable profile: {faults}") from error


def with_profile(problem: Problem, device: Device, profile: Profile) -> Problem:
    """The problem with measured costs wherever the profile has them.

    problem
        Made of a training graph on `device`, whose figures stay where the profile has none: missing operators keep the
        roofline's time, and are told in a note.

    Raises DeviceError where the problem has no graph (a problem file): its operators have no signatures; and as
    `measured_device`.
    """
    graph = problem.graph
    if graph is None:
        raise DeviceError(
            f"{problem.name}: a profile needs a network, and a problem file has none; leave out --profile"
        )
    power_w = _computing_w(device, profile)
    scheduled = [operator for operator in graph.operators if not operator.view]
    operators: list[ProblemOperator] = []
    missing: list[str] = []
    takes = runtime(device.runtime)
    kernels = 0
    for entry, operator in zip(problem.operators, scheduled, strict=True):
        found = profile.operators.get(signature(operator, graph))
        if found is not None:
            energy_j = found.time_s * power_w if found.energy_j is None else found.energy_j
            entry = replace(entry, time_s=found.time_s, energy_j=energy_j)
        else:
            missing.append(operator.name)
        if found is not None and found.workspace_bytes is not None:
            kernels = max(kernels, found.workspace_bytes)
        else:
            kernels = max((kernels, *takes.workspace(operator, graph.tensors).kernel_bytes))
        operators.append(entry)
    costed = replace(problem, operators=tuple(operators), reserve_bytes=takes.reserve_bytes(kernels))
    costed = _with_storage(costed, device, profile)
    return replace(costed, notes=(*costed.notes, *_notes(profile, len(operators), missing, power_w)))


def measured_device(device: Device, profile: Profile) -> Device:
    """`device` with the storage that the profile measured; itself where the profile has none.

    Whole blocks, capacity and waking stay the device's. A transfer beside the CPU is charged the storage's power, and
    the CPU's only where the device charges that too; one that the CPU makes is charged both.

    Raises DeviceError where nothing tells the power of transfers: they would be free.
    """
    storage, own = profile.storage, device.storage
    if storage is None:
        return device
    charged_w = own.cpu_power_w if own is not None else 0.0
    if not storage.dma:  # the CPU moves the bytes, so it is paid for meanwhile
        charged_w = charged_w or _computing_w(device, profile)
    elif not device.dma:
        charged_w = 0.0
    if storage.power_w is None and own is None and not charged_w:
        raise DeviceError(
            f"{device.name} has no storage, and the profile's has no power: transfers would be free. Write power_w, in "
            "watts, under [storage] in the profile, or take that section out"
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


def _by_hand(machine: str | None) -> bool:
    return machine is None or machine.startswith(BY_HAND)


def _waited(profile: Profile) -> int:
    """Percent of the time of measuring for which others had the processors."""
    found = re.search(r"(\d{1,9}) ?%", profile.about.get("load", ""))
    return int(found[1]) if found else 0


def _merged_words(older: Profile, newer: Profile) -> Mapping[str, str]:
    """Gives what both profiles say about themselves; words of a figure come from where the figure comes from."""
    about = {**older.about, **newer.about}
    if older.power_w is not None or newer.power_w is not None:
        words = (older if newer.power_w is None else newer).about.get("energy")
        about = {key: text for key, text in about.items() if key != "energy"} | ({"energy": words} if words else {})
    if older.operators.keys() - newer.operators.keys() and _waited(older) > _waited(newer):
        about["load"] = older.about["load"]  # figures of that time are still among them
    mine, theirs = older.about.get("machine"), newer.about.get("machine")
    if mine and theirs and mine != theirs:
        files = [*mine.removeprefix(BY_HAND).split(", "), *theirs.removeprefix(BY_HAND).split(", ")]
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
            "the storage's own power is not known: transfers are charged the CPU's alone; power_w under [storage] in "
            "the profile adds it"
        )
    return replace(problem, tensors=tensors, paging=True, dma=measured.dma, notes=tuple(notes))


def _notes(profile: Profile, count: int, missing: Sequence[str], power_w: float) -> list[str]:
    machine = profile.about.get("machine", "")
    known = f"{_head(machine)}{_share(count - len(missing), count)}"
    if profile.storage is not None:
        known += AND_STORAGE
        if way := profile.about.get("transfers"):
            known += f" ({way})"
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


def _head(machine: str) -> str:
    how = "modelled" if machine.startswith(MODELLED) else "measured"
    return f"{how} ({machine}): " if machine else f"{how}: "


def _share(found: int, count: int) -> str:
    return f"the seconds of {found} of {count} operators"


def costed_on(problem: Problem, machine: str, *, storage: bool) -> bool:
    """Says whether all operators of a problem (and its storage, if asked for) have the costs that `machine` measured.

    Told from its notes, which are in plan files too.
    """
    whole = _head(machine) + _share(len(problem.operators), len(problem.operators))
    return any(note.startswith(whole + AND_STORAGE if storage else whole) for note in problem.notes)


def _computing_w(device: Device, profile: Profile) -> float:
    if profile.power_w is not None:
        return profile.power_w
    if device.active_power_w is not None:
        return device.active_power_w
    return device.flop_per_s / device.flop_per_j if device.flop_per_j else 0.0


def _section(name: str, values: Mapping[str, object]) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {_plain(value)}" for key, value in values.items() if value is not None)]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's, which forbids one character more."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
