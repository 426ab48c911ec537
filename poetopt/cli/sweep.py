"""`poetopt sweep`: many points on many processors, into a file that resumes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from poetopt.cli.console import check_outputs, say, write_json, write_text
from poetopt.cli.options import CsvOption, JsonOption
from poetopt.util.errors import ExecutionError

if TYPE_CHECKING:
    from poetopt.api.sweeps.run import State


def sweep(
    file: Annotated[str, typer.Argument(metavar="SWEEP.toml", help="Models, devices, budgets, deadlines and methods.")],
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE.sqlite",
            help="The results, which a later run adds to; default: beside the sweep.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="A dask scheduler; default: processes here.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="How many processes here; default: one a processor.", min=1)
    ] = None,
    retries: Annotated[
        int, typer.Option(metavar="N", help="How often a point is run again whose worker died.", min=0)
    ] = 1,
    csv: CsvOption = None,
    json: JsonOption = None,
) -> int:
    """Run models x devices x budgets x deadlines x methods; killed and started again, it goes on where it was."""
    from poetopt.api.sweeps.points import ERROR
    from poetopt.api.sweeps.run import sweep as run
    from poetopt.api.sweeps.run import sweep_csv, sweep_lines

    check_outputs([file], {"-o": out, "--csv": csv, "--json": json}, texts=("--csv", "--json"))
    with _told() as told:
        found = run(file, out=out, scheduler=scheduler, workers=workers, retries=retries, told=told)
    if csv is not None:
        write_text(sweep_csv(found), csv, option="--csv")
    write_json(found.to_dict(), json)
    say("\n".join(sweep_lines(found)), unless=[csv, json])
    if found.lost:
        point, reason = found.lost[0]
        raise ExecutionError(
            f"{len(found.lost)} of {found.total} points have no row (the first: {point}: {reason}); give the same "
            "command again to try them again"
        )
    if found.rows and all(row["status"] == ERROR for row in found.rows):
        raise ExecutionError(
            f"all {len(found.rows)} rows are errors (the first: {found.rows[0]['reason']}); correct the "
            "sweep, and give another -o, as these rows stay"
        )
    return 0


@contextmanager
def _told() -> Iterator[Callable[[State], None]]:
    """A line on stderr with the rate and the remaining time, where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _state: None
        return
    from rich.console import Console

    from poetopt.api.sweeps.run import progress_line

    with Console(stderr=True).status("reading the sweep", spinner="dots") as status:
        yield lambda state: status.update(progress_line(state))
