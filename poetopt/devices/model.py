"""A device: costs of its computing and its storage, in seconds and joules.

Plain data and four formulas. `Device.figures` has the source of each figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from poetopt.graph.problem import Transfers
from poetopt.ops.flops import Work
from poetopt.ops.runtimes import DEFAULT
from poetopt.util.text import shown


class Kind(StrEnum):
    """Origin of a figure."""

    MEASURED = "measured"
    """Measured on the hardware; the source says by whom."""
    DATASHEET = "datasheet"
    """From a document of the vendor."""
    ESTIMATE = "estimate"
    """Estimated; the source says from what."""
    DERIVED = "derived"
    """Computed from figures named in the source."""
    PAPER = "paper"
    """Constant that the paper's authors released, verbatim."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a device with its source.

    Attributes
    ----------
    value
        Value in SI base units (B, B/s, FLOP/s, FLOP/J, W, s); a boolean for `dma`, whose unit is empty.
    """

    name: str
    value: float | bool
    unit: str
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Flash or an SD card to page to. A transfer takes latency + bytes / rate seconds, in whole blocks.

    Attributes
    ----------
    power_w
        Watts of the storage during a transfer.
    cpu_power_w
        Watts of the CPU that a transfer is charged with: the CPU's active power if it copies byte by byte, 0 if a DMA
        engine does.
    capacity_bytes
        Size, or None if unknown.
    block_bytes
        Size of the blocks that it reads and writes: a transfer moves whole blocks.
    erase_bytes
        Size of the blocks that flash erases before writing, a multiple of `block_bytes`; 1 if it doesn't erase.
    bus_bytes_per_s
        Maximum rate of its bus, or None if unknown; the transfer rates don't exceed it.
    wake_j
        Joules of powering it on and off again, for each run of transfers without a pause. The paper (section 5.5)
        assumes that it dominates; 0 if unknown.
    """

    page_in_latency_s: float
    page_in_bytes_per_s: float
    page_out_latency_s: float
    page_out_bytes_per_s: float
    power_w: float
    cpu_power_w: float
    capacity_bytes: int | None = None
    block_bytes: int = 1
    erase_bytes: int = 1
    bus_bytes_per_s: float | None = None
    wake_j: float = 0.0

    def moved_bytes(self, nbytes: int) -> int:
        """Return the bytes that a transfer of `nbytes` moves: whole blocks."""
        return -(-nbytes // self.block_bytes) * self.block_bytes


@dataclass(frozen=True)
class Device:
    """A machine to train on.

    Attributes
    ----------
    ram_bytes
        Size of its RAM.
    flop_per_s
        Sustained single-precision rate.
    memory_bytes_per_s
        Sustained RAM bandwidth, or None: then time is FLOPs / rate.
    active_power_w
        Watts of computing, above those of an idle device (the figure's source says if they can't be separated).
    flop_per_j
        FLOPs per joule, or None. If it is given, energy is FLOPs / flop_per_j, and the power counts only for seconds
        that a profile measured.
    flash_bytes, flash_reserve_bytes
        Flash that is mapped, so that it is read in place like RAM, or None if there is none; and the part of it that
        code takes. Untrained weights are there and take no RAM.
    stack_bytes
        RAM of the stack, interrupts and drivers, in addition to that of a step.
    storage
        Storage to page to, or None: then schedules can only recompute.
    dma
        Whether a transfer runs beside the CPU.
    runtime
        Runtime of the operators, whose workspaces and reserve count. See `poetopt.ops.runtimes`.
    aliases
        Other names of a device in the catalogue.
    """

    name: str
    description: str
    ram_bytes: int
    flop_per_s: float
    dma: bool
    active_power_w: float | None = None
    flop_per_j: float | None = None
    memory_bytes_per_s: float | None = None
    storage: Storage | None = None
    figures: tuple[Figure, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    runtime: str = DEFAULT
    flash_bytes: int | None = None
    flash_reserve_bytes: int = 0
    stack_bytes: int = 0

    @property
    def flash_room_bytes(self) -> int:
        """Bytes of mapped flash that weights may take."""
        return max(0, (self.flash_bytes or 0) - self.flash_reserve_bytes)

    def __repr__(self) -> str:
        return f"<Device {shown(self.name)}: {shown(self.description)}>"

    def compute_s(self, work: Iterable[Work]) -> float:
        """Return the seconds of nodes in sequence: each takes the longer of its arithmetic and its traffic."""
        if self.memory_bytes_per_s is None:
            return sum(node.flops for node in work) / self.flop_per_s
        return sum(max(node.flops / self.flop_per_s, node.nbytes / self.memory_bytes_per_s) for node in work)

    def compute_j(self, work: Iterable[Work]) -> float:
        """Return the joules of nodes in sequence: FLOPs / flop_per_j if known, else time x active power."""
        if self.flop_per_j is not None:
            return sum(node.flops for node in work) / self.flop_per_j
        return self.compute_s(work) * (self.active_power_w or 0.0)

    def page_in_s(self, nbytes: int) -> float:
        """Return the seconds to read `nbytes` from storage; 0 without storage."""
        s = self.storage
        return s.page_in_latency_s + s.moved_bytes(nbytes) / s.page_in_bytes_per_s if s else 0.0

    def page_out_s(self, nbytes: int) -> float:
        """Return the seconds to write `nbytes` to storage; 0 without storage."""
        s = self.storage
        return s.page_out_latency_s + s.moved_bytes(nbytes) / s.page_out_bytes_per_s if s else 0.0

    def page_in_j(self, nbytes: int) -> float:
        """Return the joules to read `nbytes`: time x (storage power + CPU power charged to transfers)."""
        return self.page_in_s(nbytes) * self._transfer_power_w

    def page_out_j(self, nbytes: int) -> float:
        """Return the joules to write `nbytes`: time x (storage power + CPU power charged to transfers)."""
        return self.page_out_s(nbytes) * self._transfer_power_w

    def transfers(self, nbytes: int) -> Transfers:
        """Return seconds and joules of reading and writing a tensor of `nbytes`."""
        return Transfers(
            page_in_s=self.page_in_s(nbytes),
            page_in_j=self.page_in_j(nbytes),
            page_out_s=self.page_out_s(nbytes),
            page_out_j=self.page_out_j(nbytes),
        )

    @property
    def _transfer_power_w(self) -> float:
        return self.storage.power_w + self.storage.cpu_power_w if self.storage else 0.0
