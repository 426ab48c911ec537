"""A device: what its computing and its storage cost, in seconds and joules.

Plain data and four formulas. Where the figures come from stays with them: `Device.figures`.
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
    """Says how a figure is known."""

    MEASURED = "measured"
    """Somebody ran it on the hardware, and the source says who."""
    DATASHEET = "datasheet"
    """The vendor's document says so."""
    ESTIMATE = "estimate"
    """An educated guess; the source says from what."""
    DERIVED = "derived"
    """Computed from figures named in the source."""
    PAPER = "paper"
    """The paper authors' released constant, verbatim."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a device with its pedigree.

    value is in SI base units (B, B/s, FLOP/s, FLOP/J, W, s); a boolean for `dma`, whose unit is empty.
    """

    name: str
    value: float | bool
    unit: str
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Flash or an SD card to page to. A transfer takes latency + bytes / rate seconds, in whole blocks.

    power_w
        Watts of the storage while it transfers.
    cpu_power_w
        Watts of the CPU that a transfer is charged with: the CPU's active power where it copies byte by byte, 0
        where a DMA engine does it.
    capacity_bytes
        Size, or None where it is not known.
    block_bytes
        What it reads and writes at once: a transfer moves whole blocks.
    erase_bytes
        What flash erases at once before it is written anew: a number of blocks; 1 where nothing has to be.
    bus_bytes_per_s
        What the bus to it can carry at most, or None where it is not known; the rates are not above it.
    wake_j
        Joules of powering it on and off again, for each run of transfers without a pause. The paper (section 5.5) has
        it dominate; 0 where it is not known.
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
        """Bytes that a transfer of `nbytes` moves: whole blocks."""
        return -(-nbytes // self.block_bytes) * self.block_bytes


@dataclass(frozen=True)
class Device:
    """A machine to train on.

    ram_bytes
        All of its RAM.
    flop_per_s
        Sustained single-precision rate.
    memory_bytes_per_s
        Sustained RAM bandwidth, or None: then time is FLOPs / rate alone.
    active_power_w
        Watts while it computes, over what it draws idle (the figure's source says where it can't be told apart).
    flop_per_j
        FLOPs a joule, or None. Where it is given, energy is FLOPs / flop_per_j, and the power counts only for
        seconds that a profile measured.
    flash_bytes, flash_reserve_bytes
        Flash that is mapped, so that it is read in place like RAM, or None where there is none; and what of it code
        takes. Weights that nobody trains lie there at no RAM.
    stack_bytes
        RAM that the stack, interrupts and drivers take beside a step.
    storage
        What it pages to, or None: then schedules can only recompute.
    dma
        Whether a transfer runs beside the CPU.
    runtime
        What runs the operators: whose workspaces and reserve count. See `poetopt.ops.runtimes`.
    aliases
        Other names that it is found by, where it is in the catalogue.
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
        """Seconds for nodes that run one after another: each takes the longer of its arithmetic and its traffic."""
        if self.memory_bytes_per_s is None:
            return sum(node.flops for node in work) / self.flop_per_s
        return sum(max(node.flops / self.flop_per_s, node.nbytes / self.memory_bytes_per_s) for node in work)

    def compute_j(self, work: Iterable[Work]) -> float:
        """Joules for the same: FLOPs / flop_per_j where that is known, else time x active power."""
        if self.flop_per_j is not None:
            return sum(node.flops for node in work) / self.flop_per_j
        return self.compute_s(work) * (self.active_power_w or 0.0)

    def page_in_s(self, nbytes: int) -> float:
        """Seconds to read `nbytes` from storage; 0 without storage."""
        s = self.storage
        return s.page_in_latency_s + s.moved_bytes(nbytes) / s.page_in_bytes_per_s if s else 0.0

    def page_out_s(self, nbytes: int) -> float:
        """Seconds to write `nbytes` to storage; 0 without storage."""
        s = self.storage
        return s.page_out_latency_s + s.moved_bytes(nbytes) / s.page_out_bytes_per_s if s else 0.0

    def page_in_j(self, nbytes: int) -> float:
        """Joules to read `nbytes`: time x (storage power + the CPU power that the transfer is charged with)."""
        return self.page_in_s(nbytes) * self._transfer_power_w

    def page_out_j(self, nbytes: int) -> float:
        """Joules to write `nbytes`."""
        return self.page_out_s(nbytes) * self._transfer_power_w

    def transfers(self, nbytes: int) -> Transfers:
        """All four of a tensor of `nbytes`."""
        return Transfers(
            page_in_s=self.page_in_s(nbytes),
            page_in_j=self.page_in_j(nbytes),
            page_out_s=self.page_out_s(nbytes),
            page_out_j=self.page_out_j(nbytes),
        )

    @property
    def _transfer_power_w(self) -> float:
        return self.storage.power_w + self.storage.cpu_power_w if self.storage else 0.0
