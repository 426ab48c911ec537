"""Fine-tune the last stage of a ResNet-18 on real data, inside a RAM budget that ordinary training doesn't fit.

    python docs/examples/finetune.py [STEPS]

The data are Fisher's Iris measurements of 150 flowers, which SciPy ships (it comes with poetopt; nothing is
downloaded). Each flower becomes a picture of 32 x 32: its sepal and its petal as two ellipses, drawn true to scale.
Only `layer4` and `fc` are trained, in 86 % of the RAM that ordinary training of them takes; each loss is compared,
bit by bit, with that of a step that keeps everything in RAM. The network starts from its seeded random weights, so
this shows a falling loss, not what a pretrained network would reach.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.io import arff

import poetopt as po

SPECIES = (b"Iris-setosa", b"Iris-versicolor", b"Iris-virginica")
PIXELS_A_CM = 4.0
"""The longest sepal has 7.9 cm, the widest one with the widest petal 6.9 cm: both fit 32 pixels."""


def flowers() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pictures [150, 3, 32, 32] of mean 0 and deviation 1, and species 0 to 2, in a fixed random order."""
    records, _ = arff.loadarff(str(Path(scipy.__file__).parent / "io/arff/tests/data/iris.arff"))
    pictures = np.stack([picture(*(float(record[k]) for k in range(4))) for record in records])
    labels = np.array([SPECIES.index(record[4]) for record in records], np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    pictures = (pictures - pictures.mean()) / pictures.std()
    return pictures[order].astype(np.float32), labels[order]


def picture(sepal_length: float, sepal_width: float, petal_length: float, petal_width: float) -> NDArray[np.float64]:
    """A sepal above a petal, lengths in cm: red, green and blue are sepal, petal and both."""
    y, x = np.mgrid[0:32, 0:32] + 0.5

    def ellipse(row: float, length: float, width: float) -> NDArray[np.float64]:
        a, b = length * PIXELS_A_CM / 2, width * PIXELS_A_CM / 2
        inside: NDArray[np.float64] = (((x - 16) / a) ** 2 + ((y - row) / b) ** 2 <= 1).astype(np.float64)
        return inside

    sepal, petal = ellipse(10, sepal_length, sepal_width), ellipse(25, petal_length, petal_width)
    return np.stack([sepal, petal, sepal + petal])


def main(steps: int = 60) -> float:
    """Fine-tune, print what happened, and return by how much the loss fell."""
    pictures, labels = flowers()
    problem = po.load("resnet18-cifar", train="layer4*,fc*").differentiate().cost("a72")
    report = po.solve(problem, ram="86%")
    print(report)
    ended = po.train(report, steps, 0.01, data={"input": pictures, "labels": labels}, check=1)
    tenth = max(1, steps // 10)
    first, last = np.mean(ended.losses[:tenth]), np.mean(ended.losses[-tenth:])
    print(f"\n{steps} steps on {len(labels)} flowers: mean loss of the first tenth {first:.4f}, of the last {last:.4f}")
    print(f"bit for bit the losses of training without a schedule: {'yes' if ended.bit_identical else ended.message}")
    print(f"took {ended.measured_peak_bytes or ended.arena_bytes:,} B of a budget of {ended.budget_bytes:,} B")
    if not ended.ok:
        raise SystemExit(ended.message)
    return float(first - last)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
