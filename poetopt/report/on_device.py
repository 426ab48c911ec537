"""The outcome of a step in C, and the emitted files, for people.

What was measured, for people and for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from poetopt.backends.c.execution import TOLERANCE, DeviceChecks, DeviceExecution, DeviceTraining
from poetopt.backends.c.profiling import TAKEN, EmulatedProfile, Modelled, joined
from poetopt.devices.profile import Profile
from poetopt.graph import Graph
from poetopt.ops.nodes import signatures
from poetopt.plan.instructions import Plan
from poetopt.report.execution import left_out_rows, moved_words, optimizer_words, said
from poetopt.report.layout import columns, table
from poetopt.report.summary import NO_PREDICTION
from poetopt.training.in_c import DeviceFit
from poetopt.util import notes
from poetopt.util.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from poetopt.api.on_device import Emitted

SLOWEST = 12
"""Operators that are named with their instructions."""


def profile_document(graph: Graph, found: Profile, merged: Profile) -> dict[str, object]:
    """The object of `profile --json`."""
    storage = found.storage
    return {
        "model": graph.name,
        "operators": len(signatures(graph)),
        "distinct_operators": len(set(signatures(graph).values())),
        "measured": len(found.operators),
        "in_profile": len(merged.operators),
        "missing": _missing(graph, merged),
        "step_s": _step_s(graph, found),
        "power_w": found.power_w,
        "storage": None if storage is None else dict(vars(storage)),
        "about": dict(found.about),
    }


def profile_text(graph: Graph, found: Profile, merged: Profile, path: str) -> str:
    """The summary of `poetopt profile`."""
    keys = signatures(graph)
    rows = [
        (
            "operators",
            f"{len(found.operators)} distinct ones of {len(keys)} measured; their step takes "
            f"{show_seconds(_step_s(graph, found))}",
        )
    ]
    if slow := _slowest(graph, found):
        rows.append(("most time", slow))
    if found.storage is not None:
        s = found.storage
        rows.append(
            (
                "storage",
                f"in {show_bytes(round(s.page_in_bytes_per_s))}/s after {show_seconds(s.page_in_latency_s)}, out "
                f"{show_bytes(round(s.page_out_bytes_per_s))}/s after {show_seconds(s.page_out_latency_s)}, "
                f"{'beside' if s.dma else 'by'} the CPU",
            )
        )
    rows += [(key, text) for key, text in sorted(found.about.items())]
    if missing := _missing(graph, merged):
        rows.append(("missing", f"{', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}: from the roofline"))
    rows.append(("profile", f"{path}, {len(merged.operators)} operators; use it with solve --profile {path}"))
    return table(f"{graph.name}: {found.about.get('machine', 'measured')}", rows)


def instructions_text(emulated: EmulatedProfile) -> str:
    """The time of a step on an emulated core: the operators that take most of it, and all."""
    rows: list[Sequence[str]] = [
        ("operator", "instructions", "cycles: low", "middle", "high", "middle", "most of these")
    ]
    found = sorted(emulated.operators.items(), key=lambda pair: -pair[1].cycles[1])
    rows += [_row(name, one, emulated.clock_hz) for name, one in found[:SLOWEST]]
    if found[SLOWEST:]:
        rows.append(
            _row(f"{len(found) - SLOWEST} others", joined(one for _, one in found[SLOWEST:]), emulated.clock_hz)
        )
    rows.append(_row("a step", joined(emulated.operators.values()), emulated.clock_hz))
    return "\n".join(columns(rows))


def _row(name: str, one: Modelled, clock_hz: float) -> Sequence[str]:
    classes = {kind: count for kind, count in one.classes.items() if kind != TAKEN}
    most = sorted(classes.items(), key=lambda pair: -pair[1])[:2]
    kinds = ", ".join(f"{kind} {100 * count / max(one.instructions, 1):.0f} %" for kind, count in most)
    low, middle, high = (f"{round(cycles):,}" for cycles in one.cycles)
    return f"  {name}", f"{one.instructions:,}", low, middle, high, show_seconds(one.cycles[1] / clock_hz), kinds


def _step_s(graph: Graph, profile: Profile) -> float:
    """Seconds of all measured operators of a step."""
    return sum(profile.operators[key].time_s for key in signatures(graph).values() if key in profile.operators)


def _missing(graph: Graph, profile: Profile) -> list[str]:
    return [name for name, key in signatures(graph).items() if key not in profile.operators]


def _slowest(graph: Graph, profile: Profile) -> str:
    """The three kinds that take most of the step."""
    sums: dict[str, float] = {}
    for key in signatures(graph).values():
        if key in profile.operators:
            kind = key.partition("(")[0]
            sums[kind] = sums.get(kind, 0.0) + profile.operators[key].time_s
    total = sum(sums.values())
    most: Mapping[str, float] = dict(sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:3])
    return ", ".join(f"{kind} {100 * taken / total:.0f} %" for kind, taken in most.items()) if total else ""


def device_text(plan: Plan, execution: DeviceExecution) -> str:
    """The summary of `poetopt run --on`."""
    rows = [
        ("outputs" if execution.loss is None else "gradients", _sameness(execution)),
        ("memory", _memory(execution)),
    ]
    if execution.code_bytes is not None:
        rows.append(("code", f"{execution.code_bytes:,} B beside the weights, by {execution.compiler}"))
    if execution.instructions is not None:
        rows.append(("time", f"{execution.instructions:,} instructions{_dearest(execution)}"))
    elif execution.step_s is not None and execution.store_all_step_s is not None:
        rows.append(
            (
                "time",
                f"{show_seconds(execution.step_s)} a step here; store-all {show_seconds(execution.store_all_step_s)}",
            )
        )
    rows += _moved(execution)
    rows += _predicted(execution)
    rows += notes.rows(said(plan))
    return table(f"{plan.problem.called}: {len(plan.instructions)} instructions executed in C on {execution.on}", rows)


def device_fit_text(plan: Plan, ended: DeviceFit, out: str) -> str:
    """The summary of `poetopt train --on`."""
    pairs = zip(ended.epoch_losses, ended.reference_epoch_losses, strict=True)
    rows = [
        (f"epoch {epoch}", f"loss {mine:.6g} (mean), on onnxruntime {theirs:.6g}")
        for epoch, (mine, theirs) in enumerate(pairs, 1)
    ]
    rows += left_out_rows(ended)
    found = ended.validation
    if found is not None:
        shown = f"loss {found.loss:.6g}" if found.accuracy is None else f"accuracy {100 * found.accuracy:.1f} %"
        rows.append(("validation", f"{shown} of {found.rows:,} rows, by what {ended.steps.on} itself predicts"))
    rows.append(("written", out if ended.steps.ok else "nothing"))
    return device_training_text(plan, ended.steps, rows)


def device_training_text(plan: Plan, ended: DeviceTraining, more: Sequence[tuple[str, str]] = ()) -> str:
    """The summary of `poetopt run --on --steps`, with `more` rows."""
    same = (
        "bit for bit those of the unscheduled steps on the same kernels"
        if ended.bit_identical
        else "they differ from the unscheduled steps'"
    )
    rows = [
        (
            "loss",
            f"{ended.losses[0]:.6g} in the first step, {ended.losses[-1]:.6g} in the last; no step's is more than "
            f"{ended.max_loss_diff:.2g} from onnxruntime's",
        ),
        (
            "check",
            f"losses and {len(ended.values)} parameters: {same}; from onnxruntime's (relative) the parameters' way is "
            f"{ended.distance:.2g} and the losses are {ended.loss_distance:.2g}, where {TOLERANCE:g} times "
            f"{ended.sensitivity:.2g} is allowed, by which one ulp moves them",
        ),
        ("memory", _memory(ended)),
    ]
    if ended.instructions is not None:
        each = ended.instructions // ended.steps
        rows.append(("time", f"{ended.instructions:,} instructions, {each:,} a step"))
    rows += _moved(ended)
    rows += _predicted(ended)
    rows += more
    rows += notes.rows(said(plan))
    return table(
        f"{plan.problem.called}: {ended.steps} steps of training in C on {ended.on}, {optimizer_words(ended)}", rows
    )


def _predicted(checks: DeviceChecks) -> list[tuple[str, str]]:
    found = checks.predicted
    if found is None:
        return []
    text = (
        f"po_predict takes {found.arena_bytes:,} B of the arena; its outputs are {found.distance:.2g} from "
        f"onnxruntime's (relative), where {TOLERANCE:g} times {found.sensitivity:.2g} is allowed"
    )
    return [("outputs", text)]


def _outputs(emitted: Emitted) -> str:
    if emitted.prediction_bytes is None:
        return NO_PREDICTION
    without = ", ".join(emitted.not_predicted)
    more = f", without {without}, which nothing computes" if without else ""
    return f"po_predict takes {emitted.prediction_bytes:,} B of the arena{more}"


def _storage(emitted: Emitted) -> str:
    erased = f", erasing {emitted.sectors:,} sectors once each" if emitted.sectors else ""
    return (
        f"{emitted.storage_bytes:,} B with both copies of po_save, which writes {emitted.save_bytes:,} B{erased}: a "
        "step that no po_save follows never happened"
    )


def emitted_text(plan: Plan, emitted: Emitted) -> str:
    """The summary of `poetopt emit`."""
    total = emitted.arena_bytes + emitted.resident_bytes
    rows = [
        ("step", f"{emitted.instructions:,} instructions, {emitted.operators:,} operators, for {emitted.target}"),
        (
            "memory",
            f"{total:,} B beside the stack: arena {emitted.arena_bytes:,} B, resident {emitted.resident_bytes:,} B",
        ),
        ("storage", _storage(emitted)),
        ("outputs", _outputs(emitted)),
        ("files", ", ".join(emitted.files)),
    ]
    return table(f"{plan.problem.called} in C: {emitted.folder}/README.md says how it is built and called", rows)


def _moved(ended: DeviceExecution | DeviceTraining) -> list[tuple[str, str]]:
    """Traffic with storage in a step; no row where nothing does."""
    moved = moved_words(ended.bytes_paged, ended.bytes_streamed)
    return [("paged", f"{moved} to and from a file in each step")] if moved else []


def _sameness(execution: DeviceExecution) -> str:
    compared = f"{execution.outputs} outputs"
    if execution.loss is not None:
        compared = f"{execution.gradients} gradients, the loss ({execution.loss:.6g})"
    if execution.statistics:
        compared += f" and {execution.statistics} statistics"
    same = (
        "bit for bit those of the unscheduled step on the same kernels"
        if execution.bit_identical
        else f"{len(execution.different)} differ from the unscheduled step's, by up to {execution.max_abs_diff:.3g}"
    )
    return (
        f"{compared}: {same}; {execution.distance:.2g} from onnxruntime's (relative), where {TOLERANCE:g} times "
        f"{execution.sensitivity:.2g} is allowed, by which one ulp moves them"
    )


def _memory(execution: DeviceExecution | DeviceTraining) -> str:
    text = f"arena {execution.arena_bytes:,} B + resident {execution.resident_bytes:,} B"
    if execution.linked_ram_bytes is not None:
        text += f"; the linker has {execution.linked_ram_bytes:,} B"
    if execution.stack_bytes is not None:
        text += f"; stack {execution.stack_bytes:,} B"
    if execution.stack_bound_bytes is not None:
        text += f", {execution.stack_bound_bytes:,} at most, of {execution.stack_reserved_bytes:,}"
    return f"{text}; budget of the arena {execution.budget_bytes:,} B"


def _dearest(execution: DeviceExecution) -> str:
    # operators that are named with their instructions
    most = sorted(execution.by_operator.items(), key=lambda pair: -pair[1])[:5]
    shown = ", ".join(f"{name} {count:,}" for name, count in most)
    return f"; most by {shown}" if shown else ""
