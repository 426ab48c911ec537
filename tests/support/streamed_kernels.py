"""Whether an operator that streams its operands gives the plain one's bits, and moves what its variant says.

One C program for the machine's compiler runs each operator plainly and by each of its variants. Streamed operands are
on a storage of blocks that counts; RAM is what the variant says, to the byte, and poisoned.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.c.operators import WORKSPACE
from poetopt.backends.c.streamed import Function
from poetopt.backends.c.targets import LINUX, TARGETS, compiler
from poetopt.graph import Operator, Tensor
from poetopt.ops.runtimes.c import windows
from poetopt.ops.runtimes.c.kernel import FLAGS, Arguments
from poetopt.ops.runtimes.c.steps import KernelStep, layout, steps
from poetopt.ops.runtimes.c.variants import Streamed, StreamWays
from poetopt.ops.runtimes.contract import InnerLayout, RuntimeVariant
from poetopt.testing.contract import ContractError
from tests.support.contract.kernel_program import WARNINGS, sanitizers

if TYPE_CHECKING:
    from poetopt.graph import Array

TEMPLATE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class Trial:
    """An operator to run: its graph's tensors and constants, its inputs' values, and by which variants.

    listed
        Which of its operands are tables by rows: on the storage the last row comes first.
    """

    operator: Operator
    tensors: Mapping[str, Tensor]
    values: Mapping[str, Array]
    given: Mapping[str, Array]
    variants: tuple[RuntimeVariant, ...]
    listed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What it has in RAM or on storage: what is updated once, under its old name."""
        new = {new for _, new in self.operator.updates}
        return tuple(n for n in (*self.operator.inputs, *self.operator.outputs) if n not in new)


@contextmanager
def small_blocks(nbytes: int = 32) -> Iterator[None]:
    """A storage of blocks of so many bytes for a while, so that small tensors take several."""
    before, windows.BLOCK_BYTES = windows.BLOCK_BYTES, nbytes
    try:
        yield
    finally:
        windows.BLOCK_BYTES = before


def trial(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Array],
    given: Mapping[str, Array],
    ways: Sequence[RuntimeVariant] | None = None,
    listed: Sequence[str] = (),
) -> Trial:
    """A trial of all variants of an operator, or of `ways`; `listed` are tables by rows."""
    found = ways
    if found is None:
        names = [n for n in (*operator.inputs, *operator.outputs) if n not in listed]
        block = windows.BLOCK_BYTES
        made = StreamWays(operator, tensors, movable=names, listed=listed, values=values, block=block)
        found = [made.variant(way) for way in made.candidates()]
    return Trial(operator, tensors, values, given, tuple(found), tuple(listed))


def check_streamed(trials: Sequence[Trial], optimize: str = "-O1", *, sanitize: bool = True) -> int:
    """How many variants were run.

    Raises ContractError where one gives other bits than the plain operator, or moves other bytes than it says, in
    another number of transfers, where it reads what nobody wrote or writes anything twice, or leaves its workspace.
    """
    with tempfile.TemporaryDirectory(prefix="poetopt-") as name:
        folder = Path(name)
        for header in files("poetopt.ops.runtimes.c.include").iterdir():
            if header.name.endswith(".h"):
                (folder / header.name).write_bytes(header.read_bytes())
        (folder / "trials.c").write_text(_program(trials), encoding="ascii")
        (folder / "inputs.bin").write_bytes(b"".join(_inputs(one) for one in trials))
        host = compiler(TARGETS[LINUX]).command
        flags = (*FLAGS, optimize, *WARNINGS, *(sanitizers(host) if sanitize else ()))
        command = [*host, *flags, "-I.", "trials.c", "-o", "trials", "-lm"]
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if built.returncode:
            raise ContractError(f"streamed operators: the compiler refuses them:\n{built.stderr[:3000]}")
        ended = subprocess.run(
            ["./trials"], cwd=folder, capture_output=True, text=True, errors="replace", check=False,
            env={"ASAN_OPTIONS": "detect_leaks=0"},
        )  # fmt: skip
        wrong = [line for line in ended.stdout.splitlines() if not line.startswith("at ")]
        if ended.returncode or wrong:
            reached = [line for line in ended.stdout.splitlines() if line.startswith("at ")]
            where = _described(trials, reached[-1]) if reached else ""
            told = [_told(trials, line) for line in wrong[:8]]
            raise ContractError("\n".join([f"{where}:", *told, ended.stderr[:2000]]))
    return sum(len(one.variants) for one in trials)


def _described(trials: Sequence[Trial], line: str) -> str:
    _, number, way = line.split()[:3]
    one = trials[int(number)]
    shapes = ", ".join(f"{n}{list(one.tensors[n].shape)}" for n in one.names)
    ops = "+".join(node.op_type for node in one.operator.nodes)
    attributes = [dict(node.attributes) for node in one.operator.nodes]
    variant = one.variants[int(way)]
    return f"{ops} ({shapes}) {attributes}, variant {variant.name} of {variant.streamed_in}, {variant.streamed_out}"


def _told(trials: Sequence[Trial], line: str) -> str:
    number, way, rest = line.split(maxsplit=2)
    return f"{_described(trials, f'at {number} {way}')}: {rest}"


class _Pointers:
    """Where an operator's function finds things: the i-th of the trial's names is t[i], unless it is streamed."""

    def __init__(self, one: Trial, inner: InnerLayout, streamed: Sequence[str] = ()) -> None:
        self.one, self.inner, self.streamed = one, inner, streamed
        self.old = {new: old for old, new in one.operator.updates}

    def of(self, name: str) -> str:
        """A C expression of an address."""
        if name in self.inner.offsets:
            return f"PO_AT({WORKSPACE}, {self.inner.offsets[name]}u)"
        root = self.inner.storage.get(name, name)
        found = self.old.get(root, root)
        if found in self.streamed:
            raise ContractError(f"{self.one.operator.kind}: code names {found!r}, which is on storage, by an address")
        return f"po_t[{self.one.names.index(found)}]"

    def arguments(self, step: KernelStep, state: int | None) -> Arguments:
        """As the emitted code has them."""
        return Arguments(
            tuple(self.of(n) if n else "" for n in step.call.node.inputs),
            tuple(self.of(n) if n else "" for n in step.call.node.outputs),
            f"PO_AT({WORKSPACE}, {step.scratch_offset}u)" if step.scratch_bytes else "",
        )


def _program(trials: Sequence[Trial]) -> str:
    headers: dict[str, None] = {"po_math.h": None}
    functions: list[str] = []
    table: list[str] = []
    for number, one in enumerate(trials):
        run = steps(one.operator, one.tensors, one.values)
        headers.update(dict.fromkeys(header for step in run for header in step.kernel.headers))
        inner = layout(one.operator, one.tensors)
        pointers = _Pointers(one, inner)
        body = [line for s in run for line in s.kernel.code(s.call, pointers.arguments(s, None)).splitlines()]
        functions.append(_function(f"po_plain_{number}", [*body, "(void)b0;"], 0))
        sizes = ", ".join(f"{one.tensors[n].nbytes}u" for n in one.names)
        inputs = sum(1 for n in one.names if n in one.operator.inputs)
        functions.append(f"static const uint32_t po_sizes_{number}[] = {{{sizes}}};")
        lists = {n: f"po_list_{number}_{one.names.index(n)}" for n in one.listed}
        for name, named in lists.items():
            rows = one.tensors[name].shape[0]
            told = ", ".join(f"{row}u" for row in (rows, *reversed(range(rows))))
            functions.append(f"static const uint32_t {named}[] = {{{told}}};")
        counts_of = ", ".join(f"{one.tensors[n].shape[0] if n in lists else 0}u" for n in one.names)
        functions.append(f"static const uint32_t po_rows_{number}[] = {{{counts_of}}};")
        ways: list[str] = []
        for way, variant in enumerate(one.variants):
            detail = variant.detail
            assert isinstance(detail, Streamed)
            there: Any = _Pointers(one, detail.layout, detail.streamed)
            made = Function(one.operator, one.tensors, there, detail, run, lists)
            functions.append(_function(f"po_way_{number}_{way}", list(made.lines()), len(detail.streamed)))
            streamed = [one.names.index(n) for n in detail.streamed]
            mask = sum(1 << place for place in streamed)
            order = ", ".join(map(str, streamed))
            counts = (
                variant.workspace.temporaries_bytes, variant.read_bytes, variant.written_bytes,
                sum(n for _, n in variant.reads), sum(n for _, n in variant.writes),
            )  # fmt: skip
            shown = ", ".join(f"{count}u" for count in counts)
            ways.append(f"{{po_way_{number}_{way}, {mask}u, {{{order}}}, {shown}}}")
        functions.append(f"static const po_way po_ways_{number}[] = {{{', '.join(ways)}}};")
        table.append(
            f"{{{len(one.names)}, {inputs}, po_sizes_{number}, po_rows_{number}, po_plain_{number}, "
            f"{inner.temporaries_bytes}u, {len(ways)}, po_ways_{number}}}"
        )
    template = TEMPLATE.read_text(encoding="ascii")
    return (
        template.replace("@BLOCK@", str(windows.BLOCK_BYTES))
        .replace("@INCLUDES@", "\n".join(f'#include "{header}"' for header in headers))
        .replace("@FUNCTIONS@", "\n\n".join(functions))
        .replace("@TRIALS@", ",\n    ".join(table))
    )


def _function(name: str, lines: Sequence[str], blocks: int) -> str:
    declared = [f"const uint32_t b{k} = po_b[{k}];" for k in range(blocks)] or ["const uint32_t b0 = po_b[0];"]
    unused = ["(void)po_t;", f"(void){WORKSPACE};"]
    body = "\n".join(f"    {line}" for line in (*declared, *unused, *lines, "return 0;"))
    return f"PO_ALONE int {name}(void **po_t, void *{WORKSPACE}, const uint32_t *po_b)\n{{\n{body}\n}}"


def _inputs(one: Trial) -> bytes:
    def arrays() -> Iterator[bytes]:
        for name in one.names:
            if name in one.operator.inputs:
                yield np.ascontiguousarray(one.given[name], one.tensors[name].dtype).tobytes()

    return b"".join(arrays())
