"""What was measured, for people and for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poetopt.backends.c.profiling import TAKEN, EmulatedProfile, Modelled, joined
from poetopt.devices.profile import Profile
from poetopt.graph import Graph
from poetopt.ops.signature import signatures
from poetopt.report.layout import columns, table
from poetopt.util.units import show_bytes, show_seconds

DEAREST = 12
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
    """What a step takes on an emulated core: the operators that take most of it, and all."""
    rows: list[Sequence[str]] = [
        ("operator", "instructions", "cycles: low", "middle", "high", "middle", "most of these")
    ]
    found = sorted(emulated.operators.items(), key=lambda pair: -pair[1].cycles[1])
    rows += [_row(name, one, emulated.clock_hz) for name, one in found[:DEAREST]]
    if found[DEAREST:]:
        rows.append(
            _row(f"{len(found) - DEAREST} others", joined(one for _, one in found[DEAREST:]), emulated.clock_hz)
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
