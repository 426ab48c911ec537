"""The share of each room's lines that the tests run in their own processes, from a report of coverage in JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main() -> None:
    """Print a line for each room, and one for all of them."""
    lines, run = Counter[str](), Counter[str]()
    for name, found in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["files"].items():
        room = Path(name).parts[1]
        for part in (room if room.count(".") == 0 else ".", "all"):
            lines[part] += found["summary"]["num_statements"]
            run[part] += found["summary"]["covered_lines"]
    print("| room | lines | run by the tests |\n|---|---|---|")
    for part, count in lines.most_common():
        print(f"| {part} | {count:,} | {run[part] / count:.1%} |")


if __name__ == "__main__":
    main()
