"""What this machine calls itself: measurements carry it, so that those of two machines are never taken for one's."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path


def machine() -> str:
    """Processor, system and architecture in words."""
    return f"{_processor()}, {platform.system()} {platform.machine()}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return value.strip()
    return platform.processor() or "unknown processor"
