"""`poetopt show`: a plan as page, picture or text, written or printed.

The text is for terminals without a display, logs and tickets: the summary, the recomputes and the transfers.
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
    """A plan in the form that was asked for.

    Attributes
    ----------
    path
        The file, or None for a text to print.
    text
        The text, or None.
    nbytes
        Size of the file or of the text.
    """

    form: Form
    nbytes: int
    path: Path | None = None
    text: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object of `poetopt show --json`."""
        path = None if self.path is None else str(self.path)
        return {"format": str(self.form), "path": path, "bytes": self.nbytes}

    def __str__(self) -> str:
        if self.path is None:
            return self.text or ""
        return f"{self.path}: {_CONTENTS.get(self.form, 'a picture')}, {show_bytes(self.nbytes)}"


def form_of(out: str | None, form: str | None) -> Form:
    """Return the form by its name, else by the suffix of `out`, else the page. Raises OptionError."""
    if form is not None:
        if form not in tuple(Form):
            raise OptionError(f"--format {form}: not a format. There are {', '.join(Form)}{closest(form, Form)}")
        return Form(form)
    if out is None:
        return Form.HTML
    by_suffix = SUFFIXES.get(Path(out).suffix.lower())
    if by_suffix is None:
        raise OptionError(f"-o {out}: its suffix is no format. Give --format {'|'.join(Form)}")
    return by_suffix


def show(
    plan: Plan | PlanFile | Report | View | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    form: str | None = None,
) -> Shown:
    """Show a plan as page, picture or text.

    Parameters
    ----------
    plan
        A plan, a report of `solve`, the result of `load_plan`, or the path of a plan file.
    out
        The file to write; `-` is stdout and returns the text. By default a text is returned, and other forms are
        written
        beside the plan file or to a temporary folder.
    form
        `html`, `png`, `svg` or `txt`; by default the suffix of `out`, else `html`.

    Returns
    -------
    Shown
        The text, or the file's path.

    Raises
    ------
    OptionError, OutputError, PlanError
        An argument, the file or the plan can't be used.
    BackendUnavailableError
        A picture was asked for, and matplotlib is not installed.
    """
    out = None if out is None else os.fspath(out)
    chosen = form_of(out, form)
    if out == "-" and chosen is Form.PNG:
        raise OptionError("-o -: a png can't be written to the standard output. Give a file.")
    file = os.fspath(plan) if isinstance(plan, str | os.PathLike) else None
    view = View.of(load(file)) if file is not None else _view(plan)
    if out in (None, "-") and chosen is Form.TXT:
        text = text_form(view, terminal_width())
        return Shown(chosen, len(text.encode(errors="replace")), text=text)
    content = rendered(view, chosen)
    if out == "-":
        return Shown(chosen, len(content), text=content.decode().removesuffix("\n"))
    if out is not None:
        write_atomically(out, content)
        return Shown(chosen, len(content), Path(out))
    path = _aside(view.name, chosen) if file is None else _beside(file, chosen)
    write_atomically(path, content)
    return Shown(chosen, len(content), path)


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
    """Return the content of a file of that form. Raises PlanError, BackendUnavailableError."""
    if form is Form.HTML:
        return page(view).encode()
    if form is Form.TXT:
        return f"{text_form(view)}\n".encode()
    return figure_bytes(view, form)


def _beside(plan: str, form: Form) -> Path:
    """Return a path beside the plan that names it, or one in a temporary folder."""
    name = f"{Path(plan).stem}.schedule.{form}"
    beside = Path(plan).parent / name
    try:
        check_writable(beside)
    except OutputError:
        return _aside(Path(plan).stem, form)
    return beside


def _aside(name: str, form: Form) -> Path:
    """Return a path for the schedule in a new temporary folder."""
    safe = re.sub(r"[^\w.-]+", "-", name)[:60] or "plan"
    return Path(tempfile.mkdtemp(prefix="poetopt-")) / f"{safe}.schedule.{form}"


LISTED = 40


def text_form(view: View, width: int = WIDTH) -> str:
    """Return the plan as text, in lines of at most `width` characters (names of tensors may be longer).

    Raises PlanError if the plan is not valid.
    """
    problem, recomputes, moved = view.problem, recomputed(view), paged(view)
    runs = [
        (
            view.operator_names[entry.operator],
            show_bytes(problem.nbytes(problem.operators[entry.operator].outputs)),
            str(len(entry.steps)),
            show_joules(entry.energy_j),
            _stages(view, entry.steps),
        )
        for entry in recomputes
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


def _listing(heading: str, unit: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return f"{heading}: nothing"
    remaining = [f"  and {len(rows) - LISTED} more"] if len(rows) > LISTED else []
    return "\n".join([f"{heading}: {len(rows)} {unit}", *aligned([head, *rows[:LISTED]]), *remaining])


def _stages(view: View, steps: Sequence[int]) -> str:
    stages = [str(view.stages[step]) for step in steps]
    return " ".join(stages[:6]) + (f" and {len(stages) - 6} more" if len(stages) > 6 else "")
