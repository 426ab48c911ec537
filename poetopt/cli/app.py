"""The command line: its commands, one process, one place where every error ends.

Commands import what they need when they run, so that `--help` is instant.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from poetopt.cli.catalogues import devices, formulations, zoo
from poetopt.cli.compare import compare, pareto
from poetopt.cli.console import complain, guarded, own_the_process, say
from poetopt.cli.exchange import export, import_solution
from poetopt.cli.models import grad, inspect
from poetopt.cli.options import Paneled
from poetopt.cli.plans import emit, run, show, verify
from poetopt.cli.profile import profile
from poetopt.cli.schedule import schedule
from poetopt.cli.solve import solve
from poetopt.cli.sweep import sweep
from poetopt.cli.train import train
from poetopt.util import inputs, interrupts
from poetopt.util.errors import OptionError
from poetopt.util.version import __version__

app = typer.Typer(
    name="poetopt",
    help="Plan the training of a network on a device with too little RAM for it; prove and execute the plan.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(short_help="Find the schedule of least energy.", cls=Paneled)(solve)
app.command(short_help="Execute a plan and check its gradients, or train with it.", cls=Paneled)(run)
app.command(short_help="Train for epochs by a plan, and write the trained network.", cls=Paneled)(train)
app.command(short_help="Write a plan as C for a microcontroller.", cls=Paneled)(emit)
app.command(short_help="Write a plan's order as an ONNX file.", cls=Paneled)(schedule)
app.command(short_help="Check a plan again, and its proof.", cls=Paneled)(verify)
app.command(short_help="Show a plan as a page, a picture, a text or a trace.", cls=Paneled)(show)
app.command(short_help="Compare the schedulers of the literature.", cls=Paneled)(compare)
app.command(short_help="Draw the least energy against RAM or time.", cls=Paneled)(pareto)
app.command(short_help="Solve many points on many processors; it resumes.", cls=Paneled)(sweep)
app.command(short_help="Measure this machine, or read a board's figures.", cls=Paneled)(profile)
app.command(short_help="Show what a model's training takes.", cls=Paneled)(inspect)
app.command(short_help="Write the training graph as an ONNX file.", cls=Paneled)(grad)
app.command(short_help="Write the model for a solver of your own.", cls=Paneled)(export)
app.command("import-solution", short_help="Read that solver's solution back as a plan.", cls=Paneled)(import_solution)
app.command(short_help="List formulations and blocks, or show their mathematics.", cls=Paneled)(formulations)
app.command(short_help="List the devices, or show one with its sources.", cls=Paneled)(devices)
app.command(short_help="List the built-in networks, or write one.", cls=Paneled)(zoo)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"poetopt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    max_file_size: Annotated[
        str | None,
        typer.Option(
            "--max-file-size",
            metavar="SIZE",
            envvar=inputs.ENVIRONMENT,
            help="Read larger files: plans end at 134 MB, tables at 16.8 MB, data sets at 2.15 GB.",
        ),
    ] = None,
) -> None:
    if max_file_size is not None:
        inputs.allow(max_file_size)
    if context.invoked_subcommand is None:
        say(context.get_help())


def invoke(arguments: list[str]) -> int:
    """Run one command line (without the program's name); the exit code. Errors have been told on stderr."""

    def command() -> int:
        for argument in arguments:
            try:
                argument.encode()
            except UnicodeEncodeError as error:
                raise OptionError(f"{argument}: it isn't UTF-8, in which paths are kept in files; rename it") from error
            if "\0" in argument:
                raise OptionError(f"{argument}: no path has a NUL in it")
        try:
            # Not through `app(...)`, which would put an exception hook of its own in place.
            code = typer.main.get_command(app).main(arguments, prog_name="poetopt", standalone_mode=False)
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "poetopt"
            from poetopt.cli.usage import usage_message

            complain(usage_message(error.format_message(), path, arguments))
            return OptionError.exit_code
        except SystemExit as end:
            # typer makes a code of its own of a pipe that nobody reads, where that shows before the last flush.
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            raise
        if code == interrupts.CODES[signal.SIGINT]:
            # typer has turned the exception into a code.
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0

    return guarded(command)


def main() -> None:
    """Entry point of the program `poetopt`."""
    own_the_process()
    if sys.flags.optimize > 1:  # Pyomo makes its own docstrings of those that Python has left out then
        complain("this Python runs without docstrings, which Pyomo needs; leave out PYTHONOPTIMIZE=2 or -OO")
        _leave(OptionError.exit_code)
    code = invoke(sys.argv[1:])
    interrupts.deafen()  # all is done and told: ending takes a moment, in which a signal would change the code
    if interrupts.came() is None:
        atexit._run_exitfuncs()
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process at once. Python would take a model of a million rows apart first, which takes it seconds.

    It would wait for the thread of a solver that was told to stop, too, and tell of any Ctrl-C that it saw inside of
    `exec`, though it was handled long ago.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
