"""The forms of a device's and of a profile's TOML file, checked by pydantic. Imported only when a file is read."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    field_validator,
    model_validator,
)

from poetopt.devices.model import Device, Figure, Kind, Storage
from poetopt.devices.profile import OperatorProfile, Profile, StorageProfile
from poetopt.devices.sanity import LONGEST_S, MEASURED, RANGES, contradictions, out_of_range
from poetopt.ops.runtimes import DEFAULT, unknown
from poetopt.util.text import unshown

PREFIXES = {
    "": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": Fraction(1000), "K": Fraction(1000), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "Ki": Fraction(1024), "Mi": Fraction(1024**2), "Gi": Fraction(1024**3),
}  # fmt: skip
"""Factors that a unit may start with; exact, so that 0.667 ms is the float nearest to 0.000667."""

UNITS = {
    "ram_bytes": "B",
    "flop_per_s": "FLOP/s",
    "memory_bytes_per_s": "B/s",
    "active_power_w": "W",
    "flop_per_j": "FLOP/J",
    "page_in_latency_s": "s",
    "page_in_bytes_per_s": "B/s",
    "page_out_latency_s": "s",
    "page_out_bytes_per_s": "B/s",
    "storage_power_w": "W",
    "transfer_cpu_power_w": "W",
    "storage_bytes": "B",
    "storage_block_bytes": "B",
    "storage_erase_bytes": "B",
    "storage_bus_bytes_per_s": "B/s",
    "storage_wake_j": "J",
    "flash_bytes": "B",
    "flash_reserve_bytes": "B",
    "stack_bytes": "B",
}
"""The base unit of each figure."""

MAY_BE_ZERO = frozenset(
    {
        "page_in_latency_s",
        "page_out_latency_s",
        "storage_power_w",
        "transfer_cpu_power_w",
        "storage_wake_j",
        "flash_reserve_bytes",
        "stack_bytes",
    }
)
STORAGE = (
    "page_in_latency_s",
    "page_in_bytes_per_s",
    "page_out_latency_s",
    "page_out_bytes_per_s",
    "storage_power_w",
    "transfer_cpu_power_w",
)
"""Figures of a storage: all of them, or none."""
ABOUT_STORAGE = (
    "storage_bytes", "storage_block_bytes", "storage_erase_bytes", "storage_bus_bytes_per_s", "storage_wake_j",
)  # fmt: skip
"""What else may be said of a storage."""


def _shows(text: str) -> str:
    """Refuse what would do something to the terminal that the text is printed on."""
    for character in text:
        if unshown(character):
            raise ValueError(f"it holds the control character U+{ord(character):04X}; leave it out")
    return text


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(_shows)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FigureTable(_Form):
    """`[figures.<name>]`: a number, its unit, how it is known and where it is from."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
    unit: Text
    kind: Kind
    source: Text

    def exact(self, name: str, base: str) -> Fraction:
        """The value in the base unit. Raises ValueError where the unit is another's."""
        return Fraction(repr(self.value)) * _factor(name, self.unit, base)


class SwitchTable(_Form):
    """`[dma]`: whether transfers run beside the CPU."""

    value: StrictBool
    kind: Kind
    source: Text


class FiguresTable(_Form):
    """`[figures]`: everything that is counted."""

    ram_bytes: FigureTable
    flop_per_s: FigureTable
    memory_bytes_per_s: FigureTable | None = None
    active_power_w: FigureTable | None = None
    flop_per_j: FigureTable | None = None
    page_in_latency_s: FigureTable | None = None
    page_in_bytes_per_s: FigureTable | None = None
    page_out_latency_s: FigureTable | None = None
    page_out_bytes_per_s: FigureTable | None = None
    storage_power_w: FigureTable | None = None
    transfer_cpu_power_w: FigureTable | None = None
    storage_bytes: FigureTable | None = None
    storage_block_bytes: FigureTable | None = None
    storage_erase_bytes: FigureTable | None = None
    storage_bus_bytes_per_s: FigureTable | None = None
    storage_wake_j: FigureTable | None = None
    flash_bytes: FigureTable | None = None
    flash_reserve_bytes: FigureTable | None = None
    stack_bytes: FigureTable | None = None

    @model_validator(mode="after")
    def _complete(self) -> FiguresTable:
        if self.active_power_w is None and self.flop_per_j is None:
            raise ValueError("the energy of computing is missing: give active_power_w or flop_per_j")
        given = [name for name in (*STORAGE, *ABOUT_STORAGE) if getattr(self, name) is not None]
        missing = [name for name in STORAGE if getattr(self, name) is None]
        if missing and given:
            raise ValueError(f"a storage needs all its figures, or none: {', '.join(missing)} missing")
        if self.flash_reserve_bytes is not None and self.flash_bytes is None:
            raise ValueError("flash_reserve_bytes is of mapped flash: give flash_bytes as well, or leave it out")
        for name, unit in UNITS.items():
            figure: FigureTable | None = getattr(self, name)
            if figure is None:
                continue
            exact = figure.exact(name, unit)
            if figure.value == 0 and name not in MAY_BE_ZERO:
                raise ValueError(f"{name}: the value must be positive, not 0")
            wrong = out_of_range(name, exact, unit)
            if wrong is not None:
                raise ValueError(wrong)
        if errors := contradictions({figure.name: figure for figure in self.figures()})[0]:
            raise ValueError("; ".join(errors))
        return self

    def figures(self) -> tuple[Figure, ...]:
        """The figures given, in the order of `UNITS`, in base units."""
        found: list[Figure] = []
        for name, unit in UNITS.items():
            figure: FigureTable | None = getattr(self, name)
            if figure is not None:
                found.append(Figure(name, float(figure.exact(name, unit)), unit, figure.kind, figure.source))
        return tuple(found)


class DeviceTable(_Form):
    """A whole file."""

    name: Text
    description: Text
    aliases: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    runtime: Text = DEFAULT
    dma: SwitchTable
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
        value = {figure.name: float(figure.value) for figure in figures}
        capacity, block = value.get("storage_bytes"), value.get("storage_block_bytes")
        storage = None
        if "page_in_latency_s" in value:
            storage = Storage(
                page_in_latency_s=value["page_in_latency_s"],
                page_in_bytes_per_s=value["page_in_bytes_per_s"],
                page_out_latency_s=value["page_out_latency_s"],
                page_out_bytes_per_s=value["page_out_bytes_per_s"],
                power_w=value["storage_power_w"],
                cpu_power_w=value["transfer_cpu_power_w"],
                capacity_bytes=None if capacity is None else round(capacity),
                block_bytes=1 if block is None else round(block),
                erase_bytes=round(value.get("storage_erase_bytes", 1)),
                bus_bytes_per_s=value.get("storage_bus_bytes_per_s"),
                wake_j=value.get("storage_wake_j", 0.0),
            )
        return Device(
            name=self.name,
            description=self.description,
            ram_bytes=round(value["ram_bytes"]),
            flop_per_s=value["flop_per_s"],
            dma=self.dma.value,
            active_power_w=value.get("active_power_w"),
            flop_per_j=value.get("flop_per_j"),
            memory_bytes_per_s=value.get("memory_bytes_per_s"),
            storage=storage,
            figures=(*figures, Figure("dma", self.dma.value, "", self.dma.kind, self.dma.source)),
            aliases=self.aliases,
            runtime=self.runtime,
            flash_bytes=None if "flash_bytes" not in value else round(value["flash_bytes"]),
            flash_reserve_bytes=round(value.get("flash_reserve_bytes", 0)),
            stack_bytes=round(value.get("stack_bytes", 0)),
            notes=(*self.notes, *contradictions({figure.name: figure for figure in figures})[1]),
        )


def _factor(name: str, unit: str, base: str) -> Fraction:
    match = re.fullmatch(f"([A-Za-z]*?){re.escape(base)}", unit)
    if match is None or match[1] not in PREFIXES:
        raise ValueError(f"{name}: the unit {unit!r} is not {base} (with a prefix of n u m k M G T Ki Mi Gi, or none)")
    return PREFIXES[match[1]]


_TIME_S = MEASURED["time_s"][1]
_RATE_LEAST, _RATE_MOST = RANGES["page_in_bytes_per_s"]

Seconds = Annotated[float, Field(gt=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
"""Of an operator: more than none."""
Spread = Annotated[float, Field(ge=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
Latency = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]
Joules = Annotated[float, Field(ge=0, le=MEASURED["energy_j"][1], allow_inf_nan=False, strict=True)]
Watts = Annotated[float, Field(ge=0, le=RANGES["active_power_w"][1], allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(ge=_RATE_LEAST, le=_RATE_MOST, allow_inf_nan=False, strict=True)]
Bytes = Annotated[int, Field(ge=0, le=int(MEASURED["workspace_bytes"][1]), strict=True)]
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class OperatorTable(_Form):
    """`[operators."<signature>"]`."""

    time_s: Seconds
    spread_s: Spread = 0.0
    runs: Count = 1
    workspace_bytes: Bytes | None = None
    energy_j: Joules | None = None


class StorageTable(_Form):
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
    storage: StorageTable | None = None
    operators: dict[str, OperatorTable] = {}

    def profile(self) -> Profile:
        """The profile."""
        return Profile(
            about=self.about,
            power_w=self.power_w,
            operators={key: OperatorProfile(**entry.model_dump()) for key, entry in self.operators.items()},
            storage=None if self.storage is None else StorageProfile(**self.storage.model_dump()),
        )
