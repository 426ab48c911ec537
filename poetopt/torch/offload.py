"""Offloading of a step's tensors: to the host's memory or, for a step on a CPU, to files.

A file has no name, so that it disappears with its tensor, however the process ends. Imports torch: only
`po.torch.compile` and `po.torch.plan` import it.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

import torch

from poetopt.graph.problem import Transfers
from poetopt.torch.joint import Joint, tensors_of
from poetopt.torch.timing import apart, quickest
from poetopt.util.errors import OutputError
from poetopt.util.units import show_bytes

OUT_BYTES_PER_S, IN_BYTES_PER_S, CALL_S = 1e9, 2e9, 5e-5
"""Assumed costs of a transfer without measurement; the last one is the fixed cost of a call."""
TRANSFERS: dict[tuple[int, torch.device, str], tuple[float, float]] = {}
"""Measured seconds out and in, by bytes, device and folder, of this process."""


def _out(x: torch.Tensor, folder: str) -> torch.Tensor:
    """Copy a tensor to the host's memory or, from there, to a file in a folder. Raises OutputError if that fails."""
    if x.device.type != "cpu":
        pinned = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, pin_memory=True)
        return pinned.copy_(x)
    count = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    if not count:
        return torch.empty_like(x)
    flat = x.as_strided((count,), (1,))
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(memoryview(flat.view(torch.uint8).numpy()))
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0)
    except OSError as error:
        raise OutputError(
            f"{folder}: a step's tensor of {show_bytes(flat.nbytes)} can't be put there: {error.strerror}. "
            "Free some space, or give another folder with offload=."
        ) from error
    return torch.frombuffer(mapped, dtype=x.dtype).as_strided(x.shape, x.stride())


def _out_of_size(x: torch.Tensor, folder: str) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")


def _in_of_size(held: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device=device)


def _in(held: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy the result of `_out` back to a device."""
    return _in_of_size(held, device).copy_(held)


page_out: Any = torch.library.custom_op("poetopt::page_out", _out, mutates_args=())
page_in: Any = torch.library.custom_op("poetopt::page_in", _in, mutates_args=())
page_out.register_fake(_out_of_size)
page_in.register_fake(_in_of_size)
PAGE_OUT, PAGE_IN = torch.ops.poetopt.page_out.default, torch.ops.poetopt.page_in.default


def moves(joint: Joint, folder: str, measure: bool) -> list[Transfers]:
    """Return the cost of moving each storage, in seconds and as many joules; timed once in a process if requested.

    Storages with other owners cost more than ten steps, because moving them frees nothing.
    """
    devices = {t: tensors_of(node)[0].device for node, t in joint.held.items()}
    shared = {joint.held[node] for node in joint.kept if node in joint.held and node not in joint.backward_outputs}
    prohibitive = 10 * sum(step.time_s for step in joint.steps) + 1.0
    return [
        _transfers(size, devices[t], folder, measure)
        if size and t in devices and t not in shared
        else Transfers(prohibitive, prohibitive, prohibitive, prohibitive)
        for t, size in enumerate(joint.sizes)
    ]


def _transfers(nbytes: int, device: torch.device, folder: str, measure: bool) -> Transfers:
    out_s, in_s = CALL_S + nbytes / OUT_BYTES_PER_S, CALL_S + nbytes / IN_BYTES_PER_S
    if measure:
        key = nbytes, device, folder
        if key not in TRANSFERS:
            with apart():
                x = torch.ones(nbytes, dtype=torch.uint8, device=device)
                held = page_out(x, folder)
                TRANSFERS[key] = quickest(lambda: page_out(x, folder)), quickest(lambda: page_in(held, device))
        out_s, in_s = TRANSFERS[key]
    return Transfers(in_s, in_s, out_s, out_s)
