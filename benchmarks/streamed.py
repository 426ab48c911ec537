"""Steps in less RAM than their largest operator takes: least energy where operators may stream operands chunk by chunk.

    .venv/bin/python -m benchmarks.streamed [--only SUBSTRING]... [--least] [--output FILE.md]

Each cell runs in a fresh process, as a user would: `po.solve(network, batch=1, device=..., total_ram=...)`. Overhead is
energy above one plain compute of each operator; seconds include imports and reading the model. `--least` measures, for
each network, the least RAM for all of the step that is known, and what no step undercuts (`poetopt inspect`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cells import chosen, figure, put_rows, row_of
from benchmarks.whole_memory import HERE, Cell, kind

HEADING = (
    "| network | device | optimizer | total RAM, B | taken, B | overhead, J | bound, J | gap | wanted J | status, kind "
    "| streamed runs / page-ins / recomputes | bytes moved in chunks, beside | s a step | solved in s |"
)
LEAST = (
    "| network | operators | least total RAM known, B | none in less than, B | plain operators alone, B | wanted, B |"
)
TINY = ("ds-cnn", "resnet8", "autoencoder", "mobilenetv1-025")
WANTED = {"lenet": 24_000, **dict.fromkeys(TINY, 64_000), "bert-tiny": 128_000}
WANTED |= {"mobilenetv2-035": 141_000, "resnet18-cifar": 256_000, "mobilenetv2": 256_000}


def cells() -> Iterator[Cell]:
    """The table, in order."""
    for total, want_j in ((256_000, (0.0426, 0.2436, 0.4828)), (64_000, (0.3282, 0.5554, 0.8154))):
        for optimizer, joules in zip(("sgd", "momentum", "adam"), want_j, strict=True):
            yield Cell("lenet", "m4", "c", optimizer, total, 30, 1e-3, joules)
    yield Cell("lenet", "m4", "c", "sgd", 24_000, 30, 1e-3)
    for network in TINY:
        for total in (256_000, 64_000):
            yield Cell(network, "m4", "c", "sgd", total, 120, 1e-2)
        yield Cell(network, "m0", "c", "sgd", 32_000, 120, 1e-2)
    for total, joules in ((1_200_000, 69.26), (2_400_000, 65.0), (4_800_000, 58.5)):
        yield Cell("resnet18-cifar", "m4", "c", "sgd", total, 120, 1e-2, joules)
    for network in ("resnet18-cifar", "bert-tiny", "mobilenetv2-035"):
        yield Cell(network, "m4", "c", "sgd", 256_000, 120, 3e-2)


def least(network: str) -> str:
    """A row of the second table."""
    import poetopt as po
    from poetopt.report.inspection import needs

    problem = po.load(network, batch=1).differentiate(optimizer="sgd").cost("m4", parameters="paged")
    found, beside = needs(problem), problem.beside_bytes
    plain = max(map(problem.working_set_bytes, range(len(problem.operators)))) + problem.reserve_bytes
    known = "-" if found.least_ram_bytes is None else f"{found.least_ram_bytes + beside:,}"
    bound = f"{found.ram_bound_bytes + beside:,}"
    return f"| {network} | {len(problem.operators)} | {known} | {bound} | {plain + beside:,} | {WANTED[network]:,} |"


def line(cell: Cell, row: dict[str, Any]) -> str:
    """A row of the first table."""
    number = partial(figure, row)
    found = (
        cell.network,
        cell.device,
        cell.optimizer,
        f"{row['asked_total']:,}",
        number("total_ram_bytes", ",d"),
        number("overhead_j", ".6g"),
        number("overhead_bound_j", ".6g"),
        number("overhead_gap", ".3%"),
        "-" if cell.want_j is None else f"{cell.want_j:g}",
        kind(row),
        f"{row.get('streamed_runs')} / {row.get('page_ins')} / {row.get('recomputes')}",
        f"{number('bytes_streamed', ',d')}, {number('bytes_paged', ',d')}",
        number("makespan_s", ".3g"),
        f"{row['seconds']:.1f}",
    )
    return f"| {' | '.join(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cells whose text contains this; may be repeated")
    parser.add_argument("--least", action="store_true", help="the table of least RAM alone")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    arguments = parser.parse_args()
    if arguments.least:
        names = [name for name in WANTED if not arguments.only or name in arguments.only]
        put_rows(LEAST, map(least, names), arguments.output)
    else:
        put_rows(HEADING, map(partial(row_of, HERE, line), chosen(cells(), arguments.only)), arguments.output)


if __name__ == "__main__":
    main()
