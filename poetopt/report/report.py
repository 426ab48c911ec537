"""The answer to one solve, for people, notebooks and programs."""

from __future__ import annotations

import html
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version

from poetopt.autodiff.passes.blocks import is_block
from poetopt.graph.problem import Problem
from poetopt.plan import codec
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes
from poetopt.plan.simulate import SIMULATED
from poetopt.plan.transfers import TransferOverlap, overlap
from poetopt.report import summary
from poetopt.report.goals import (
    LargestBatch,
    PartsTried,
    WholeTraining,
    batch_of,
    clips,
    memory_document,
    step_energy_j,
    taken_bytes,
)
from poetopt.report.layout import Row, Summary, visible
from poetopt.report.page import frame, page
from poetopt.report.proof import (
    exact_words,
    objective_document,
    proof_words,
)
from poetopt.report.view import View
from poetopt.search.solution import DeadlineModel, Solution, Status
from poetopt.util import __version__
from poetopt.util import notes as told
from poetopt.util.errors import PlanError
from poetopt.util.figures import figures, plain
from poetopt.util.files import write_atomically
from poetopt.util.process import peak_bytes
from poetopt.util.text import shown
from poetopt.util.units import show_bytes, show_joules

OF_PROBLEM = (
    "device", "device_ram_bytes", "resident_bytes", "reserve_bytes", "stack_bytes", "flash_bytes", "parameters",
    "baseline_energy_j", "baseline_time_s",
)  # fmt: skip
OF_OPTIONS = ("asks", "deadline_s", "deadline_model", "remat", "time_limit_s", "threads", "solver_options")
OF_SOLUTION = (
    "why", "store_all_peak_bytes", "overhead_bound_j", "scope_bound_j", "scope_gap", "gap", "overhead_gap",
    "least_ram_bytes", "ram_bound_bytes", "least_deadline_s", "deadline_bound_s", "build_s",
    "solve_s", "total_s", "timing", "interrupted",
)  # fmt: skip
OF_SIMULATION = (*SIMULATED, "wakes", "streamed_runs", "bytes_streamed", "bytes_written", "transfer_s")
OF_REPORT = ("store_all_fits", "arena_bytes", "plan_bytes", "prediction_bytes")
OF_OVERLAP = ("hidden_s", "hidden_bytes")
"""Attributes whose names are their JSON keys, by the object that has them; the suffix is the unit."""


@dataclass(frozen=True, kw_only=True)
class Report(Summary):
    """A problem, and the answer of the solve.

    `print(report)` and notebooks show the summary; `to_dict()` returns the object of `poetopt solve --json`.
    """

    problem: Problem
    solution: Solution
    run: WholeTraining | None = None
    """The training that was asked for, if it is more than a step."""
    largest: LargestBatch | None = None
    """The result for the largest batch, if it was asked for."""
    tried: tuple[PartsTried, ...] = ()
    """The numbers of parts that were tried, if the best was asked for."""

    @property
    def plan(self) -> Plan | None:
        """The schedule, laid out and accepted by the simulator; None if none was found."""
        return self.solution.plan

    @property
    def status(self) -> Status:
        """The status of the proof."""
        return self.solution.status

    @property
    def store_all_fits(self) -> bool:
        """Return whether store-all keeps the budget, so that there was nothing to save."""
        return self.solution.store_all_peak_bytes <= self.solution.options.ram_bytes

    @cached_property
    def arena_bytes(self) -> int | None:
        """Largest offset + size of the plan's buffers, without the reserve of kernels."""
        return None if self.plan is None else arena_bytes(self.plan)

    @property
    def taken_bytes(self) -> int | None:
        """RAM of the schedule, with the reserve of kernels."""
        simulation = self.solution.simulation
        if self.plan is None or simulation is None or self.arena_bytes is None:
            return None
        return taken_bytes(self.plan, simulation.peak_bytes, self.arena_bytes)

    @property
    def warning(self) -> str | None:
        """The warning that the step takes more RAM than the device has, with the remedy; or None."""
        return summary.warning(self.to_dict())

    @cached_property
    def overlap(self) -> TransferOverlap | None:
        """Transfers during computes: none on a device without DMA."""
        return None if self.plan is None else overlap(self.plan, self.solution.simulation)

    @cached_property
    def plan_bytes(self) -> int | None:
        """Bytes of the plan's instructions as integers of variable length."""
        return None if self.plan is None else self.plan.instruction_bytes

    @cached_property
    def prediction_bytes(self) -> int | None:
        """Bytes of the arena that inference takes between two steps in C (`po_predict`).

        None if no plan of inference fits it, and for a plan of another runtime.
        """
        plan, graph = self.plan, self.problem.graph
        if plan is None or not plan.offsets or self.problem.runtime != "c" or graph is None or graph.forward_only:
            return None
        from poetopt.search.predicting import prediction_of

        prediction = prediction_of(plan, graph)
        return None if prediction is None else arena_bytes(prediction)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a JSON file that `poetopt run` reads.

        Raises
        ------
        OutputError
            The file can't be written.
        PlanError
            There is no plan.
        """
        write_atomically(path, self.plan_text())

    def plan_text(self) -> str:
        """Return the text that `save` writes. Raises PlanError without a plan."""
        if self.plan is None:
            raise PlanError(f"{self.problem.name}: there is no plan to save (status {self.status})")
        options = self.solution.options
        # The paper's deadline does not bound the makespan, which readers of the file check.
        deadline = options.deadline_s if options.deadline_model is DeadlineModel.MAKESPAN else None
        # Readers of the file make these sentences anew, from the figures beside them.
        figures_of_report = {key: value for key, value in self.to_dict().items() if key not in ("proof", "proof_exact")}
        return codec.to_text(self.plan, figures_of_report, ram_bytes=options.ram_bytes, deadline_s=deadline)

    def to_dict(self) -> dict[str, object]:
        """Return the figures, as plain numbers, strings, lists and None (unknown).

        `notes` are all notes on the network and the costs. `important` are those that the answer depends on, as objects
        of
        `about` (`trained`, `loss`, `gradients`) and `text`.
        """
        problem, solution, options = self.problem, self.solution, self.solution.options
        graph, simulation, bound = problem.graph, solution.simulation, solution.overhead_bound_j
        notes = self._said()
        document: dict[str, object] = {
            "status": str(solution.status),
            "reason": solution.reason or None,
            "scope": solution.scope or None,
            "formulation": options.formulation_name,
            "backend": options.backend_name,
            "objective": objective_document(solution),
            "model": problem.name,
            "model_ref": problem.model_ref or None,
            "model_hash": problem.model_hash or None,
            "loss": graph.loss_kind if graph else None,
            "granularity": str(problem.recipe.get("granularity", "operator")),
            "optimizer": str(problem.recipe.get("optimizer", "none")),
            "blocks": sum(map(is_block, graph.operators)) if graph else 0,
            "operators": len(problem.operators),
            "tensors": len(problem.tensors),
            "ram_budget_bytes": options.ram_bytes,
            "energy_bound_j": None if bound is None else problem.baseline_energy_j + bound,
            "beyond_scope": solution.outdone,
            **figures(problem, OF_PROBLEM),
            **figures(options, OF_OPTIONS),
            **figures(solution, OF_SOLUTION),
            **figures(simulation, OF_SIMULATION),
            **figures(self, OF_REPORT),
            **figures(self.overlap, OF_OVERLAP),
            **memory_document(problem, self.plan, self.taken_bytes),
            "clip_norm": clips(problem),
            "process_peak_bytes": peak_bytes(),
            "paging": problem.paging and options.paging,
            "gap_tolerance": options.gap,
            "asked_scope": options.scope,
            "micro_batches": problem.parts,
            "batch": batch_of(problem),
            "storage_bytes": problem.storage_bytes,
            "runtime": problem.runtime or None,
            "notes": [*problem.notes, *notes],
            "important": told.document(notes),
            "version": __version__,
            "versions": _versions(),
            "largest_batch": plain(self.largest),
            "micro_batches_tried": plain(self.tried) or None,
            "training": self.run and self.run.of(simulation, options.deadline_s, step_energy_j(solution)),
        }
        if self.plan is None:
            document["total_ram_bytes"] = problem.beside_bytes + options.ram_bytes
        return {**document, "proof": proof_words(document), "proof_exact": exact_words(document)}

    def _repr_html_(self) -> str:
        """Return the summary, and the page of `poetopt show` folded below it, for notebooks."""
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for label, text in visible(self.rows())
        )
        title = html.escape(self.title())
        summary = f"<table><caption style='text-align:left'>{title}</caption><tbody>{body}</tbody></table>"
        view = self.view()
        if view is None:
            return summary
        return f"{summary}<details><summary>the schedule</summary>{frame(view)}</details>"

    def to_html(self) -> str:
        """Return the page of `poetopt show`, which needs no other file. Raises PlanError without a plan."""
        view = self.view()
        if view is None:
            raise PlanError(f"{self.problem.name}: there is no plan to show (status {self.status})")
        return page(view)

    def view(self) -> View | None:
        """Return the plan prepared for drawing, or None without a plan."""
        if self.plan is None:
            return None
        options = self.solution.options
        deadline_s = options.deadline_s if options.deadline_model is DeadlineModel.MAKESPAN else None
        return View(self.plan, options.ram_bytes, deadline_s, self.to_dict())

    def __repr__(self) -> str:
        problem, simulation = self.problem, self.solution.simulation
        overhead = "" if simulation is None else f", overhead {show_joules(simulation.overhead_j)}"
        budget = show_bytes(self.solution.options.ram_bytes)
        return f"<Report {self.status}: {shown(problem.name)} on {shown(problem.device)}, RAM {budget}{overhead}>"

    def title(self) -> str:
        """Return the network and the device, in a line."""
        return summary.title(self.to_dict())

    def rows(self, after: str | None = None) -> list[Row]:
        """Return the rows of the summary; `after` is what to do next, by default a call of Python."""
        document = self.to_dict()
        return summary.rows(document, self._said(), summary.next_call(document) if after is None else after)

    def _said(self) -> tuple[str, ...]:
        """Return the notes of the frontend and the loss on the network."""
        return self.problem.graph.notes if self.problem.graph else ()


@cache
def _versions() -> dict[str, str]:
    """Return the versions of the installed packages that a solve depends on."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "onnx", "pyomo", "highspy"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
