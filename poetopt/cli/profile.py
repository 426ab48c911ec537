"""`poetopt profile`: measure this machine, or read measurements of a board."""

from __future__ import annotations

import os
from typing import Any

import poetopt as po
from poetopt.api.options import ModelOptions
from poetopt.cli.console import check_outputs, doing, say, write_json, write_text
from poetopt.cli.options import BATCH, LOSS, PROFILING, READING, UPDATES, JsonOption, ModelArgument, sharing
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.units import parse_frequency, parse_watts


@sharing(*PROFILING, BATCH, *READING, *LOSS, UPDATES[0])
def profile(model: ModelArgument, json: JsonOption = None, **options: Any) -> int:
    """Measure this machine with a model, for `solve --profile`: operators, storage, energy.

    With --on: count the operators' instructions on an emulated Cortex-M, for plans of the runtime c.
    """
    from poetopt.api.problems import step_of
    from poetopt.backends.c.tracing import core
    from poetopt.devices import profile_csv
    from poetopt.devices.profile import load_profile
    from poetopt.report.on_device import instructions_text, profile_document, profile_text

    out, from_csv, template, power, on, clock, dma, workdir = (options.pop(one.name) for one in PROFILING)
    power_w = None if power is None else parse_watts(power, option="--power")
    clock_hz = None if clock is None else parse_frequency(clock, option="--clock")
    if template is not None and from_csv is not None:
        raise OptionError("--template and --from-csv: one writes the file that the other reads. Give one of them.")
    if dma and from_csv is None:
        raise OptionError("--dma: it is only for --from-csv. On this machine the CPU makes the transfers, as measured.")
    values = {"--template": template, "--from-csv": from_csv, "--power": power, "--workdir": workdir}
    conflicting = next((name for name, value in values.items() if value is not None), None)
    if on is not None and conflicting is not None:
        raise OptionError(
            f"--on, {conflicting}: an emulated core has no power, no storage and no file. Give one of the options."
        )
    if on is not None:
        core(on)
    if on is None and (clock or options["optimizer"] != "none"):
        raise OptionError("--clock, --optimizer: they are only for --on. Give the emulated core, as in --on cortex-m4.")
    check_outputs(
        [model, from_csv],
        {"--template": template, "--json": json} | ({} if template else {"-o": out}),
        texts=("-o", "--template", "--json"),
    )
    training = step_of(model, ModelOptions(**options))
    if not isinstance(training, po.Training):
        raise ModelError(f"{model}: a problem file has no operators to measure. Give an ONNX model.")
    if template is not None:
        text = profile_csv.template(training.graph)
        rows = text.count("\n") - 1
        write_text(text, template, option="--template")
        write_json({"template": template, "rows": rows}, json)
        say(f"{template}: {rows} rows to fill in; then --from-csv {template}", unless=[template, json])
        return 0
    older = load_profile(out) if out != "-" and os.path.isfile(out) and os.path.getsize(out) else None
    emulated = None
    if on is not None:
        training = training.on("c")
        with doing(f"counting instructions on {on}") as progress:
            emulated = training.profile_on(on, clock_hz=clock_hz, told=progress)
        measured = emulated.profile
    elif from_csv is not None:
        measured = profile_csv.from_csv(from_csv, training.graph, power_w=power_w, dma=dma)
    else:
        from poetopt.backends.onnxruntime.profiling import machine

        if older is not None:  # fail before measuring for seconds
            older.check_machine(machine(), out)
        with doing("measuring each kind of operator, and the storage"):
            measured = training.profile(power_w=power_w, workdir=workdir)
    if older is not None:
        older.check_machine(measured.about.get("machine"), out)
    merged = measured if older is None else older.merged(measured)
    write_text(merged.text(), out, option="-o")
    document = profile_document(training.graph, measured, merged)
    write_json(document | ({} if emulated is None else emulated.to_dict()), json)
    say(profile_text(training.graph, measured, merged, out), unless=[out, json])
    if emulated is not None:
        say(instructions_text(emulated), unless=[out, json])
    return 0
