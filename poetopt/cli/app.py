"""The command line: its commands, its process, and the handling of every error.

Commands import their work when they run, so that `--help` is instant.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from poetopt import zoo as networks
from poetopt.cli.console import complain, end, guarded, leave, own_the_process, say
from poetopt.cli.models import devices, formulations, grad, inspect, lora, quantize, zoo
from poetopt.cli.options import Paneled
from poetopt.cli.plans import emit, restore, run, show, train, verify
from poetopt.cli.profile import profile
from poetopt.cli.solving import compare, fit, pareto, solve, sweep
from poetopt.util import __version__, files, interrupts, notes
from poetopt.util.errors import OptionError

MISSING = {
    "--device": "name a device, as in --device a72; `poetopt devices` lists them",
    "--data": "give the training data, as in --data train.npz",
    "--out": "give the file to write, as in -o FILE",
    "MODEL": "give an .onnx file, or a network that `poetopt zoo` lists",
    "PLAN": "give a plan; `poetopt solve MODEL --device a72 -o plan.json` writes one",
    "SWEEP.toml": "give a TOML file with models, devices and ram",
}
"""Remedies for missing parameters."""
VERBOSE = ("-v", "--verbose")
OF_TRAINING = ("--lr", "--lr-schedule", "--data", "--momentum", "--weight-decay", "--validate")
"""Options of `train` that users give to `solve`."""


def usage_message(complaint: str, command: str, arguments: Sequence[str]) -> str:
    """Return one message: the parser's complaint about the arguments of a command, with a remedy.

    Parameters
    ----------
    said
        The complaint.
    command
        Program and command, as in `poetopt solve`.
    """
    text = complaint.rstrip(".")
    text = text[:1].lower() + text[1:]
    remedy = _of_training(text) or _extra(text, command, arguments) or _missing(text) or _no_command(text)
    return f"{remedy or text}; see {command} --help"


def _of_training(text: str) -> str | None:
    match = re.match(r"no such option: (--[\w-]+)", text)
    if match is None or match[1] not in OF_TRAINING:
        return None
    return f"{match[1]}: it belongs to training, as in poetopt train PLAN --data train.npz --lr 0.001 -o net.onnx"


def _extra(text: str, command: str, arguments: Sequence[str]) -> str | None:
    """Return the remedy for one argument too many: a unit after a blank, or a name that needs an option."""
    match = re.match(r"got unexpected extra arguments?\(?s?\)? \((.*)\)", text)
    if match is None:
        return None
    extra = match[1].split(" ")[0]
    place = next((k for k, argument in enumerate(arguments) if k and argument == extra), 0)
    before = arguments[place - 1] if place else ""
    if re.fullmatch(r"[\d.,]+", before) and re.fullmatch(r"%|×|[A-Za-zµ]{1,5}", extra):
        option = f"{arguments[place - 2]} " if place > 1 and arguments[place - 2].startswith("-") else ""
        return f"{option}{before} {extra}: write it without a space: {option}{before}{extra}"
    if command.rpartition(" ")[2] in ("devices", "formulations"):
        return f"unexpected: {match[1]}; did you mean --show {extra}?"
    if extra.startswith("*") or len(match[1].split(" ")) > 1:
        return f"unexpected: {match[1]}; put patterns and names with spaces in quotes"
    return f"unexpected: {match[1]}; {command} takes fewer arguments. Options begin with --"


def _missing(text: str) -> str | None:
    match = re.match(r"missing (?:option|argument) (.*)", text)
    remedies = [remedy for name, remedy in MISSING.items() if match is not None and f"'{name}'" in match[1]]
    return f"{text}: {remedies[0]}" if remedies else None


def _no_command(text: str) -> str | None:
    """Return the remedy for a model in place of the command."""
    match = re.match(r"no such command '(.*?)'$", text)
    if match is None:
        return None
    name = match[1]
    model = name.lower() if name.lower() in networks.names() else name if Path(name).suffix == ".onnx" else None
    return None if model is None else f"{text}; did you mean poetopt solve {model} --device a72?"


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
app.command(short_help="Write the network that a device trained, from a copy of its storage.", cls=Paneled)(restore)
app.command(short_help="Check a plan and its proof again.", cls=Paneled)(verify)
app.command(short_help="Show a plan as a page, a picture or a text.", cls=Paneled)(show)
app.command(short_help="Compare the schedulers of the literature.", cls=Paneled)(compare)
app.command(short_help="Draw the least energy against RAM.", cls=Paneled)(pareto)
app.command(short_help="Show which batches fit a memory, and their cost.", cls=Paneled)(fit)
app.command(short_help="Solve many points on many processors; a restart resumes.", cls=Paneled)(sweep)
app.command(short_help="Measure this machine, or read a board's figures.", cls=Paneled)(profile)
app.command(short_help="Show what the training of a model needs.", cls=Paneled)(inspect)
app.command(short_help="Write the training graph as an ONNX file.", cls=Paneled)(grad)
app.command(short_help="Add LoRA's pairs to a network, or merge them.", cls=Paneled)(lora)
app.command(short_help="Quantize the weights of a network.", cls=Paneled)(quantize)
app.command(short_help="List formulations and blocks, or show their mathematics.", cls=Paneled)(formulations)
app.command(short_help="List the devices, or show one with its sources.", cls=Paneled)(devices)
app.command(short_help="List the built-in networks, or write one.", cls=Paneled)(zoo)


def _version(is_wanted: bool) -> None:
    if is_wanted:
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
            envvar=files.ENVIRONMENT,
            help="Read larger files than 134 MB (plans), 16.8 MB (tables), 2.15 GB (data sets).",
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "-v", "--verbose", help="Show every figure, exact byte counts and all notes; also behind a command."
        ),
    ] = False,
) -> None:
    notes.show_all(wanted=verbose)
    if max_file_size is not None:
        files.allow(max_file_size)
    if context.invoked_subcommand is None:
        say(context.get_help())


@cache
def _parser() -> typer.core.TyperGroup:
    return typer.main.get_group(app)


def invoke(arguments: list[str]) -> int:
    """Run one command line, without the program's name, and return the exit code; errors go to stderr."""

    def command() -> int:
        for argument in arguments:
            try:
                argument.encode()
            except UnicodeEncodeError as error:
                raise OptionError(f"{argument}: the path isn't UTF-8, which files need. Rename it.") from error
            if "\0" in argument:
                raise OptionError(f"{argument}: a path can't contain a NUL. Correct it.")
        # it stands before the command, wherever it is given
        verbose = [argument for argument in arguments if argument in VERBOSE]
        arguments[:] = [*verbose[:1], *(argument for argument in arguments if argument not in VERBOSE)]
        try:
            # `app(...)` would install its own exception hook.
            code = _parser().main(arguments, prog_name="poetopt", standalone_mode=False)
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "poetopt"

            complain(usage_message(error.format_message(), path, arguments))
            return OptionError.exit_code
        except SystemExit as end:
            # typer ends with its own code if a pipe without a reader shows before the last flush.
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            raise
        if code == interrupts.CODES[signal.SIGINT]:
            # typer has turned the exception into this code.
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0

    return guarded(command)


def main() -> None:
    """Entry point of the program `poetopt`."""
    own_the_process()
    if sys.flags.optimize > 1:  # Pyomo builds its docstrings from those that Python drops
        complain("Python runs without docstrings, which Pyomo needs. Leave out PYTHONOPTIMIZE=2 or -OO.")
        leave(OptionError.exit_code)
    code = invoke(sys.argv[1:])
    end(code)
