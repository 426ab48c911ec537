"""`poetopt solve`: a model in, a plan with a proof out.

`poetopt export` and `poetopt import-solution`: a model out for another solver, and its solution back.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poetopt.cli.console import check_outputs, complain, live_progress, say, write_json, write_text
from poetopt.cli.options import (
    BATCH,
    BATCH_OR_MAX,
    BLOCKS,
    DEADLINE,
    DEADLINE_MODEL,
    DEVICE,
    GOALS,
    GRANULARITY,
    LAZY_TABLES,
    LOSS,
    MICRO_BATCH,
    PARAMETERS,
    PROFILE,
    RAM,
    READING,
    RUNTIME,
    SEARCHING,
    SOLVER,
    SPACE,
    STATISTICS,
    STEPS,
    STREAM,
    UPDATES,
    JsonOption,
    ModelArgument,
    PlanOutOption,
    sharing,
)
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError

if TYPE_CHECKING:
    from poetopt.report.report import Report

OPTIONS = (
    DEVICE, RAM, DEADLINE, STEPS, DEADLINE_MODEL, *SPACE, PROFILE, BATCH, *READING, *LOSS, GRANULARITY, BLOCKS,
)  # fmt: skip


def _files(out: str) -> dict[str, str]:
    """The files of an export to `out`: an NL file has the names of its columns and rows beside it."""
    beside = (".col", ".row") if Path(out).suffix.lower() == ".nl" else ()
    return {"-o": out} | {f"-o (its {suffix})": str(Path(out).with_suffix(suffix)) for suffix in beside}


@sharing(*OPTIONS)
def export(
    model: ModelArgument,
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="FILE.mps|.lp|.nl", help="Write the model there, in that format.")
    ],
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOLUTION",
            help="A solution that import-solution refused: add the rows that it breaks. May be repeated.",
        ),
    ] = None,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="Time for finding cuts, which are written with the model.")
    ] = "20s",
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Write the model of a schedule as an MPS, LP or NL file, for a solver of your own."""
    import poetopt as po

    check_outputs([model, options["profile"], *(also or [])], {**_files(out), "--json": json})
    written = po.export(model, out, also=also or (), time_limit=time_limit, **options)
    write_json(written.to_dict(), json)
    say(str(written), unless=[json])
    return 0


@sharing(*OPTIONS)
def import_solution(
    model: ModelArgument,
    solution: Annotated[
        str,
        typer.Argument(
            metavar="SOLUTION", help="A solution of HiGHS, Gurobi, CBC, SCIP, CPLEX or AMPL, or lines `name value`."
        ),
    ],
    out: PlanOutOption = None,
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Read a solver's solution of an exported model back as a simulated plan; give the options of the export."""
    import poetopt as po

    check_outputs([model, solution, options["profile"]], {"-o": out, "--json": json}, texts=("-o", "--json"))
    report = po.import_solution(model, solution, **options)
    if out is not None:
        write_text(report.plan_text(), out, option="-o")
    write_json(report.to_dict(), json)
    say(str(report), unless=[out, json])
    return 0


SHARE = 6
"""Each optimum of `--with sensitivity` may take this part of the time limit of the solve."""


@sharing(
    DEVICE, RAM, *GOALS, DEADLINE, DEADLINE_MODEL, RUNTIME, PARAMETERS, STREAM, BATCH_OR_MAX, MICRO_BATCH, STATISTICS,
    *READING, *LOSS, *UPDATES, LAZY_TABLES, GRANULARITY, *SPACE, *SEARCHING, *SOLVER, PROFILE, BLOCKS, sensitivity=True,
)  # fmt: skip
def solve(model: ModelArgument, out: PlanOutOption = None, json: JsonOption = None, **options: Any) -> int:
    """Find the schedule of least energy that keeps a RAM budget and a deadline."""
    begin = time.monotonic()
    import poetopt as po
    from poetopt.util import interrupts

    picture = options.pop("sensitivity")
    outputs = {"-o": out, "--json": json, "--with log": options["log"], "--with sensitivity": picture or None}
    check_outputs([model, options["profile"]], outputs, texts=("-o", "--json"))
    if options["batch"] == "max" and options["micro_batch"] is not None:
        raise OptionError("--micro-batch: cuts a batch of a known size; give a number with --batch")
    with live_progress() as listener:
        given: Any = model
        if picture is not None:
            given = _of_one_problem(model, picture, options)
        try:
            report = po.solve(given, listener=listener, begin=begin, **options)
        except (InfeasibleError, NoScheduleError) as error:
            if error.report is not None:
                write_json(error.report, json)
            raise
    if out is not None:
        write_text(report.plan_text(), out, option="-o")
    document, text = report.to_dict(), str(report)
    if picture is not None and not report.solution.interrupted:
        interrupts.let_go()
        text = f"{text}\n\n{_sensitivity(report, document, options, picture)}"
    write_json(document, json)
    say(text, unless=[out, json])
    if report.warning and "-" in (out, json):  # the summary isn't shown
        complain(f"warning: {report.warning}")
    return 0


def _of_one_problem(model: str, picture: str, options: dict[str, Any]) -> object:
    """The step of a model, taken out of the options. Raises OptionError where a sensitivity would be of nothing."""
    from poetopt.api.problems import DERIVED, READ, step_of
    from poetopt.comparison.sensitivity import check_goal
    from poetopt.formulations import formulation
    from poetopt.formulations.options import with_options

    if picture:
        from poetopt.report.plots import check_picture

        check_picture(picture, option="--with sensitivity")
    if "max" in (options["batch"], options["micro_batch"]) or options["micro_batch"] == "auto":
        found = "--batch max" if options["batch"] == "max" else "--micro-batch auto"
        raise OptionError(f"--with sensitivity: is of one problem; give what {found} finds, as a number")
    if options["minimize"] == "ram":
        raise OptionError("--with sensitivity: is of the least energy; leave out --with minimize=ram")
    step = step_of(model, **{name: options.pop(name) for name in (*READ, *DERIVED)})
    limit = options["energy_limit"]
    blocks = [*options["blocks"], *([] if limit is None else [f"energy-limit={limit}"])]
    problem = step.cost(options["device"], profile=options["profile"], runtime=options["runtime"])  # type: ignore[union-attr]
    check_goal(with_options(formulation(options["formulation"]), blocks, problem, options["steps"]))
    return step


def _sensitivity(report: Report, document: dict[str, object], options: dict[str, Any], picture: str) -> str:
    """The plan's loss where the device's figures are off by up to 4x: into `document`, a picture and a text."""
    import poetopt as po
    from poetopt.report.comparison import sensitivity_text
    from poetopt.report.plots import save_sensitivity
    from poetopt.util.units import parse_time

    def told(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"sensitivity: {text}\n")

    found = po.sensitivity(
        report,
        device=options["device"],
        profile=options["profile"],
        deadline=options["deadline"],
        time_limit=parse_time(options["time_limit"], option="--time-limit") / SHARE,
        told=told,
    )
    document["sensitivity"] = found.to_dict()
    if picture:
        save_sensitivity(found, report.title(), picture)
    return sensitivity_text(found)
