"""The work of `poetopt show`: one plan in the form that was asked for, written or printed.

A plan as text, for terminals without a display, logs and tickets: its summary, what runs again and what is paged.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from poetopt.plan.codec import PlanFile, load
from poetopt.plan.instructions import Plan
from poetopt.report import summary
from poetopt.report.layout import WIDTH, aligned, table, terminal_width
from poetopt.report.page import figure_bytes, page
from poetopt.report.report import Report
from poetopt.report.view import View, paged, recomputed
from poetopt.util.errors import OptionError, OutputError, PlanError
from poetopt.util.files import check_writable, write_atomically
from poetopt.util.text import closest
from poetopt.util.units import show_bytes, show_joules


class Form(StrEnum):
    """Forms that a plan can be shown in."""

    HTML = "html"
    PNG = "png"
    SVG = "svg"
    TXT = "txt"


SUFFIXES = {".htm": Form.HTML, **{f".{form}": form for form in Form}}
_CONTENTS = {Form.HTML: "a page for any browser", Form.TXT: "a text"}


@dataclass(frozen=True, slots=True)
class Shown:
    """The place where a plan can be looked at now.

    path
        The file, or None where it is a text to print.
    text
        That text, or None.
    nbytes
        Size of the file or of the text.
    """

    form: Form
    nbytes: int
    path: Path | None = None
    text: str | None = None

    def to_dict(self) -> dict[str, object]:
        """The object of `poetopt show --json`."""
        path = None if self.path is None else str(self.path)
        return {"format": str(self.form), "path": path, "bytes": self.nbytes}

    def __str__(self) -> str:
        if self.path is None:
            return self.text or ""
        return f"{self.path}: {_CONTENTS.get(self.form, 'a picture')}, {show_bytes(self.nbytes)}"


def form_of(out: str | None, form: str | None) -> Form:
    """The form by name, else by the suffix of `out`, else the page. Raises OptionError."""
    if form is not None:
        if form not in tuple(Form):
            raise OptionError(f"--format {form}: not a format; there are {', '.join(Form)}{closest(form, Form)}")
        return Form(form)
    if out is None:
        return Form.HTML
    found = SUFFIXES.get(Path(out).suffix.lower())
    if found is None:
        raise OptionError(f"-o {out}: its suffix names no format; say --format {'|'.join(Form)}")
    return found


def show(
    plan: Plan | PlanFile | Report | View | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    form: str | None = None,
) -> Shown:
    """Show a plan, what `solve` or `load_plan` gave, or a plan file, as `poetopt show` does.

    out
        Where to write; `-` is for stdout and returns the text. Without it a text is in the result; other forms are
        written beside the plan file, or to a temporary folder, and the result says where.
    form
        `html`, `png`, `svg` or `txt`; by default the suffix of `out` says it, else it is `html`.

    Raises OptionError, OutputError, PlanError, and BackendUnavailableError for a picture without matplotlib.
    """
    out = None if out is None else os.fspath(out)
    wanted = form_of(out, form)
    if out == "-" and wanted is Form.PNG:
        raise OptionError("-o -: png is no text, and can't be written to the standard output; give a file")
    file = os.fspath(plan) if isinstance(plan, str | os.PathLike) else None
    view = View.of(load(file)) if file is not None else _view(plan)
    if out in (None, "-") and wanted is Form.TXT:
        text = text_form(view, terminal_width())
        return Shown(wanted, len(text.encode(errors="replace")), text=text)
    content = rendered(view, wanted)
    if out == "-":
        return Shown(wanted, len(content), text=content.decode().removesuffix("\n"))
    if out is not None:
        write_atomically(out, content)
        return Shown(wanted, len(content), Path(out))
    path = _aside(view.name, wanted) if file is None else _beside(file, wanted)
    write_atomically(path, content)
    return Shown(wanted, len(content), path)


def _view(plan: object) -> View:

    from poetopt.report.report import Report

    if isinstance(plan, View):
        return plan
    if isinstance(plan, Plan):
        return View(plan)
    if isinstance(plan, PlanFile):
        return View.of(plan)
    if not isinstance(plan, Report):
        raise TypeError(f"a plan is needed here, a plan file's path, or a report, not {type(plan).__name__}")
    view = plan.view()
    if view is None:
        raise PlanError(f"{plan.problem.name}: there is no plan to show (status {plan.status})")
    return view


def rendered(view: View, form: Form) -> bytes:
    """The content of a file of that form. Raises PlanError, BackendUnavailableError."""
    if form is Form.HTML:
        return page(view).encode()
    if form is Form.TXT:
        return f"{text_form(view)}\n".encode()
    return figure_bytes(view, form)


def _beside(plan: str, form: Form) -> Path:
    """A path that says whose it is, beside the plan or in the folder for temporary files."""
    name = f"{Path(plan).stem}.schedule.{form}"
    beside = Path(plan).parent / name
    try:
        check_writable(beside)
    except OutputError:
        return _aside(Path(plan).stem, form)
    return beside


def _aside(name: str, form: Form) -> Path:
    """A path in a folder of its own, for the schedule of that name."""
    safe = re.sub(r"[^\w.-]+", "-", name)[:60] or "plan"
    return Path(tempfile.mkdtemp(prefix="poetopt-")) / f"{safe}.schedule.{form}"


LISTED = 40


def text_form(view: View, width: int = WIDTH) -> str:
    """The plan in lines of at most `width` characters (names of tensors may be longer). Raises PlanError."""
    problem, again, moved = view.problem, recomputed(view), paged(view)
    runs = [
        (
            view.operator_names[entry.operator],
            show_bytes(problem.nbytes(problem.operators[entry.operator].outputs)),
            str(len(entry.steps)),
            show_joules(entry.energy_j),
            _stages(view, entry.steps),
        )
        for entry in again
    ]
    moves = [
        (
            view.tensor_names[entry.tensor],
            show_bytes(problem.tensors[entry.tensor].nbytes),
            show_joules(entry.energy_j),
            _stages(view, entry.outs),
            _stages(view, entry.ins),
        )
        for entry in moved
    ]
    parts = [table(summary.title(view.document), summary.rows(view.document), max(width, 60))]
    parts.append(_listing("Recomputed", "operators", ("operator", "size", "times", "energy", "in stages"), runs))
    parts.append(_listing("Paged", "tensors", ("tensor", "size", "energy", "out in stages", "in in stages"), moves))
    return "\n\n".join(parts)


def _listing(what: str, unit: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return f"{what}: nothing"
    more = [f"  and {len(rows) - LISTED} more"] if len(rows) > LISTED else []
    return "\n".join([f"{what}: {len(rows)} {unit}", *aligned([head, *rows[:LISTED]]), *more])


def _stages(view: View, steps: Sequence[int]) -> str:
    stages = [str(view.stages[step]) for step in steps]
    return " ".join(stages[:6]) + (f" and {len(stages) - 6} more" if len(stages) > 6 else "")
