"""What random nodes draw in a step, so that a training that is resumed goes on with the same numbers.

A runtime's generator can't be read or set, only seeded when its node is made ready. So it is seeded anew every `WINDOW`
steps: to go on behind any number of steps takes at most as many draws.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

from poetopt.graph import Node

WINDOW = 256
"""Steps for which one seed lasts."""
_SEEDS = 2**20


def reseeded(node: Node, window: int) -> Node:
    """A random node as it draws in a window of steps; in the first one (0), by its own seed."""
    if not window:
        return node
    own = node.attributes.get("seed", node.name)
    seed = 1 + zlib.crc32(f"{own} {window}".encode()) % _SEEDS
    return replace(node, attributes={**node.attributes, "seed": seed if node.op_type == "Dropout" else float(seed)})
