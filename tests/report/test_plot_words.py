"""What pictures of methods say without colour: names of bands, ticks, styles."""

from __future__ import annotations

import itertools

import pytest

from poetopt.report.plots import STYLES, logarithmic


@pytest.mark.parametrize("values", [[0.467], [2.85, 4.5], [0.196, 7.69], [3.9, 5.1, 18.0]])
def test_a_logarithmic_axis_of_few_decades_has_labels_between_its_powers(values: list[float]) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.add_subplot()
    axes.plot(range(len(values)), values)
    logarithmic(axes, values)
    bottom, top = axes.get_ylim()
    ticks = [tick for tick in axes.yaxis.get_majorticklocs() if max(bottom, 0.0) < tick <= top]
    assert len(ticks) >= 3
    assert {axes.yaxis.get_major_formatter()(tick) for tick in ticks} == {f"{tick:.6g}" for tick in ticks}


def test_methods_differ_without_their_colours() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        return (0.299 * red + 0.587 * green + 0.114 * blue) / 255

    for first, second in itertools.combinations(STYLES.values(), 2):
        assert first[1] != second[1]
        assert first[2] != second[2] or abs(lightness(first[0]) - lightness(second[0])) > 0.15
    assert max(lightness(colour) for colour, _, _ in STYLES.values()) < 0.75
