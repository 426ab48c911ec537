"""`poetopt solve`, `sweep`, `compare`, `pareto` and `fit`: plans with proofs, alone and side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

import poetopt as po
from poetopt.cli.console import check_outputs, complain, live_line, live_progress, say, write_json, write_text
from poetopt.cli.options import (
    COMPARING,
    FITTING,
    GAP,
    PICTURE,
    SOLVING,
    TIME_LIMIT,
    JsonOption,
    ModelArgument,
    Option,
    PlanOutOption,
    sharing,
)
from poetopt.util.errors import ExecutionError, InfeasibleError, NoScheduleError, OptionError
from poetopt.util.files import check_folder
from poetopt.util.progress import silent
from poetopt.util.units import parse_fraction, parse_whole

if TYPE_CHECKING:
    from poetopt.comparison.compare import Comparison


@sharing(*SOLVING)
def solve(model: ModelArgument, out: PlanOutOption = None, json: JsonOption = None, **options: Any) -> int:
    """Find the schedule of least energy that keeps a RAM budget and a deadline."""
    begin = time.monotonic()
    outputs = {"-o": out, "--json": json, "--log": options["log"]}
    check_outputs([model, options["profile"]], outputs, texts=("-o", "--json"))
    if options["batch"] == "max" and options["micro_batch"] is not None:
        raise OptionError("--micro-batch: it needs a batch of known size. Give a number with --batch.")
    from poetopt.report.summary import next_command

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
    if "-" not in (out, json):
        say(report.text(after=next_command(report.to_dict(), out)))
    if report.warning and "-" in (out, json):  # the summary, which has the warning, isn't printed
        complain(f"warning: {report.warning}")
    return 0


@sharing(
    Option(
        "out", str | None, None, "FILE.sqlite", "The results; later runs add to them; default: beside the sweep.",
        None, "-o --out",
    ),
    Option(
        "scheduler", str | None, None, "tcp://HOST:PORT", "A dask scheduler; default: local processes.", None,
    ),
    Option("workers", int | None, None, "N", "Number of local processes; default: one a processor.", None, least=1),
)  # fmt: skip
def sweep(
    file: Annotated[str, typer.Argument(metavar="SWEEP.toml", help="Models, devices, budgets, deadlines and methods.")],
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Solve all models x devices x budgets x deadlines x methods of a file; a restart resumes."""
    from poetopt.api.sweeps import ERROR

    check_outputs([file], {"-o": options["out"], "--json": json})
    with _told("starting workers") as progress:
        results = po.sweep(file, **options, told=progress)
    write_json(results.to_dict(), json)
    say(str(results), unless=[json])
    if results.lost:
        point, reason = results.lost[0]
        raise ExecutionError(
            f"{len(results.lost)} of {results.total} points have no row (the first: {point}: {reason}). Repeat the "
            "command to try them again."
        )
    if results.rows and all(row["status"] == ERROR for row in results.rows):
        raise ExecutionError(
            f"all {len(results.rows)} rows are errors (the first: {results.rows[0]['reason']}). Correct the "
            "sweep, and give another -o: these rows stay."
        )
    return 0


@sharing(
    *COMPARING,
    replace(
        TIME_LIMIT, default="12s",
        help="Limit of one solve, for methods with a proof; POET also gets the time that others left.",
    ),
    GAP,
    Option(
        "ram", str, "20%..100%/9", "BUDGETS", "20%..100%/9 (nine budgets), 3MB..9MB/4, or a list: 30%,50%,4MB.", None,
    ),
    Option("methods", str, "all", "all|A,B", "The methods to compare.", None),
    PICTURE,
    Option("plans", str | None, None, "FOLDER", "Write every plan to this folder, as METHOD-BUDGET.json.", None),
)  # fmt: skip
def compare(model: ModelArgument, json: JsonOption = None, **options: Any) -> int:
    """Compare the schedulers of the literature with POET: same budgets, same simulator."""
    out, plans = _picture(model, json, options), options.pop("plans")
    if plans is not None:
        if not plans:
            raise OptionError("--plans '': the name of the folder is empty. Give a name.")
        if os.path.exists(plans) and not os.path.isdir(plans):
            raise OptionError(f"--plans {plans}: a file has that name. Give a folder.")
        check_folder(plans)
    with _told() as progress:
        comparison = po.compare(model, told=lambda name, budget: progress(f"{name} at {budget:,} B"), **options)
    if plans is not None:
        _save_plans(comparison, plans)
    if out is not None:
        from poetopt.report.plots import save_comparison

        save_comparison(comparison, out)
    from poetopt.report.comparison import comparison_lines

    write_json(comparison.to_dict(), json)
    after = f"poetopt show {plans}/..." if plans is not None else _solve_command(model, options)
    say("\n".join(comparison_lines(comparison, after)), unless=[json])
    return 0


@sharing(
    *COMPARING,
    Option("points", int, 14, "N", "At most this many points.", None, least=2, most=1000),
    replace(TIME_LIMIT, default="230s", help="Begin no new point after this time."),
    replace(GAP, default="2%"),
    PICTURE,
)
def pareto(model: ModelArgument, json: JsonOption = None, **options: Any) -> int:
    """Draw the least energy against RAM, refined where it bends, with the proof of each point."""
    out = _picture(model, json, options)
    with _told() as progress:
        try:
            front = po.pareto(
                model,
                **options,
                told=lambda budget, why: progress(f"{budget:,} B: {why}"),
            )
        except (InfeasibleError, NoScheduleError) as error:
            if error.report is not None:
                write_json(error.report, json)
            raise
    if out is not None:
        from poetopt.report.plots import save_front

        save_front(front, out)
    from poetopt.report.comparison import front_lines

    write_json(front.to_dict(), json)
    say("\n".join(front_lines(front, _solve_command(model, options))), unless=[json])
    return 0


@sharing(
    *FITTING,
    replace(TIME_LIMIT, default="5s", help="Limit of the search for each row."),
    Option(
        "memory", list[str] | None, None, "SIZE", "RAM of a whole step; may be repeated; default: the device's.",
        None,
    ),
    Option(
        "batches", str | None, None, "1,2,4", "Batches; default: powers of two, as far as they fit.", None,
    ),
    Option(
        "overhead", str | None, None, "PERCENT",
        "Find the largest batch with at most this much more energy than store-all.", None,
    ),
)  # fmt: skip
def fit(model: ModelArgument, json: JsonOption = None, **options: Any) -> int:
    """Show which batches fit which memory, and what a sample costs."""
    from poetopt.api.comparing import what_fits
    from poetopt.report.comparison import fits_lines
    from poetopt.report.goals import CHEAP

    memory, batches, overhead = (options.pop(name) for name in ("memory", "batches", "overhead"))
    check_outputs([model], {"--json": json})
    most = CHEAP if overhead is None else parse_fraction(overhead, option="--overhead")
    sizes = [size for text in memory or () for size in text.split(",")]
    sizes_of_batches = [
        parse_whole(batch, option="--batches", least=1) for batch in (batches or "").split(",") if batch.strip()
    ]
    with _told() as progress:
        rows = what_fits(model, memory=sizes, batches=sizes_of_batches, overhead=overhead, told=progress, **options)
    title = f"{model} on {options['device']}"
    write_json({"rows": [row.to_dict() for row in rows]}, json)
    say("\n".join(fits_lines(title, rows, most, f"poetopt solve {model} --device {options['device']}")), unless=[json])
    return 0


def _save_plans(comparison: Comparison, folder: str) -> None:
    from poetopt.plan import codec

    os.makedirs(folder, exist_ok=True)
    rows = {(row.method, row.ram_budget_bytes): row for row in comparison.rows}
    for (name, budget), plan in sorted(comparison.plans.items(), key=lambda entry: entry[0]):
        path = os.path.join(folder, f"{name}-{budget}.json")
        codec.save(plan, path, rows[name, budget].to_dict(), ram_bytes=budget, deadline_s=comparison.deadline_s)


def _solve_command(model: str, options: Mapping[str, Any]) -> str:
    return f"poetopt solve {model} --device {options['device']} --ram SIZE -o plan.json"


def _picture(model: str, json: str | None, options: dict[str, Any]) -> str | None:
    """Take the path of the picture out of the options, and return it if it can be drawn."""
    out: str | None = options.pop("out")
    check_outputs([model], {"-o": out, "--json": json})
    if out is not None:
        from poetopt.report.plots import check_picture

        check_picture(out)
    return out


@contextmanager
def _told(first: str = "reading the model") -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current work and its seconds on stderr, if that is a terminal."""
    begin = time.monotonic()
    with live_line(first) as tell:
        yield silent if tell is None else lambda text: tell(f"{time.monotonic() - begin:.0f} s  {text}")
