"""`poetopt solve`: a model in, a plan with a proof out.

`poetopt export` and `poetopt import-solution`: a model out for another solver, and its solution back.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

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


@sharing(
    DEVICE, RAM, *GOALS, DEADLINE, DEADLINE_MODEL, RUNTIME, PARAMETERS, STREAM, BATCH_OR_MAX, MICRO_BATCH, STATISTICS,
    *READING, *LOSS, *UPDATES, LAZY_TABLES, GRANULARITY, *SPACE, *SEARCHING, *SOLVER, PROFILE, BLOCKS,
)  # fmt: skip
def solve(model: ModelArgument, out: PlanOutOption = None, json: JsonOption = None, **options: Any) -> int:
    """Find the schedule of least energy that keeps a RAM budget and a deadline."""
    begin = time.monotonic()
    import poetopt as po

    outputs = {"-o": out, "--json": json, "--with log": options["log"]}
    check_outputs([model, options["profile"]], outputs, texts=("-o", "--json"))
    if options["batch"] == "max" and options["micro_batch"] is not None:
        raise OptionError("--micro-batch: cuts a batch of a known size; give a number with --batch")
    with live_progress() as listener:
        try:
            report = po.solve(model, listener=listener, begin=begin, **options)
        except (InfeasibleError, NoScheduleError) as error:
            if error.report is not None:
                write_json(error.report, json)
            raise
    if out is not None:
        write_text(report.plan_text(), out, option="-o")
    write_json(report.to_dict(), json)
    say(str(report), unless=[out, json])
    if report.warning and "-" in (out, json):  # the summary isn't shown
        complain(f"warning: {report.warning}")
    return 0
