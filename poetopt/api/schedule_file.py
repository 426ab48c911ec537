"""`schedule`: a plan as one standard ONNX file, for runtimes that keep the order of the nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.api.plans import plan_in, read_plan
from poetopt.util.units import show_bytes

if TYPE_CHECKING:
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report


@dataclass(frozen=True, kw_only=True)
class ScheduleFile:
    """What was written.

    nodes
        ONNX nodes, in the order in which they are to run.
    recomputes
        Operators that stand there again, under names of their own.
    kept, kept_bytes
        Names of the tensors that the plan has on storage for a while: here they stay in RAM.
    peak_bytes, plan_peak_bytes
        Live bytes of the schedule at once, where each value is freed after its last reader, and the plan's.
    """

    path: str
    nodes: int
    recomputes: int
    kept: tuple[str, ...]
    kept_bytes: int
    peak_bytes: int
    plan_peak_bytes: int

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "path": self.path,
            "nodes": self.nodes,
            "recomputes": self.recomputes,
            "kept": list(self.kept),
            "kept_bytes": self.kept_bytes,
            "peak_bytes": self.peak_bytes,
            "plan_peak_bytes": self.plan_peak_bytes,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.path}: {self.nodes:,} nodes in the plan's order, {self.recomputes:,} operators among them again",
            f"  memory  {self.peak_bytes:,} B of the schedule at once, where each value is freed after its last reader",
        ]
        if self.kept:
            lines.append(
                f"  paged   ONNX has no storage: {len(self.kept):,} tensors ({show_bytes(self.kept_bytes)}) stay in "
                f"RAM; the plan takes {self.plan_peak_bytes:,} B (solve with --no-paging for one that needs none)"
            )
        if self.recomputes:
            lines.append("  undone  where a runtime merges equal nodes, as onnxruntime does unless that is off")
        lines.append("  order   of the file; docs/schedule-file.md has onnxruntime's options for all of that")
        return "\n".join(lines)


def write_schedule(
    plan: Plan | PlanFile | Report | str | os.PathLike[str], path: str | os.PathLike[str]
) -> ScheduleFile:
    """Write a plan as one standard ONNX graph: its own order, and a copy of an operator for each recompute.

    plan
        A plan, what `solve` or `load_plan` gave, or a plan file's path.
    path
        The ONNX file. Inputs and outputs are those of `poetopt grad`'s.

    Page-outs and page-ins can't be said: what is on storage for a while stays in RAM, and the result says how much that
    is. Raises PlanError for a plan without a network behind it or with tables on storage, OutputError for a file that
    can't be written.
    """
    from poetopt.backends.step.single_assignment import single_assignment
    from poetopt.frontends.proto import save_model
    from poetopt.plan.simulate import simulate

    found = plan_in(read_plan(plan))
    written = single_assignment(found)
    save_model(written.graph, path)
    problem = found.problem
    return ScheduleFile(
        path=os.fspath(path),
        nodes=sum(len(operator.nodes) for operator in written.graph.operators),
        recomputes=written.recomputes,
        kept=tuple(problem.tensors[i].name for i in written.kept),
        kept_bytes=problem.nbytes(written.kept),
        peak_bytes=written.peak_bytes,
        plan_peak_bytes=simulate(found).peak_bytes,
    )
