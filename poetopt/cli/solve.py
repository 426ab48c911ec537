"""`poetopt solve`: a model in, a plan with a proof out."""

from __future__ import annotations

import time
from typing import Any

from poetopt.cli.console import check_outputs, complain, live_progress, say, write_json, write_text
from poetopt.cli.options import (
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
    STREAM,
    UPDATES,
    JsonOption,
    ModelArgument,
    PlanOutOption,
    sharing,
)
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError


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
