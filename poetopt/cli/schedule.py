"""`poetopt schedule`: a plan as one standard ONNX file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from poetopt.cli.console import check_outputs, doing, say, write_json
from poetopt.cli.options import ALLOW_SYMLINKS, JsonOption, PlanArgument, PlanModelOption, sharing


@sharing(ALLOW_SYMLINKS)
def schedule(
    plan: PlanArgument,
    out: Annotated[str, typer.Option("-o", "--out", metavar="STEP.onnx", help="Write the schedule there.")],
    model: PlanModelOption = None,
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Write a plan's order and recomputes as one standard ONNX file, for runtimes that keep the order of its nodes."""
    import poetopt as po

    check_outputs([plan, model], {"-o": out, "--json": json})
    with doing("reading the plan and its model"):
        loaded = po.load_plan(plan, model=model, **options)
        written = po.write_schedule(loaded, out)
    write_json(written.to_dict(), json)
    say(str(written), unless=[json])
    return 0
