"""The forms of a device's and of a profile's TOML file, checked by pydantic. Imported only when a file is read."""

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
"""Factors that a unit may start with; exact, so that 0.667 ms is the float nearest to 0.000667."""


def _shows(text: str) -> str:
    """Refuse what would do something to the terminal that the text is printed on."""
    for character in text:
        if unshown(character):
            raise ValueError(f"it holds the control character U+{ord(character):04X}; leave it out")
    return text


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(_shows)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _FigureTable(_Form):
    """`[figures.<name>]`: a number, its unit, how it is known and where it is from."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
    unit: Text
    kind: Kind
    source: Text

    def exact(self, name: str, base: str) -> Fraction:
        """The value in the base unit. Raises ValueError where the unit is another's."""
        return Fraction(repr(self.value)) * _factor(name, self.unit, base)


class _SwitchTable(_Form):
    """`[dma]`: whether transfers run beside the CPU."""

    value: StrictBool
    kind: Kind
    source: Text


class _Figures(_Form):
    """`[figures]`: everything that is counted."""

    @model_validator(mode="after")
    def _complete(self) -> _Figures:
        given = {name: figure for name in FIGURES if (figure := getattr(self, name)) is not None}
        if "active_power_w" not in given and "flop_per_j" not in given:
            raise ValueError("the energy of computing is missing: give active_power_w or flop_per_j")
        missing = [name for name in STORAGE if name not in given]
        if missing and given.keys() & OF_STORAGE.keys():
            raise ValueError(f"a storage needs all its figures, or none: {', '.join(missing)} missing")
        if "flash_reserve_bytes" in given and "flash_bytes" not in given:
            raise ValueError("flash_reserve_bytes is of mapped flash: give flash_bytes as well, or leave it out")
        for name, figure in given.items():
            exact = figure.exact(name, FIGURES[name].unit)
            if figure.value == 0 and not FIGURES[name].zero:
                raise ValueError(f"{name}: the value must be positive, not 0")
            wrong = out_of_range(name, exact, FIGURES[name].unit)
            if wrong is not None:
                raise ValueError(wrong)
        if errors := contradictions({figure.name: figure for figure in self.figures()})[0]:
            raise ValueError("; ".join(errors))
        return self

    def figures(self) -> tuple[Figure, ...]:
        """The figures given, in the order of `FIGURES`, in base units."""
        given = {name: figure for name in FIGURES if (figure := getattr(self, name)) is not None}
        return tuple(
            Figure(name, float(f.exact(name, FIGURES[name].unit)), FIGURES[name].unit, f.kind, f.source)
            for name, f in given.items()
        )


_PARTS: dict[str, Any] = dict.fromkeys(FIGURES, (_FigureTable | None, None))
_PARTS |= dict.fromkeys(("ram_bytes", "flop_per_s"), (_FigureTable, ...))
FiguresTable: Any = create_model("FiguresTable", __base__=_Figures, **_PARTS)


class DeviceTable(_Form):
    """A whole file."""

    name: Text
    description: Text
    aliases: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    runtime: Text = DEFAULT
    dma: _SwitchTable
    figures: FiguresTable

    @field_validator("runtime")
    @classmethod
    def _known(cls, name: str) -> str:
        wrong = unknown(name)
        if wrong is not None:
            raise ValueError(wrong)
        return name

    @model_validator(mode="after")
    def _something_to_move(self) -> DeviceTable:
        if self.dma.value and self.figures.page_in_latency_s is None:
            raise ValueError("dma: true needs a storage to transfer to; give the storage's figures, or say false")
        return self

    def device(self) -> Device:
        """The device in base units."""
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
        raise ValueError(f"{name}: the unit {unit!r} is not {base} (with a prefix of n u m k M G T Ki Mi Gi, or none)")
    return PREFIXES[match[1]]


_TIME_S = MEASURED["time_s"][1]
_RATE = FIGURES["page_in_bytes_per_s"]

Seconds = Annotated[float, Field(gt=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
"""Of an operator: more than none."""
Spread = Annotated[float, Field(ge=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
Latency = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]
Joules = Annotated[float, Field(ge=0, le=MEASURED["energy_j"][1], allow_inf_nan=False, strict=True)]
Watts = Annotated[float, Field(ge=0, le=FIGURES["active_power_w"].most, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(ge=_RATE.least, le=_RATE.most, allow_inf_nan=False, strict=True)]
Bytes = Annotated[int, Field(ge=0, le=int(MEASURED["workspace_bytes"][1]), strict=True)]
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class _OperatorTable(_Form):
    """`[operators."<signature>"]`."""

    time_s: Seconds
    spread_s: Spread = 0.0
    runs: Count = 1
    workspace_bytes: Bytes | None = None
    energy_j: Joules | None = None


class _StorageTable(_Form):
    """`[storage]`."""

    page_in_latency_s: Latency
    page_in_bytes_per_s: Rate
    page_out_latency_s: Latency
    page_out_bytes_per_s: Rate
    power_w: Watts | None = None
    dma: StrictBool = False


class ProfileTable(_Form):
    """A whole file."""

    version: Literal[1]
    power_w: Watts | None = None
    about: dict[str, str] = {}
    storage: _StorageTable | None = None
    operators: dict[str, _OperatorTable] = {}

    def profile(self) -> Profile:
        """The profile."""
        return Profile(
            about=self.about,
            power_w=self.power_w,
            operators={key: OperatorProfile(**entry.model_dump()) for key, entry in self.operators.items()},
            storage=None if self.storage is None else StorageProfile(**self.storage.model_dump()),
        )
