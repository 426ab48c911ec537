"""Memory budget of a torch module's step: the plan, its proof, and the measured peak."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from poetopt.formulations.goal import TIME
from poetopt.torch.tensors import check_module, needed
from poetopt.util.errors import BackendUnavailableError, OptionError
from poetopt.util.units import Share, parse_ram, parse_time, show_bytes, show_share

LEAST_TORCH = (2, 10)
"""Oldest torch whose partitioner places marked nodes, and reports which outputs are written into inputs."""
BACKENDS = ("aot_eager", "inductor")


@dataclass
class MemoryPlan:
    """Memory of one graph's step beyond parameters, buffers and inputs, and the cost of recomputing.

    Attributes
    ----------
    budget_bytes
        Limit of the step.
    beside_bytes
        Parameters, buffers and inputs.
    store_all_bytes, torch_bytes
        Peak without recomputing, and with torch's own choice (None if unknown).
    planned_bytes
        Peak of the graphs that run; each storage counts until its last use.
    least_bytes
        Lower bound of any order in which each backward kernel runs once, in torch's order.
    own
        Whether torch's own choice runs, because it fits.
    recomputes
        Kernels that run again.
    recompute_share
        Time of recomputing and moving, as a share of the step's time without either.
    moved_bytes
        Bytes that a step moves out of memory (`offload=True`).
    gap, scope_gap, scope
        Share of that time that any other plan could save at most, and any plan of the searched scope. None if torch's
        own choice runs.
    measured_bytes
        Peak of the first step, of all graphs together. None before that step, and with inductor, whose allocations
        aren't visible.
    batch, batch_bound
        Largest batch for which a plan was found, and the bound above which none exists. None if it wasn't requested.
    """

    name: str
    budget_bytes: int
    beside_bytes: int
    store_all_bytes: int
    torch_bytes: int | None
    planned_bytes: int
    least_bytes: int
    own: bool = False
    recomputes: int = 0
    recompute_share: float = 0.0
    moved_bytes: int = 0
    gap: float | None = None
    scope_gap: float | None = None
    scope: str = ""
    measured_bytes: int | None = None
    batch: int | None = None
    batch_bound: int | None = None

    def __str__(self) -> str:
        from poetopt.report.proof import Claim

        share = show_share(self.planned_bytes / self.store_all_bytes) if self.store_all_bytes else "all"
        lines = [
            f"{self.name}: a step takes {show_bytes(self.planned_bytes)} of {show_bytes(self.budget_bytes)}, {share} "
            f"of the {show_bytes(self.store_all_bytes)} without recomputing",
            f"  fixed      {show_bytes(self.beside_bytes)} of parameters, buffers and inputs",
        ]
        if self.own:
            lines.append("  choice     torch's own, because it fits")
        else:
            torch_choice = "is unknown" if self.torch_bytes is None else f"takes {show_bytes(self.torch_bytes)}"
            moved = f" and moves {show_bytes(self.moved_bytes)} out" if self.moved_bytes else ""
            lines.append(
                f"  recomputes {self.recomputes} kernels{moved}, {show_share(self.recompute_share)} of a step's time; "
                f"torch's own choice {torch_choice}"
            )
            claim = Claim(
                scope=self.scope,
                gap=self.gap,
                scope_gap=self.scope_gap,
                goal=TIME.name,
                paging=self.moved_bytes > 0,
            )
            lines += [f"  proof      {line}" for line in claim.plain()]
        lines.append(f"  least      no plan takes less than {show_bytes(self.least_bytes)}")
        if self.batch is not None:
            lines.append(f"  batch      {self.batch} fits; none above {self.batch_bound} does")
        if self.measured_bytes is not None:
            lines.append(f"  measured   {show_bytes(self.measured_bytes)} in the first step")
        return "\n".join(lines)


def compile_module(
    module: Any,
    *,
    memory: str | float | Share,
    time_limit: str | float = 30.0,
    backend: str = "aot_eager",
    fullgraph: bool = True,
    progress: bool = False,
    measure: bool = True,
    offload: bool | str | Path = False,
) -> Any:
    """Compile a torch module in place, so that its training step stays within a memory budget; return it.

        net = po.torch.compile(net, memory="60%")
        for x, y in batches:
            net(x, y).backward()  # net returns its loss
        print(*net.memory_plans)

    The first call with new shapes plans, and appends a `MemoryPlan` for each graph to `module.memory_plans`. Random
    numbers are drawn once, so that Dropout's mask is the same in backward. With `aot_eager`, gradients are torch's own
    bit for bit. Without gradients (`torch.no_grad`) nothing is planned. A copied or unpickled module runs uncompiled:
    compile it again.

    Parameters
    ----------
    memory
        Bytes or a size (`"8GB"`) for the whole step: parameters, buffers, inputs, gradients and intermediate results.
        Or a share (`"60%"`) of the intermediate results without recomputing, gradients included. Live tensors count.
        Not counted are temporary buffers within a kernel, results computed outside of the module (so let `forward`
        return the loss), remaining gradients of earlier steps, and states of an optimizer.
    time_limit
        Limit of the search, for each graph.
    backend
        `aot_eager` runs torch's kernels in the planned order. `inductor` fuses and reorders them; the plan's peak is
        then an estimate, and isn't measured.
    fullgraph
        False lets torch split the module into several graphs. The budget must then be a share, and each graph gets that
        share of its own peak, so that the peaks together stay within that share of the whole. Code between the graphs
        isn't planned.
    progress
        Write the plan to stderr when it is complete.
    measure
        Time each kernel alone, in a few runs on random data. False estimates costs by FLOPs and bytes, the same on
        every machine.
    offload
        Also move tensors out of memory if that costs less than recomputing: from an accelerator to the host's memory,
        from a CPU to files in the given folder or in the temporary one (`TMPDIR`). On a CPU this frees memory only if
        the folder is on a disk. The files have no names, and disappear with their tensors.

    Raises
    ------
    OptionError
        For an invalid budget.
    ModelError
        For a module that torch can't trace, or that can't be planned.
    BackendUnavailableError
        Without a torch that has the needed hook.
    InfeasibleError
        In the first call, if no plan fits the budget; the message names a budget that suffices.
    NoScheduleError
        In the first call, if no plan was found in time.
    OutputError
        In a step, if the folder of `offload` is full.
    """
    _check_arguments(module, backend)
    budget = parse_ram(memory, option="memory")
    if not fullgraph and not isinstance(budget, Share):
        raise OptionError(
            f"memory={memory!r}: a size needs the whole module in one graph. With fullgraph=False, give a share such "
            "as '60%', which is applied to each graph."
        )
    from poetopt.torch.compiled import Compiled

    time_limit_s, folder = _seconds(time_limit), _folder(offload)
    return Compiled(module, budget, time_limit_s, backend, fullgraph, progress, measure, folder=folder).attached()


def plan(
    module: Any,
    example: Any,
    *,
    memory: str | float | Share = "100%",
    time_limit: str | float = 30.0,
    measure: bool = True,
    largest: bool = False,
    offload: bool | str | Path = False,
) -> MemoryPlan:
    """Return the plan that `po.torch.compile` would run on an example, without running the module.

    Errors are those of `po.torch.compile`.

    Parameters
    ----------
    module, memory, time_limit, measure, offload
        As for `po.torch.compile`.
    example
        A tensor, a tuple of the arguments of `forward`, or a dict of keyword arguments.
    largest
        Return the plan of the largest batch that fits. Tensors of the example with the first one's dimension 0 are cut
        or repeated along it. `memory` must be a size. At most six batches are planned, each until it fits: recomputing
        isn't minimized.
    """
    _check_arguments(module, "aot_eager")
    budget, limit_s, folder = parse_ram(memory, option="memory"), _seconds(time_limit), _folder(offload)
    from poetopt.torch.compiled import Compiled

    if not largest:
        return Compiled(module, budget, limit_s, measure=measure, folder=folder).planned(example)
    if isinstance(budget, Share):
        raise OptionError(
            f"memory={memory!r}: the largest batch within a share isn't defined. Give a size such as '8GB'."
        )
    from poetopt.torch.batch import largest_batch

    trial = partial(Compiled, module, budget, limit_s, measure=measure, gap=1.0, folder=folder)
    return largest_batch(
        example,
        budget,
        lambda batch_example: trial().planned(batch_example, least=True),
        lambda batch_example: trial().planned(batch_example),
    )


def _seconds(time_limit: str | float) -> float:
    return parse_time(time_limit, option="time_limit")


def _folder(offload: bool | str | Path) -> str | None:
    """Return the folder for tensors on disk, or None without offloading. Raises OptionError for an invalid folder."""
    if offload is False:
        return None
    folder = tempfile.gettempdir() if offload is True else str(offload)
    if not os.access(folder, os.W_OK | os.X_OK) or not os.path.isdir(folder):
        raise OptionError(f"offload={folder!r}: it isn't a writable folder. Give another.")
    return folder


def _check_arguments(module: Any, backend: str) -> None:
    """Raise BackendUnavailableError, ModelError or OptionError for an unsuitable torch, module or backend."""
    torch = needed()
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < LEAST_TORCH:
        raise BackendUnavailableError(
            f"torch {torch.__version__} is too old. po.torch.compile needs {'.'.join(map(str, LEAST_TORCH))} or newer: "
            "pip install --upgrade torch"
        )
    check_module(module)
    if backend not in BACKENDS:
        raise OptionError(f"backend={backend!r}: there is no such backend. Choose one of {', '.join(BACKENDS)}.")
