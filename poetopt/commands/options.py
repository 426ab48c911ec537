"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="An .onnx file, a problem file (.json), or a zoo network (`poetopt zoo`)."),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="NAME|FILE", help="A device (`poetopt devices`), or a TOML file of one.")
]
BatchOption = Annotated[int | None, typer.Option("--batch", metavar="N", help="Batch size.", min=1)]
TrainOption = Annotated[
    list[str] | None,
    typer.Option("--train", metavar="PATTERN", help="Train only these parameters (fc.*); may be repeated."),
]
LossOption = Annotated[str, typer.Option("--loss", metavar="auto|cross-entropy|mse|none", help="The loss to attach.")]
OutputOption = Annotated[
    str | None,
    typer.Option("--output", metavar="NAME", help="The output that the loss is on, where there are several."),
]
DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME|FACTOR", help="250ms, 3h, or 1.5x one pass; default: none.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", help="Of the solver; 0: it chooses.", min=0)]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write one JSON object there; - is stdout.")
]


def patterns(train: list[str] | None) -> str | None:
    """Repeated `--train` options as one list."""
    return ",".join(train) if train else None
