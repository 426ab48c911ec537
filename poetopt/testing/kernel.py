"""`check_kernel`: whether a kernel of the runtime `c` computes what onnxruntime does, and stays within its memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from poetopt.ops.runtimes.c.kernel import Kernel
from poetopt.ops.runtimes.c.steps import Step, call_of
from poetopt.testing.contract import ContractError, require
from poetopt.testing.kernel_cases import Case, cases_of
from poetopt.testing.kernel_program import Ran, Trial, run
from poetopt.util.errors import PoetError

TOLERANCE = 2e-5
"""Of the largest element of an output, and of `LEAST` where all are smaller."""
LEAST = 0.05


@dataclass(frozen=True)
class KernelCheck:
    """What `check_kernel` did.

    cases, in_place
        Calls that were run, and those of them that were run again with the output on an input.
    deviation
        The largest difference from onnxruntime's result, relative to the largest element of an output.
    sanitized
        Whether it was compiled with the address and undefined behaviour sanitizers.
    """

    op: str
    cases: int
    in_place: int
    deviation: float
    sanitized: bool


def check_kernel(
    kernel: Kernel,
    cases: Iterable[Case] | None = None,
    *,
    count: int = 20,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    optimize: str = "-O1",
) -> KernelCheck:
    """Hold a kernel against onnxruntime's own of the same node, or of the nodes that its op stands for.

    cases
        What to run; by default `count` random calls of its op (`poetopt.testing.kernel_cases`).
    optimize
        The compiler's level.

    Everything is one C program for the machine's compiler, with all warnings, and with its sanitizers where it has
    them. Each call is run twice with every byte of outputs and scratch poisoned another way: the results must be the
    same bits, so nothing is read that wasn't written. It is run again on each input that `in_place` names: the same
    bits. Inputs must stay as they are.

    Raises ContractError for what is broken, BackendUnavailableError where there is no compiler.
    """
    (found,) = check_kernels([kernel], {kernel: cases} if cases is not None else None, count=count, seed=seed,
                             tolerance=tolerance, optimize=optimize)  # fmt: skip
    return found


def check_kernels(
    kernels: Sequence[Kernel],
    cases: dict[Kernel, Iterable[Case]] | None = None,
    *,
    count: int = 20,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    optimize: str = "-O1",
) -> tuple[KernelCheck, ...]:
    """`check_kernel` of several, in one program."""
    trials: list[Trial] = []
    spans: list[tuple[int, int]] = []
    for kernel in kernels:
        given = (cases or {}).get(kernel)
        drawn = list(cases_of(kernel, count, seed) if given is None else given)
        op = _name(kernel)
        require(drawn, f"kernel {op}: there are no cases to check it with; give some")
        spans.append((len(trials), len(trials) + len(drawn)))
        trials += [_trial(kernel, case, op) for case in drawn]
    with tempfile.TemporaryDirectory(prefix="poetopt-") as folder:
        try:
            ran, sanitized = run(trials, Path(folder), optimize)
        except PoetError as error:
            if isinstance(error, ContractError) or error.exit_code == 6:
                raise
            raise ContractError(f"kernel {', '.join(map(_name, kernels))}: {error}") from error
    found = []
    for kernel, (first, end) in zip(kernels, spans, strict=True):
        deviation = max(_compared(trials[k], ran[k], tolerance) for k in range(first, end))
        again = sum(len(ran[k].over) for k in range(first, end))
        found.append(KernelCheck(_name(kernel), end - first, again, deviation, sanitized))
    return tuple(found)


def _name(kernel: Kernel) -> str:
    return f"{kernel.domain}.{kernel.op_type}".lstrip(".")


def _trial(kernel: Kernel, case: Case, op: str) -> Trial:
    """The call of `kernel` in a case. Raises ContractError where it refuses it."""
    node = case.node
    call = replace(call_of(case.operator, node, case.tensors), values=case.values)
    where = f"kernel {op}: {_described(case)}"
    why = kernel.refuses(replace(call, values={}))
    require(why is None, f"{where}: it refuses that: {why}")
    scratch = kernel.scratch_bytes(replace(call, values={}))
    require(scratch >= 0, f"{where}: it asks for {scratch} bytes of scratch")
    missing = kernel.missing(call)
    require(missing is None, f"{where}: {missing}")
    return Trial(Step(call, kernel, 0, scratch), case.given, case.expected, where)


def _described(case: Case) -> str:
    shapes = ", ".join(str(case.tensors[name].shape) if name else "none" for name in case.node.inputs)
    attributes = ", ".join(f"{name}={value}" for name, value in case.node.attributes.items())
    return f"of {shapes}{' with ' + attributes if attributes else ''}"


def _compared(trial: Trial, ran: Ran, tolerance: float) -> float:
    """The deviation of a call's outputs from what onnxruntime computed. Raises ContractError beyond the tolerance."""
    worst = 0.0
    for name, found in ran.first.items():
        where = f"{trial.where}: output '{name}'"
        require(
            found.tobytes() == ran.second[name].tobytes(),
            f"{where}: its bytes depend on what lay in outputs or scratch before; it reads what it has not written, or "
            "leaves elements unwritten",
        )
        for way, over in ran.over.items():
            require(
                found.tobytes() == over[name].tobytes(),
                f"{where}: other bits where {way}, which is allowed",
            )
        want = trial.expected.get(name)
        if want is None:
            continue
        require(found.shape == want.shape, f"{where}: onnxruntime's has shape {want.shape}")
        if not found.size:
            continue
        if found.dtype.kind != "f":
            require(np.array_equal(found, want), f"{where}: onnxruntime's is another")
            continue
        finite = np.isfinite(want)
        require(np.array_equal(found[~finite], want[~finite], equal_nan=True), f"{where}: other infinities")
        scale = max(float(np.abs(want[finite]).max(initial=0.0)), LEAST)
        off = float(np.abs(np.subtract(found[finite], want[finite], dtype=np.float64)).max(initial=0.0)) / scale
        require(
            off <= tolerance, f"{where}: {off:.2g} of its largest element from onnxruntime's, more than {tolerance:g}"
        )
        worst = max(worst, off)
    return worst
