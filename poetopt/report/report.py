"""The answer to one solve, as people, notebooks and programs want to see it."""

from __future__ import annotations

import html
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.transfers import Overlap
from poetopt.report.goals import (
    LargestBatch,
    PartsTried,
    TrainingRun,
    batch_fields,
    batch_rows,
    run_fields,
    run_rows,
    tried_fields,
    tried_rows,
)
from poetopt.report.layout import table
from poetopt.report.memory import clipping_rows, excess_words, memory_fields, memory_words, parts_rows, taken_bytes
from poetopt.report.proof import (
    exact_words,
    objective_document,
    objective_words,
    overlap_words,
    proof_words,
    streamed_words,
)
from poetopt.search.solution import DeadlineModel, Solution, Status
from poetopt.util import notes as told
from poetopt.util.memory import peak_bytes
from poetopt.util.printable import shown
from poetopt.util.units import show_bytes, show_joules, show_seconds, show_share
from poetopt.util.version import __version__

if TYPE_CHECKING:
    from poetopt.report.view import View


@dataclass(frozen=True, kw_only=True)
class Report:
    """A problem and what the solve loop answered.

    `print(report)` and notebooks show the summary, `to_dict()` is the object of `poetopt solve --json`.
    """

    problem: Problem
    solution: Solution
    run: TrainingRun | None = None
    """The training that was asked about, where it is more than a step."""
    largest: LargestBatch | None = None
    """What was found, where the largest batch was asked for."""
    tried: tuple[PartsTried, ...] = ()
    """The numbers of parts that were tried, where the best was asked for."""

    @property
    def plan(self) -> Plan | None:
        """The schedule, laid out and accepted by the simulator."""
        return self.solution.plan

    @property
    def status(self) -> Status:
        """What is proven of it."""
        return self.solution.status

    @property
    def store_all_fits(self) -> bool:
        """Whether keeping everything keeps the budget, so that there was nothing to save."""
        return self.solution.store_all_peak_bytes <= self.solution.options.ram_bytes

    @cached_property
    def arena_bytes(self) -> int | None:
        """Largest offset + size of the plan's buffers; what kernels take is beside it (`Problem.reserve_bytes`)."""
        if self.plan is None:
            return None
        from poetopt.plan.layout import arena_bytes

        return arena_bytes(self.plan)

    @property
    def taken_bytes(self) -> int | None:
        """What the schedule takes of RAM, what kernels take beside the arena included."""
        simulation = self.solution.simulation
        if self.plan is None or simulation is None or self.arena_bytes is None:
            return None
        return taken_bytes(self.plan, simulation.peak_bytes, self.arena_bytes)

    @property
    def warning(self) -> str | None:
        """What to do where the step takes more RAM than the device has, or None."""
        return None if self.taken_bytes is None else excess_words(self.problem, self.taken_bytes)

    @cached_property
    def overlap(self) -> Overlap | None:
        """How much of the transfers happens while the CPU computes: nothing on a device without DMA."""
        if self.plan is None:
            return None
        from poetopt.plan.transfers import overlap

        return overlap(self.plan, self.solution.simulation)

    @cached_property
    def plan_bytes(self) -> int | None:
        """Size of the plan's compact encoding, in bytes."""
        if self.plan is None:
            return None
        from poetopt.plan.codec import encode_compact

        return len(encode_compact(self.plan))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a JSON file that `poetopt run` reads.

        Raises OutputError where it can't be written, PlanError where there is no plan.
        """
        from poetopt.util.files import write_atomically

        write_atomically(path, self.plan_text())

    def plan_text(self) -> str:
        """What `save` writes. Raises PlanError where there is no plan."""
        from poetopt.plan import codec
        from poetopt.util.errors import PlanError

        if self.plan is None:
            raise PlanError(f"{self.problem.name}: there is no plan to save (status {self.status})")
        options = self.solution.options
        # The paper's deadline does not bound the makespan, which is what a reader of the file would check.
        deadline = options.deadline_s if options.deadline_model is DeadlineModel.MAKESPAN else None
        # Sentences about figures that stand beside them are made anew by whoever reads the file.
        said = {key: value for key, value in self.to_dict().items() if key not in ("proof", "proof_exact")}
        return codec.to_text(self.plan, said, ram_bytes=options.ram_bytes, deadline_s=deadline)

    def to_dict(self) -> dict[str, object]:
        """The figures, with plain numbers, strings, lists and None (where not known).

        `notes` are all that was said of network and costs; `important`, those of them that the answer depends on, as
        objects of `about` (`trained`, `loss`, `gradients`) and `text`.
        """
        problem, solution, options = self.problem, self.solution, self.solution.options
        simulation, bound = solution.simulation, solution.overhead_bound_j
        baseline = problem.baseline_energy_j
        from poetopt.autodiff.passes.blocks import is_block

        return {
            "status": str(solution.status),
            "reason": solution.reason or None,
            "why": list(solution.why),
            "scope": solution.scope or None,
            "formulation": options.formulation_name,
            "backend": options.backend_name,
            "asks": list(options.asks),
            "objective": objective_document(solution),
            "model": problem.name,
            "model_ref": problem.model_ref or None,
            "model_hash": problem.model_hash or None,
            "device": problem.device,
            "loss": problem.graph.loss_kind if problem.graph else None,
            "granularity": str(problem.recipe.get("granularity", "operator")),
            "blocks": sum(map(is_block, problem.graph.operators)) if problem.graph else 0,
            "operators": len(problem.operators),
            "tensors": len(problem.tensors),
            "ram_budget_bytes": options.ram_bytes,
            "device_ram_bytes": problem.device_ram_bytes,
            "store_all_peak_bytes": solution.store_all_peak_bytes,
            "store_all_fits": self.store_all_fits,
            "resident_bytes": problem.resident_bytes,
            "reserve_bytes": problem.reserve_bytes,
            "peak_bytes": simulation.peak_bytes if simulation else None,
            "arena_bytes": self.arena_bytes,
            "baseline_energy_j": baseline,
            "energy_j": simulation.energy_j if simulation else None,
            "overhead_j": simulation.overhead_j if simulation else None,
            "energy_bound_j": None if bound is None else baseline + bound,
            "overhead_bound_j": bound,
            "scope_bound_j": solution.scope_bound_j,
            "scope_gap": solution.scope_gap,
            "beyond_scope": solution.outdone,
            "proof": proof_words(solution),
            "proof_exact": exact_words(solution),
            "gap": solution.gap,
            "overhead_gap": solution.overhead_gap,
            "makespan_s": simulation.makespan_s if simulation else None,
            "baseline_time_s": problem.baseline_time_s,
            "deadline_s": options.deadline_s,
            "deadline_model": str(options.deadline_model),
            "least_ram_bytes": solution.least_ram_bytes,
            "ram_bound_bytes": solution.ram_bound_bytes,
            "least_deadline_s": solution.least_deadline_s,
            "fitting_batch": solution.fitting_batch,
            "deadline_bound_s": solution.deadline_bound_s,
            "recomputes": simulation.recomputes if simulation else None,
            "page_outs": simulation.page_outs if simulation else None,
            "page_ins": simulation.page_ins if simulation else None,
            "wakes": simulation.wakes if simulation else None,
            "bytes_paged": simulation.bytes_paged if simulation else None,
            "streamed_runs": simulation.streamed_runs if simulation else None,
            "bytes_streamed": simulation.bytes_streamed if simulation else None,
            "transfer_s": simulation.transfer_s if simulation else None,
            "hidden_s": self.overlap.hidden_s if self.overlap else None,
            "hidden_bytes": self.overlap.hidden_bytes if self.overlap else None,
            "plan_bytes": self.plan_bytes,
            "build_s": solution.build_s,
            "solve_s": solution.solve_s,
            "total_s": solution.total_s,
            "timing": dict(solution.timing),
            "process_peak_bytes": peak_bytes(),
            "interrupted": solution.interrupted,
            "paging": problem.paging and options.paging,
            "remat": options.remat,
            "time_limit_s": options.time_limit_s,
            "gap_tolerance": options.gap,
            "asked_scope": options.scope,
            "threads": options.threads,
            "solver_options": dict(options.solver_options),
            "notes": [*problem.notes, *self._said()],
            "important": told.document(self._said()),
            "version": __version__,
            "versions": _versions(),
            "largest_batch": batch_fields(self.largest),
            "micro_batches_tried": tried_fields(self.tried),
            "training": run_fields(self.run, solution),
            **memory_fields(problem, self.plan, simulation, self.taken_bytes),
            **({} if self.plan is not None else {"total_ram_bytes": problem.beside_bytes + options.ram_bytes}),
        }

    def __str__(self) -> str:
        return table(self.title(), self.rows())

    def _repr_html_(self) -> str:
        """The summary, and the page of `poetopt show` folded below it, for notebooks."""
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for label, text in self.rows()
        )
        title = html.escape(self.title())
        summary = f"<table><caption style='text-align:left'>{title}</caption><tbody>{body}</tbody></table>"
        view = self.view()
        if view is None:
            return summary
        from poetopt.report.page import frame

        return f"{summary}<details><summary>the schedule</summary>{frame(view)}</details>"

    def to_html(self) -> str:
        """The page of `poetopt show`, which needs no other file. Raises PlanError where there is no plan."""
        from poetopt.report.page import page
        from poetopt.util.errors import PlanError

        view = self.view()
        if view is None:
            raise PlanError(f"{self.problem.name}: there is no plan to show (status {self.status})")
        return page(view)

    def view(self) -> View | None:
        """The plan made ready to be drawn, or None where there is none."""
        if self.plan is None:
            return None
        from poetopt.report.view import View

        options = self.solution.options
        return View(self.plan, options.ram_bytes, options.deadline_s, self.to_dict())

    def __repr__(self) -> str:
        problem, simulation = self.problem, self.solution.simulation
        overhead = "" if simulation is None else f", overhead {show_joules(simulation.overhead_j)}"
        budget = show_bytes(self.solution.options.ram_bytes)
        return f"<Report {self.status}: {shown(problem.name)} on {shown(problem.device)}, RAM {budget}{overhead}>"

    def title(self) -> str:
        """One line: what was scheduled, and on what."""
        problem = self.problem
        name = problem.model_ref or problem.name
        return f"{name} on {problem.device}: {len(problem.operators)} operators, {len(problem.tensors)} tensors"

    def rows(self) -> list[tuple[str, str]]:
        """The summary for people: label and text."""
        loss, said = told.loss_of(self._said())
        rows = [("WARNING", self.warning)] if self.warning else []
        rows += [("loss", loss)] if loss else []
        rows += batch_rows(self.largest)
        rows += [*parts_rows(self.problem), *tried_rows(self.tried, self.problem.parts)]
        rows.append(("RAM", self._ram()))
        if self.plan is not None and self.taken_bytes is not None:
            rows.append(("memory", memory_words(self.problem, self.plan, self.taken_bytes)))
        elif self.problem.resident_bytes:
            rows.append(("resident", f"{show_bytes(self.problem.resident_bytes)} beside it, never scheduled"))
        rows += clipping_rows(self.problem, self.plan)
        simulation = self.solution.simulation
        if simulation is not None:
            baseline = self.problem.baseline_energy_j
            share = f" ({show_share(simulation.overhead_j / baseline)})" if baseline else ""
            rows += [
                ("energy", f"{show_joules(baseline)} baseline + {show_joules(simulation.overhead_j)} overhead{share}"),
                ("time", self._time()),
                ("schedule", self._schedule()),
            ]
            if self.problem.dma and self.overlap and self.overlap.transfer_s:
                rows.append(("transfers", overlap_words(self.overlap)))
        rows += run_rows(self.run, self.solution)
        rows += [("asked", text) for text in self.solution.options.asks]
        if self.solution.objective is not None:
            rows.append(("minimised", objective_words(self.solution.objective)))
        first, *rest = proof_words(self.solution).split("\n")
        rows += [("proof", first), *(("scope", line) for line in rest)]
        rows += told.rows(said)
        rows += [("note", note) for note in self._notes()]
        rows.append(("solved", self._solved()))
        return rows

    def _ram(self) -> str:
        solution = self.solution
        budget, store_all = solution.options.ram_bytes, solution.store_all_peak_bytes
        text = f"budget {budget:,} B ({show_bytes(budget)})"
        if store_all > budget:
            text += f", {show_share(budget / store_all)} of the {show_bytes(store_all)} that store-all takes"
        if solution.simulation is not None:
            text += f"; peak {solution.simulation.peak_bytes:,} B"
        if self.arena_bytes is not None:
            text += f", arena {self.arena_bytes:,} B"
        if self.problem.reserve_bytes:
            text += f" and {self.problem.reserve_bytes:,} B for kernels"
        return text

    def _time(self) -> str:
        simulation, options = self.solution.simulation, self.solution.options
        assert simulation is not None
        text = f"{show_seconds(simulation.makespan_s)} a step"
        if self.problem.baseline_time_s:
            text += f" ({simulation.makespan_s / self.problem.baseline_time_s:.3g}x one pass)"
        if options.deadline_s is None:
            return f"{text}, no deadline"
        by = "" if options.deadline_model == "makespan" else ", counted as the sum of compute times"
        return f"{text}, deadline {show_seconds(options.deadline_s)}{by}"

    def _schedule(self) -> str:
        simulation = self.solution.simulation
        assert simulation is not None
        if self.solution.scope == "store-all":
            return "store-all fits: there was nothing to save"
        text = f"{simulation.recomputes} recomputes, {simulation.page_outs} page-outs, {simulation.page_ins} page-ins"
        text += f" ({show_bytes(simulation.bytes_paged)} moved)" if simulation.bytes_paged else ""
        return text + streamed_words(simulation)

    def _solved(self) -> str:
        solution = self.solution
        total = show_seconds(solution.total_s)
        if solution.scope == "store-all":
            return f"in {total}, without a solver"
        return (
            f"{solution.options.formulation_name} on {solution.options.backend_name}: "
            f"built in {show_seconds(solution.build_s)}, solved in {show_seconds(solution.solve_s)}, {total} in all"
        )

    def _said(self) -> tuple[str, ...]:
        """What the frontend and the loss had to say of the network."""
        return self.problem.graph.notes if self.problem.graph else ()

    def _notes(self) -> list[str]:
        notes = []
        if self.solution.interrupted:
            notes.append("interrupted: this is the best schedule so far")
        if self.plan is not None and self.solution.reason:
            notes.append(self.solution.reason)
        return [*notes, *self.problem.notes]


@cache
def _versions() -> dict[str, str]:
    """Of what a solve rests on, where it is installed."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "onnx", "pyomo", "highspy"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
