"""The summary of an answer: each line is made from the figures of its JSON document, and of nothing else.

`solve` prints it, notebooks show it, and so do the page and the text of a plan file, whose document is made anew from
the plan (`poetopt.report.verification.recounted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from poetopt.graph import FORWARD_ONLY
from poetopt.report.proof import exact_words, proof_words
from poetopt.search.solution import DeadlineModel
from poetopt.util import notes as told
from poetopt.util.text import shown
from poetopt.util.units import finite, show_amount, show_bytes, show_joules, show_seconds, show_share

Document = Mapping[str, Any]


def rows(document: Document, notes: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Label and text of each line.

    notes
        What was said of the network; by default the important ones of the document.
    """
    given = document.get("important") or ()
    said = [told.Note(one["text"], told.About(one["about"])) for one in given] if notes is None else notes
    loss, others = told.loss_of(said)
    found = [(label, text) for label, words in LINES for text in words(document)]
    place = next((k for k, (label, _) in enumerate(found) if label != "WARNING"), 0)
    found[place:place] = [("loss", loss)] if loss else []
    found += told.rows(others)
    found += [("note", text) for text in _notes(document, said)]
    found += [("solved", made_by(document))] if made_by(document) else []
    return [(label, shown(text)) for label, text in found]


def title(document: Document) -> str:
    """One line: what was scheduled, and on what."""
    name = shown(str(document.get("model_ref") or document.get("model") or "")) or "a model without a name"
    return (
        f"{name} on {shown(str(document['device']))}: {document['operators']} operators, {document['tensors']} tensors"
    )


def proof(document: Document) -> str:
    """The proof of the plan, in plain sentences; 'optimal' is said only of a proof."""
    return " ".join(f"{shown(line[:1].upper() + line[1:])}." for line in proof_words(document).split("\n"))


def proof_exact(document: Document) -> str:
    """The proof of the scope, as the formulation has that space; empty where nothing is proven."""
    found = exact_words(document)
    return f"{shown(found[:1].upper() + found[1:])}." if found else ""


def made_by(document: Document) -> str:
    """Formulation, backend and seconds."""
    total = show_seconds(finite(document.get("total_s")) or 0.0)
    if document.get("backend") is None:
        return ""
    if document.get("scope") == "store-all":
        return f"in {total}, without a solver"
    build, solve = (show_seconds(finite(document.get(key)) or 0.0) for key in ("build_s", "solve_s"))
    made = shown(f"{document.get('formulation')} on {document.get('backend')}")
    return f"{made}: built in {build}, solved in {solve}, {total} in all"


def warning(document: Document) -> str | None:
    """The remedy where a step takes more RAM than the device has; None where it doesn't."""
    if document.get("fits_device") is not False:
        return None
    return (
        f"the step doesn't fit: it takes {document['total_ram_bytes']:,} bytes, and {document['device']} has "
        f"{document['device_ram_bytes']:,}; leave out --ram and --total-ram to plan for that device"
    )


def _warning(document: Document) -> Iterator[str]:
    text = warning(document)
    if text:
        yield text


def _largest(document: Document) -> Iterator[str]:
    found = document.get("largest_batch")
    if found:
        text = f"{found['batch']:,} is the largest"
        if found["refused"] is None:
            yield f"{text} that can be asked for"
        elif found["proven"]:
            yield f"{text}: with {found['refused']:,}, {found['why']}"
        else:
            yield (
                f"{text} with a known schedule, and {found['refused']:,} has none: {found['why']}; nothing is known in "
                "between"
            )
    parts = document.get("micro_batches") or 1
    if parts > 1:
        yield f"in {parts:,} parts, each by this schedule; all figures are of the whole step"
    for one in document.get("micro_batches_tried") or ():
        number = one["micro_batches"]
        text = one["why"]
        if one["energy_j"] is not None:
            text = f"{show_joules(one['energy_j'])}, {show_seconds(one['time_s'])}, "
            text += f"{show_bytes(one['total_ram_bytes'])} in all{': taken' if number == parts else ''}"
        yield f"{number:,} part{'s' * (number > 1)}: {text}"


def _ram(document: Document) -> Iterator[str]:
    budget, store_all = document["ram_budget_bytes"], document["store_all_peak_bytes"]
    text = "no budget is named" if budget is None else f"budget {budget:,} B ({show_bytes(budget)})"
    if budget is not None and store_all > budget:
        text += f", {show_share(budget / store_all)} of the {show_bytes(store_all)} that store-all takes"
    peak, reserve = document["peak_bytes"], document["reserve_bytes"]
    if peak is not None:
        laid = (document.get("arena_bytes") or 0) + reserve
        text += f"; peak {peak:,} B" + (f", {laid:,} B with gaps between buffers" if laid > peak else "")
    text += f", {reserve:,} B of it for kernels" if reserve else ""
    yield text


def _memory(document: Document) -> Iterator[str]:
    total, resident = document.get("total_ram_bytes"), document["resident_bytes"]
    if document["peak_bytes"] is None or total is None:
        if resident:
            yield f"{show_bytes(resident)} of parameters, gradients and constants beside it, never scheduled"
        return
    text = f"{show_bytes(total)} in all"
    text += f" with {show_bytes(document['stack_bytes'])} of stack" if document["stack_bytes"] else ""
    if document["parameters"] == "paged":
        kept = show_bytes(document["parameter_bytes_in_ram"] or 0)
        text += f": of parameters and states {kept} begin the step in RAM, the others on storage; updated by "
        text += str(document["optimizer"])
    elif resident:
        text += f": {show_bytes(resident)} of parameters, gradients and constants beside the schedule"
    text += f"; {show_bytes(document['flash_bytes'])} lie in flash" if document["flash_bytes"] else ""
    limit = document["device_ram_bytes"]
    if limit is not None:
        text += f"; {document['device']} has {show_bytes(limit)}" + (", LESS THAN THAT" if total > limit else "")
    yield text


def _energy(document: Document) -> Iterator[str]:
    baseline, overhead = document["baseline_energy_j"], document["overhead_j"]
    if overhead is not None:
        share = f" ({show_share(overhead / baseline)})" if baseline else ""
        yield f"{show_joules(baseline)} baseline + {show_joules(overhead)} overhead{share}"


NO_PREDICTION = "no po_predict: the step has no outputs beside its results, moves rows of tables, or leaves no room"


def _inference(document: Document) -> Iterator[str]:
    if document.get("runtime") != "c" or document["arena_bytes"] is None or document["loss"] in (None, FORWARD_ONLY):
        return
    taken, arena = document.get("prediction_bytes"), document["arena_bytes"]
    yield NO_PREDICTION if taken is None else f"fits in the same RAM: po_predict takes {taken:,} B of the {arena:,}"


def _by(document: Document) -> str:
    paper = document.get("deadline_model") == DeadlineModel.PAPER
    return ", counted as the sum of compute times" if paper else ""


def _time(document: Document) -> Iterator[str]:
    taken, one_pass, limit = (document[key] for key in ("makespan_s", "baseline_time_s", "deadline_s"))
    if taken is not None:
        text = f"{show_seconds(taken)} a step" + (f" ({taken / one_pass:.3g}x one pass)" if one_pass else "")
        yield text + (", no deadline" if limit is None else f", deadline {show_seconds(limit)}{_by(document)}")


def _schedule(document: Document) -> Iterator[str]:
    if document["peak_bytes"] is None:
        return
    if document.get("scope") == "store-all":
        yield "store-all fits: there was nothing to save"
        return
    text = "{recomputes:,} recomputes, {page_outs:,} page-outs, {page_ins:,} page-ins".format_map(dict(document))
    runs = document["streamed_runs"]
    text += f"; {runs:,} run{'s' * (runs > 1)} streamed" if runs else ""
    yield text


def _transfers(document: Document) -> Iterator[str]:
    paged, streamed = document.get("bytes_paged") or 0, document.get("bytes_streamed") or 0
    took, hidden = document["transfer_s"], document["hidden_s"]
    if not paged + streamed:
        return
    written, holds = document.get("bytes_written") or 0, document.get("storage_bytes")
    text = show_bytes(paged + streamed)
    if written:
        share = written / (holds or written)
        worn = f", {show_share(share) if share >= LEAST_SHARE else 'under 0.001 %'} of the storage" if holds else ""
        text += f" ({show_bytes(written)} written{worn})"
    if streamed:
        text += (
            f"; {show_bytes(streamed)} of it in chunks, in their operators' time"
            if paged
            else " in chunks, in their operators' time"
        )
    if took and hidden is not None:
        # less is a difference of sums
        during = f"{show_seconds(hidden)} of it while the CPU computes" if hidden > 1e-12 else "while the CPU waits"
        text += f"{f'; {show_bytes(paged)}' if streamed else ''} in {show_seconds(took)}, {during}"
    yield text


def _cheaper(document: Document) -> Iterator[str]:
    """A cheap alternative where a plan costs more than twice what training does."""
    overhead, baseline, batch = document["overhead_j"], document["baseline_energy_j"], document.get("batch")
    # from this share of the baseline's energy on, an overhead asks for another batch
    if not overhead or not baseline or overhead < baseline or document.get("scope") == "store-all":
        return
    room, all_bytes = document["ram_budget_bytes"], document["store_all_peak_bytes"]
    fits = 0
    if batch and room and all_bytes and document["parameters"] != "paged":
        fits = batch // (document.get("micro_batches") or 1) * room // all_bytes
    text = f"{overhead / baseline:.1f} times the energy of ordinary training is spent beside it"
    if batch and 0 < fits < batch:
        parts = next(k for k in range(-(-batch // fits), batch + 1) if batch % k == 0)
        text += f": about a batch of {fits:,}, or --micro-batch {parts:,}, fits without that"
    yield f"{text}; `poetopt fit` shows what each batch costs"


def _training(document: Document) -> Iterator[str]:
    run = document.get("training")
    if not run:
        return
    text = f"{run['steps']:,} step{'s' * (run['steps'] > 1)}"
    if run["samples"] is not None:
        rest = f", {run['left_out']:,} left out" if run["left_out"] else ""
        text += f" ({run['epochs']:,} x {run['samples']:,} samples in batches of {run['batch']:,}{rest})"
    if run["time_s"] is not None:
        text += f": {show_seconds(run['time_s'])}"
        text += "" if run["deadline_s"] is None else f" of {show_seconds(run['deadline_s'])}{_by(document)}"
        text += f", {show_joules(run['energy_j'])}"
        text += f", {show_bytes(run['bytes_written'])} written to storage" if run["bytes_written"] else ""
    yield text


def _minimised(document: Document) -> Iterator[str]:
    found = document.get("objective") or {}
    if found.get("name", "energy") == "energy":
        return
    unit, value, bound = found["unit"], found["overhead"], found["bound"]
    parts = [f"{show_amount(found['baseline'], unit)} of one pass"] if found["baseline"] else []
    parts += [] if value is None else [show_amount(value, unit)]
    needed = f", of which {show_amount(bound, unit)} are proven to be needed" if bound and value is not None else ""
    yield f"{found['name']}: {' + '.join(parts) or 'none'}{needed}"


def _proof(document: Document) -> Iterator[str]:
    yield from proof_words(document).split("\n")


def _notes(document: Document, said: Sequence[str]) -> Iterator[str]:
    if document.get("interrupted"):
        yield "interrupted: this is the best schedule so far"
    if document["peak_bytes"] is not None and document.get("reason"):
        yield str(document["reason"])
    yield from (text for text in document.get("notes") or () if text not in said)


LINES: Sequence[tuple[str, Callable[[Document], Iterator[str]]]] = (
    ("WARNING", _warning),
    ("batch", _largest),
    ("RAM", _ram),
    ("memory", _memory),
    ("inference", _inference),
    ("energy", _energy),
    ("cheaper", _cheaper),
    ("time", _time),
    ("schedule", _schedule),
    ("transfers", _transfers),
    ("training", _training),
    ("asked", lambda document: iter(map(str, document.get("asks") or ()))),
    ("minimised", _minimised),
    ("proof", _proof),
)
"""Label, and the texts that a document gives for it."""
LEAST_SHARE = 1e-5
"""Of the storage: nobody asks how much less."""
FACTS = ("RAM", "memory", "energy", "time", "schedule", "transfers")
"""Those that a page shows as figures."""
