r"""Block `flash_wear`: a bound on what a step writes to storage.

Flash and SD cards bear a limited number of writes. With $m_i$ the bytes of tensor i and $o_i$ whether it is written:

$$ \sum_i m_i\, o_i \le W $$

| symbol | attribute | unit  | meaning                               |
|--------|-----------|-------|---------------------------------------|
| $W$    | -         | bytes | what a step may write                 |
| $m_i$  | -         | bytes | size of tensor i                      |
| $o_i$  | -         | -     | tensor i is written to storage, once  |

The left side is what the blocks before it contribute as `written_bytes`. A tensor is written at most once a step in
`retention`; `poet` may write one again.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, at_most, contributions
from poetopt.formulations.figures import is_figure
from poetopt.formulations.goal import WRITTEN, Trial
from poetopt.formulations.options import BlockOption
from poetopt.util.errors import FormulationError
from poetopt.util.units import parse_size, show_bytes

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem


def _build(block: PyomoBlock, *, written_bytes: int) -> None:
    parts = contributions(block.model(), "written_bytes")
    within = at_most(parts, written_bytes, float(written_bytes or 1))
    block.within = pyo.Constraint(rule=lambda _: within, doc="what a step may write [the limit]")


def _refuses(trial: Trial, *, written_bytes: int) -> str | None:
    written = int(WRITTEN.value(trial))
    if written <= written_bytes:
        return None
    return f"the plan writes {written:,} bytes to storage, more than the {written_bytes:,} that a step may write"


def flash_wear(written_bytes: int) -> Block:
    """The block for a step that writes at most `written_bytes` to storage. Raises FormulationError for what is none."""
    if not is_figure(written_bytes):
        raise FormulationError(f"flash_wear: {written_bytes!r} bytes can't be written; give a number of at least 0")
    written_bytes = int(written_bytes)
    return Block(
        "flash_wear",
        functools.partial(_build, written_bytes=written_bytes),
        collects=True,
        refuses=functools.partial(_refuses, written_bytes=written_bytes),
        limits=WRITTEN,
        transfer_times=False,  # bytes are bytes whenever they are written
        says=f"at most {show_bytes(written_bytes)} written to storage a step",
    )


def _option(value: str, problem: Problem, steps: int) -> Block:
    return flash_wear(parse_size(value, option="--block flash-wear=") // steps)


option = BlockOption("SIZE", _option, "10MB")
