"""How many rounds of federated training each client can take: one sweep, and a division.

    pip install 'poetopt[dask]'
    python docs/examples/federated.py

In a round, a client trains once through its own samples and sends its weights. What it has for that is RAM beside its
parameters, joules for all rounds, and seconds for each. The sweep solves every device at every RAM once, whoever has
it; clients pick their rows. Sending is not counted: it takes the radio's joules, which are no part of a schedule.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import poetopt as po


@dataclass(frozen=True)
class Client:
    """One that takes part.

    device
        A name of the catalogue, or the path of a device file.
    ram_bytes
        That its schedule may take.
    joules
        For all of its rounds.
    samples
        That it trains on in a round.
    """

    name: str
    device: str
    ram_bytes: int
    joules: float
    samples: int


@dataclass(frozen=True)
class Share:
    """What a client can do; `rounds` is 0 where it can't take part, and `reason` says why."""

    client: Client
    round_j: float
    round_s: float
    rounds: int
    reason: str = ""


CLIENTS = (
    Client("camera", "rpi5", 6_000_000, 20_000, 5_000),
    Client("gateway", "rpi5", 3_000_000, 20_000, 5_000),
    Client("phone", "phone-a76", 6_000_000, 5_000, 20_000),
    Client("sensor", "esp32-s3", 3_000_000, 5_000, 200),
    Client("badge", "esp32-s3", 500_000, 5_000, 200),
)
BATCH = 8


def sweep_of(clients: Sequence[Client], model: str, batch: int = BATCH) -> str:
    """The sweep file: each device and each RAM that some client has."""
    devices = list(dict.fromkeys(client.device for client in clients))
    ram = list(dict.fromkeys(client.ram_bytes for client in clients))
    return (
        f'models = [{{ model = "{model}", batch = {batch} }}]\n'
        f'devices = {json.dumps(devices)}\nram = {json.dumps(ram)}\ntime_limit = "20s"\n'
    )


def shares(
    clients: Iterable[Client], rows: Iterable[Mapping[str, object]], round_limit_s: float, batch: int = BATCH
) -> list[Share]:
    """What each client can do with the plans of a sweep's rows, where a round may take so many seconds."""
    by_place = {(row["device"], row["ram_budget_bytes"]): row for row in rows}
    found = []
    for client in clients:
        row = by_place[client.device, client.ram_bytes]
        energy, seconds = row["energy_j"], row["makespan_s"]
        if not isinstance(energy, float) or not isinstance(seconds, float):
            found.append(Share(client, math.inf, math.inf, 0, f"{row['status']}: {row['reason']}"))
            continue
        steps = client.samples // batch
        round_j, round_s = steps * energy, steps * seconds
        late = f"a round takes more than {round_limit_s:g} s" if round_s > round_limit_s else ""
        found.append(Share(client, round_j, round_s, 0 if late else int(client.joules // round_j), late))
    return found


def table(found: Sequence[Share]) -> str:
    """For people."""
    lines = [f"{'client':8} {'device':10} {'RAM':>9} {'J a round':>10} {'s a round':>10} {'rounds':>7}"]
    for share in found:
        client = share.client
        costs = f"{share.round_j:10.1f} {share.round_s:10.1f}" if share.round_s < math.inf else f"{'-':>10} {'-':>10}"
        line = f"{client.name:8} {client.device:10} {client.ram_bytes:9,} {costs}"
        lines.append(f"{line} {share.rounds:7,}  {share.reason}".rstrip())
    return "\n".join(lines)


def main(
    clients: Sequence[Client] = CLIENTS, round_limit_s: float = 600, model: str = "resnet8", workers: int | None = None
) -> list[Share]:
    """Sweep, and print who can take part for how long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clients.toml"
        path.write_text(sweep_of(clients, model), encoding="utf-8")
        swept = po.sweep(path, workers=workers)
    found = shares(clients, swept.rows, round_limit_s)
    able = [share for share in found if share.rounds]
    print(table(found))
    print(f"\n{len(swept.rows)} plans for {len(found)} clients")
    if able:
        slowest = max(able, key=lambda share: share.round_s)
        least = min(able, key=lambda share: share.rounds)
        print(f"a round of all that can takes {slowest.round_s:.1f} s ({slowest.client.name} is the slowest)")
        print(f"all of them together: {least.rounds:,} rounds, then {least.client.name} has no joules left")
    return found


if __name__ == "__main__":
    main()
