"""`poetopt train`: epochs by a plan, checkpoints, and the trained network as ONNX."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from poetopt.cli import training
from poetopt.cli.console import without_parser
from poetopt.cli.options import (
    ALLOW_SYMLINKS,
    AUGMENT,
    METRICS,
    JsonOption,
    MeterOption,
    PlanArgument,
    PlanModelOption,
    sharing,
)


@sharing(METRICS, AUGMENT, ALLOW_SYMLINKS)
def train(
    plan: PlanArgument,
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Arrays by input names (.npz), a table (.csv), tokens (.npy, .bin, .txt), a folder of .npz files, or "
            "of a folder of images for each class.",
        ),
    ],
    out: Annotated[str, typer.Option("-o", "--out", metavar="TRAINED.onnx", help="Write the trained network there.")],
    epochs: Annotated[int, typer.Option(metavar="E", help="How often all of the data is gone through.", min=1)] = 1,
    lr: Annotated[float | None, typer.Option(metavar="X", help="The learning rate; default: 0.001.")] = None,
    lr_schedule: Annotated[
        str,
        typer.Option(
            metavar="[warmup:STEPS,]constant|cosine|step:EPOCHS:FACTOR",
            help="How it changes: step:10:0.1 takes a tenth every ten epochs, warmup:500 (or 5%) lets it rise first.",
        ),
    ] = "constant",
    momentum: Annotated[float | None, typer.Option(metavar="M", help="The momentum, where there is one.")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="W", help="The weight decay; default: the optimizer's.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="none|sgd|momentum|adam|adamw",
            help="The one that the plan has: it is part of the plan's step (solve --optimizer).",
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(metavar="C", help="Bound the norm of all gradients, where the plan's step clips."),
    ] = None,
    batch_order: Annotated[
        str,
        typer.Option(
            metavar="shuffle|sequential",
            help="Order of the rows; shuffled anew in each epoch, by --seed.",
        ),
    ] = "shuffle",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order.", min=0)] = 0,
    validate: Annotated[
        str | None, typer.Option(metavar="FILE|FOLDER", help="Data to evaluate after each epoch.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep the two newest whole checkpoints there.")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(metavar="N", help="A checkpoint every N steps; one after each epoch comes anyway.", min=1),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the newest checkpoint, if there is one, to the same bits; the data must be the same.",
        ),
    ] = False,
    keep: Annotated[
        str,
        typer.Option(
            metavar="best|last",
            help="The epoch whose parameters are written: of the least loss (of --validate, where given), or the last.",
        ),
    ] = "best",
    patience: Annotated[
        int | None, typer.Option(metavar="N", help="End after N epochs without a better one.", min=1)
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv|FOLDER",
            help="Rate and loss of each step, and validations, as they come; a folder: for TensorBoard.",
        ),
    ] = None,
    workdir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where to page and unpack to; default: a temporary folder.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare a step with ordinary training first, bit by bit, in a process of its own."
        ),
    ] = False,
    keep_training_form: Annotated[
        bool,
        typer.Option(
            "--keep-training-form",
            help="Leave BatchNormalization in training mode and Dropout in -o, to train on with it; default: the form "
            "of inference.",
        ),
    ] = False,
    meter: MeterOption = None,
    model: PlanModelOption = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="host|cortex-m0plus|cortex-m4|cortex-m7",
            help="Train in C by a plan of the runtime c, on this machine or an emulated board, and compare with "
            "onnxruntime's losses and parameters.",
        ),
    ] = None,
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Train a network for epochs by a plan, with nothing beside the schedule, and write it as ONNX.

    Ctrl-C ends it with a checkpoint, where there is a --checkpoint. With --on, all steps are one program in C, and what
    is written are the parameters that came out of it.
    """
    given = {name: value for name, value in locals().items() if name != "options"}
    return without_parser(training, {**given, **options})
