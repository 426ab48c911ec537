"""Figures of goals beyond one step: a whole training, parts of a batch, batches that fit, and all RAM of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from poetopt.autodiff.optimizers import CLIP
from poetopt.formulations import formulation
from poetopt.formulations.goal import Trial
from poetopt.graph import Role
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import Simulation
from poetopt.search.solution import Solution
from poetopt.util.errors import OptionError
from poetopt.util.figures import Figures, figures
from poetopt.util.units import show_share


@dataclass(frozen=True, kw_only=True)
class PartsTried(Figures):
    """Result of one number of parts.

    Attributes
    ----------
    parts
        Number of parts that the batch is cut into.
    energy_j, time_s, total_ram_bytes
        Figures of a step by the best schedule found; None if none was found.
    energy_bound_j
        Energy that no schedule is below.
    why
        Reason why there is no schedule, or why none was searched; "" beside a schedule.
    """

    parts: int
    energy_j: float | None = None
    energy_bound_j: float | None = None
    time_s: float | None = None
    total_ram_bytes: int | None = None
    why: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return an entry of `micro_batches_tried` of `solve --json`."""
        figures_of_parts = super().to_dict()
        return {"micro_batches": figures_of_parts.pop("parts"), **figures_of_parts, "why": self.why or None}


@dataclass(frozen=True, kw_only=True)
class LargestBatch(Figures):
    """Result of `--batch max`.

    Attributes
    ----------
    batch
        Largest batch with a known schedule.
    refused, why
        Smallest batch above it that is proven to have no schedule, and the reason; None if all batches up to `most` may
        fit. Batches between the two are unknown: no schedule was found, and none is proven impossible.
    most
        Largest batch that can be asked for: the samples of an epoch, or the limit of a size.
    """

    batch: int
    refused: int | None
    why: str
    most: int

    @property
    def proven(self) -> bool:
        """Return whether one sample more is proven to have no schedule, or can't be asked for."""
        return self.batch == self.most if self.refused is None else self.refused == self.batch + 1

    def to_dict(self) -> dict[str, object]:
        """Return the object `largest_batch` of `solve --json`."""
        return {**figures(self, ("batch", "proven", "refused")), "why": self.why or None}


@dataclass(frozen=True, kw_only=True)
class WholeTraining:
    """A whole training with one schedule.

    Attributes
    ----------
    steps
        Number of steps. Only whole batches count; the rest of an epoch is left out.
    epochs, samples, batch
        Epochs, samples of an epoch, and samples of a step; None if the number of steps was given.
    """

    steps: int = 1
    epochs: int | None = None
    samples: int | None = None
    batch: int | None = None

    def of(self, simulation: Simulation | None, limit_s: float | None, step_j: float) -> dict[str, object]:
        """Return the object `training` of `solve --json`.

        Parameters
        ----------
        limit_s
            Deadline of a step, if there is one.
        step_j
            Energy of a step, in joules.
        """
        return {
            **asdict(self),
            "left_out": None if self.samples is None or self.batch is None else self.samples % self.batch,
            "time_s": None if simulation is None else self.steps * simulation.makespan_s,
            "deadline_s": None if limit_s is None else self.steps * limit_s,
            "energy_j": None if simulation is None else self.steps * step_j,
            "bytes_written": None if simulation is None else self.steps * simulation.bytes_written,
        }


def training_run(
    problem: Problem, *, steps: int = 1, epochs: int | None = None, samples: int | None = None
) -> WholeTraining | None:
    """Return the training that the options describe; None for a single step.

    Raises
    ------
    OptionError
        The options contradict each other, or one of them is missing.
    """
    if epochs is None and samples is None:
        if steps < 1:
            raise OptionError(f"--steps {steps}: must be at least 1")
        return WholeTraining(steps=steps) if steps > 1 else None
    if steps != 1:
        raise OptionError(
            f"--steps {steps}: --epochs and --samples define the number of steps already. Leave out one of them."
        )
    if samples is None:
        raise OptionError(f"--epochs {epochs}: the number of samples is missing. Give --samples N.")
    epochs = 1 if epochs is None else epochs
    for option, value in (("--epochs", epochs), ("--samples", samples)):
        if value < 1:
            raise OptionError(f"{option} {value}: must be at least 1")
    batch = batch_of(problem)
    if batch is None:
        raise OptionError(f"--samples {samples}: {problem.name} has no batch to divide them by. Give --steps instead.")
    if samples < batch:
        raise OptionError(f"--samples {samples}: a batch has {batch}. Give more samples, or a smaller --batch.")
    steps = epochs * (samples // batch)
    return WholeTraining(steps=steps, epochs=epochs, samples=samples, batch=batch)


def batch_of(problem: Problem) -> int | None:
    """Return the samples of a step: the size of the first input's first axis.

    None without a network, or without such an axis.
    """
    graph = problem.graph
    shape = graph.whole.tensors[graph.inputs[0]].shape if graph is not None and graph.inputs else ()
    return shape[0] if shape else None


def step_energy_j(solution: Solution) -> float:
    """Return the joules of a step, with idle power if it was asked for; 0 without a plan."""
    plan, simulation, chosen = solution.plan, solution.simulation, formulation(solution.options.formulation)
    if plan is None or simulation is None:
        return 0.0
    joules, baseline_j = simulation.energy_j, plan.problem.baseline_energy_j
    for block in chosen.blocks:
        # only idle power is drawn as joules: a tariff's joules are weights
        if block.name == "static_power" and block.base_j is not None and block.adds_j is not None:
            joules += block.base_j(plan.problem, baseline_j)
            joules += block.adds_j(Trial(plan, simulation, baseline_j, simulation.overhead_j))
    return joules


CHEAP = 0.10
"""Share of more energy than store-all that counts as little."""


@dataclass(frozen=True, kw_only=True)
class Fits(Figures):
    """One batch in one memory.

    Attributes
    ----------
    memory_bytes, batch
        The RAM of a whole step, and the batch.
    ordinary_ram_bytes
        RAM of the step without recomputing or paging; None if unknown.
    total_ram_bytes
        RAM of the step by the plan; None without a plan.
    energy_j, time_s
        Figures of a sample, by the device's figures.
    overhead
        Energy of the plan over that of store-all, as a share.
    why
        Reason why the batch doesn't fit, or "".
    """

    memory_bytes: int
    batch: int
    ordinary_ram_bytes: int | None = None
    total_ram_bytes: int | None = None
    energy_j: float | None = None
    time_s: float | None = None
    overhead: float | None = None
    why: str = ""

    def cheap(self, most: float) -> bool:
        """Return whether the batch fits with at most this overhead."""
        return self.overhead is not None and self.overhead <= most


def advised(rows: Sequence[Fits], most: float = CHEAP) -> Fits | None:
    """Return the largest batch with at most this overhead, else the one of least overhead; None if none fits.

    Parameters
    ----------
    rows
        The batches in one memory.
    """
    fitting = [row for row in rows if row.overhead is not None]
    if not fitting:
        return None
    cheap = [row for row in fitting if row.cheap(most)]
    return max(cheap, key=lambda row: row.batch) if cheap else min(fitting, key=lambda row: row.overhead or 0.0)


def advice(chosen: Fits | None, most: float = CHEAP) -> str:
    """Return a sentence on the batch that `advised` chose."""
    if chosen is None:
        return "no batch fits"
    cost = f"{show_share(chosen.overhead)} more energy than store-all" if chosen.overhead else "no more energy"
    return (
        f"batch {chosen.batch} fits with {cost}" if chosen.cheap(most) else f"cheapest is batch {chosen.batch}, {cost}"
    )


def clips(problem: Problem) -> bool:
    """Return whether the step clips by the norm of all gradients."""
    return problem.recipe.get(CLIP) is True


OF_PARAMETERS = (Role.PARAMETER, Role.OPTIMIZER_STATE)


def memory_document(problem: Problem, plan: Plan | None, taken_bytes: int | None) -> dict[str, object]:
    """Return the whole RAM of a step for `solve --json`; None without a plan.

    Parameters
    ----------
    taken_bytes
        RAM of the schedule, with the reserve of kernels.
    """
    lasting = None if plan is None else plan.problem.nbytes(plan.problem.lasting)
    total, limit = None if taken_bytes is None else problem.beside_bytes + taken_bytes, problem.device_ram_bytes
    return {
        "total_ram_bytes": total,
        "fits_device": None if total is None or limit is None else total <= limit,
        "parameter_bytes_in_ram": _resident(problem) if problem.parameters == "resident" else lasting,
    }


def taken_bytes(plan: Plan, peak_bytes: int, arena_bytes: int) -> int:
    """Return the RAM of a schedule with this peak and arena, with the reserve of kernels."""
    return max(peak_bytes, arena_bytes + plan.problem.reserve_bytes)


def _resident(problem: Problem) -> int | None:
    """Return the bytes of parameters and states in the resident region; None without a network."""
    graph = problem.graph
    if graph is None:
        return None
    names = {graph.root(name) for name, tensor in graph.tensors.items() if tensor.role in OF_PARAMETERS}
    return sum(graph.tensors[name].nbytes for name in names)
