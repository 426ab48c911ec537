"""How long scaled axes become: onnxruntime multiplies in float32, ONNX's shape inference in float64.

Exporters write the ratio of two lengths as a float32, which may lie just below it: 7/5 is 1.39999998, and five elements
become 6 by the one and 7 by the other. What runs decides, so such a Resize is given the lengths themselves. Its scales
stay what they are: onnxruntime divides the lengths in float32. Where another axis has a scale that is no such ratio,
the one that is too small becomes the next larger float32; nearest neighbours could be others then, and stay as they
are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def lengths(before: Sequence[int], scales: Floats) -> list[int]:
    """What onnxruntime makes of axes of these lengths."""
    return [int(np.float32(length) * scale) for length, scale in zip(before, scales, strict=True)]


def agreed(before: Sequence[int], scales: Floats, *, nearest: bool) -> NDArray[np.int64] | Floats | None:
    """Sizes (int64), or scales (float32), by which both come to the same; None where these scales may stay."""
    after = lengths(before, scales)
    short = [int(np.floor(n * float(s))) != m for n, s, m in zip(before, scales, after, strict=True)]
    if not any(short):
        return None
    ratios = [np.float32(m) / np.float32(n) for n, m in zip(before, after, strict=True)]
    if all(ratio == scale for ratio, scale in zip(ratios, scales, strict=True)):
        return np.array(after, np.int64)
    if nearest:
        return None
    return np.where(short, np.nextafter(scales, np.float32(np.inf)), scales).astype(np.float32)
