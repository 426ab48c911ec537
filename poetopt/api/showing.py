"""`show`: a plan as a page, a picture, a text or a trace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from poetopt.util.errors import PlanError

if TYPE_CHECKING:
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report
    from poetopt.report.show import Shown
    from poetopt.report.view import View


def show(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    form: str | None = None,
    browse: bool = True,
) -> Shown:
    """Show a plan, what `solve` or `load_plan` gave, or a plan file, as `poetopt show` does.

    out
        Where to write. Without it a text is in the result; other forms are written beside the plan file, or to a
        temporary folder, and the result says where.
    form
        `html`, `png`, `svg`, `txt` or `trace`; by default the suffix of `out` says it, else it is `html`.
    browse
        Whether a page without an `out` is opened in a browser, if there is a display and a terminal.

    Raises OptionError, OutputError, PlanError, and BackendUnavailableError for a picture without matplotlib.
    """
    from poetopt.report.show import show as display

    shown = os.fspath(plan) if isinstance(plan, str | os.PathLike) else _view(plan)
    return display(shown, out=None if out is None else os.fspath(out), form=form, browse=browse)


def _view(plan: Plan | PlanFile | Report) -> View:
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report
    from poetopt.report.view import View

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
