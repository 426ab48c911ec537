"""A storage that is too small: the command line says so, and nothing is written."""

from __future__ import annotations

from pathlib import Path

from tests.cli.support import Runner


def board(storage_bytes: int) -> str:
    """A device with a DMA engine and so much storage in blocks of 512 bytes."""
    figures = {
        "ram_bytes": (2e9, "B"),
        "flop_per_s": (1e9, "FLOP/s"),
        "active_power_w": (1.0, "W"),
        "page_in_latency_s": (1e-3, "s"),
        "page_in_bytes_per_s": (20e6, "B/s"),
        "page_out_latency_s": (3e-3, "s"),
        "page_out_bytes_per_s": (8e6, "B/s"),
        "storage_power_w": (0.5, "W"),
        "transfer_cpu_power_w": (0.0, "W"),
        "storage_bytes": (float(storage_bytes), "B"),
        "storage_block_bytes": (512.0, "B"),
    }
    known = 'kind = "estimate"\nsource = "a guess"\n'
    text = f'name = "board"\ndescription = "a board"\n[dma]\nvalue = true\n{known}'
    return text + "".join(f'[figures.{k}]\nvalue = {v}\nunit = "{u}"\n{known}' for k, (v, u) in figures.items())


def test_what_does_not_fit_the_storage_is_no_schedule(run: Runner, tmp_path: Path) -> None:
    device, plan = tmp_path / "board.toml", tmp_path / "plan.json"
    device.write_text(board(2_000))
    command = ("solve", "bert-tiny", "--device", device, "--ram", "45%", "--no-remat", "--threads", "1", "-o", plan)
    run(*command).assert_one_message("no schedule exists", "storage that held more than 2.00 kB", code=3)
    assert not plan.exists()
