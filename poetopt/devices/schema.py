"""Pydantic models of the TOML files of devices and profiles. Imported only when a file is read."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    create_model,
    field_validator,
    model_validator,
)

from poetopt.devices.model import Device, Figure, Kind, Storage
from poetopt.devices.profile import OperatorProfile, Profile, StorageProfile
from poetopt.devices.sanity import FIGURES, LONGEST_S, MEASURED, OF_STORAGE, STORAGE, contradictions, out_of_range
from poetopt.ops.runtimes import DEFAULT, unknown
from poetopt.util.text import unshown

PREFIXES = {
    "": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": Fraction(1000), "K": Fraction(1000), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "Ki": Fraction(1024), "Mi": Fraction(1024**2), "Gi": Fraction(1024**3),
}  # fmt: skip
"""Prefixes of units, with exact factors, so that 0.667 ms is the float nearest to 0.000667."""


def _without_control_characters(text: str) -> str:
    """Reject control characters, which would affect the terminal that prints the text."""
    for character in text:
        if unshown(character):
            raise ValueError(f"it contains the control character U+{ord(character):04X}. Leave it out")
    return text


Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(_without_control_characters)
]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _FigureTable(_StrictModel):
    """`[figures.<name>]`: a number, its unit, its kind and its source."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
    unit: Text
    kind: Kind
    source: Text

    def exact(self, name: str, base: str) -> Fraction:
        """Return the value in the base unit. Raises ValueError for a unit of another quantity."""
        return Fraction(repr(self.value)) * _factor(name, self.unit, base)


class _SwitchTable(_StrictModel):
    """`[dma]`: whether transfers run beside the CPU."""

    value: StrictBool
    kind: Kind
    source: Text


class _Figures(_StrictModel):
    """`[figures]`: all figures."""

    @model_validator(mode="after")
    def _check_figures(self) -> _Figures:
        figures = {name: figure for name in FIGURES if (figure := getattr(self, name)) is not None}
        if "active_power_w" not in figures and "flop_per_j" not in figures:
            raise ValueError("the energy of computing is missing. Give active_power_w or flop_per_j")
        missing = [name for name in STORAGE if name not in figures]
        if missing and figures.keys() & OF_STORAGE.keys():
            raise ValueError(f"a storage needs all its figures, or none. Add {', '.join(missing)}")
        if "flash_reserve_bytes" in figures and "flash_bytes" not in figures:
            raise ValueError("flash_reserve_bytes needs mapped flash. Give flash_bytes as well, or leave it out")
        for name, figure in figures.items():
            exact = figure.exact(name, FIGURES[name].unit)
            if figure.value == 0 and not FIGURES[name].zero:
                raise ValueError(f"{name}: the value must be positive, not 0")
            fault = out_of_range(name, exact, FIGURES[name].unit)
            if fault is not None:
                raise ValueError(fault)
        if errors := contradictions({figure.name: figure for figure in self.figures()})[0]:
            raise ValueError("; ".join(errors))
        return self

    def figures(self) -> tuple[Figure, ...]:
        """Return the figures that are given, in the order of `FIGURES`, in base units."""
        figures = {name: figure for name in FIGURES if (figure := getattr(self, name)) is not None}
        return tuple(
            Figure(name, float(f.exact(name, FIGURES[name].unit)), FIGURES[name].unit, f.kind, f.source)
            for name, f in figures.items()
        )


_PARTS: dict[str, Any] = dict.fromkeys(FIGURES, (_FigureTable | None, None))
_PARTS |= dict.fromkeys(("ram_bytes", "flop_per_s"), (_FigureTable, ...))
FiguresTable: Any = create_model("FiguresTable", __base__=_Figures, **_PARTS)


class DeviceTable(_StrictModel):
    """A device file."""

    name: Text
    description: Text
    aliases: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    runtime: Text = DEFAULT
    dma: _SwitchTable
    figures: FiguresTable

    @field_validator("runtime")
    @classmethod
    def _check_runtime(cls, name: str) -> str:
        fault = unknown(name)
        if fault is not None:
            raise ValueError(fault)
        return name

    @model_validator(mode="after")
    def _check_dma(self) -> DeviceTable:
        if self.dma.value and self.figures.page_in_latency_s is None:
            raise ValueError("dma: true needs a storage to transfer to. Give the storage's figures, or set false")
        return self

    def device(self) -> Device:
        """Return the device in base units."""
        figures = self.figures.figures()
        value: dict[str, Any] = {f.name: round(f.value) if f.unit == "B" else float(f.value) for f in figures}
        stored = {own: value.pop(name) for name, own in OF_STORAGE.items() if name in value}
        return Device(
            name=self.name,
            description=self.description,
            dma=self.dma.value,
            storage=Storage(**stored) if stored else None,
            figures=(*figures, Figure("dma", self.dma.value, "", self.dma.kind, self.dma.source)),
            aliases=self.aliases,
            runtime=self.runtime,
            notes=(*self.notes, *contradictions({figure.name: figure for figure in figures})[1]),
            **value,
        )


def _factor(name: str, unit: str, base: str) -> Fraction:
    match = re.fullmatch(f"([A-Za-z]*?){re.escape(base)}", unit)
    if match is None or match[1] not in PREFIXES:
        raise ValueError(f"{name}: the unit {unit!r} is not {base}, optionally with a prefix n u m k M G T Ki Mi Gi")
    return PREFIXES[match[1]]


_TIME_S = MEASURED["time_s"][1]
_RATE = FIGURES["page_in_bytes_per_s"]

Seconds = Annotated[float, Field(gt=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
"""Seconds of an operator, above 0."""
Spread = Annotated[float, Field(ge=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
Latency = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]
Joules = Annotated[float, Field(ge=0, le=MEASURED["energy_j"][1], allow_inf_nan=False, strict=True)]
Watts = Annotated[float, Field(ge=0, le=FIGURES["active_power_w"].most, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(ge=_RATE.least, le=_RATE.most, allow_inf_nan=False, strict=True)]
Bytes = Annotated[int, Field(ge=0, le=int(MEASURED["workspace_bytes"][1]), strict=True)]
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class _OperatorTable(_StrictModel):
    """`[operators."<signature>"]`."""

    time_s: Seconds
    spread_s: Spread = 0.0
    runs: Count = 1
    workspace_bytes: Bytes | None = None
    energy_j: Joules | None = None


class _StorageTable(_StrictModel):
    """`[storage]`."""

    page_in_latency_s: Latency
    page_in_bytes_per_s: Rate
    page_out_latency_s: Latency
    page_out_bytes_per_s: Rate
    power_w: Watts | None = None
    dma: StrictBool = False


class ProfileTable(_StrictModel):
    """A profile file."""

    version: Literal[1]
    power_w: Watts | None = None
    about: dict[str, str] = {}
    storage: _StorageTable | None = None
    operators: dict[str, _OperatorTable] = {}

    def profile(self) -> Profile:
        """Return the profile."""
        return Profile(
            about=self.about,
            power_w=self.power_w,
            operators={key: OperatorProfile(**entry.model_dump()) for key, entry in self.operators.items()},
            storage=None if self.storage is None else StorageProfile(**self.storage.model_dump()),
        )
