"""A module with what exporters lose: BatchNormalization in both modes, tied weights, buffers, what nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.later import later

torch = later("torch")
nn = later("torch.nn")


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: on so little work, several wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


IMAGE = (4, 3, 8, 8)
CLASSES = 5


def mixed() -> Any:
    """One layer of each kind; in training mode but for `frozen`, whose statistics stay."""

    class Mixed(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.bn = nn.BatchNorm2d(8, momentum=0.2)
            self.own = nn.BatchNorm2d(8, track_running_stats=False)
            self.frozen = nn.BatchNorm2d(8)
            self.drop = nn.Dropout(0.25)
            self.words = nn.Linear(8 * 16, 8 * 16, bias=False)
            self.again = nn.Linear(8 * 16, 8 * 16, bias=False)
            self.again.weight = self.words.weight
            self.fc = nn.Linear(8 * 16, CLASSES)
            self.aside = nn.Linear(3, 3)
            self.register_buffer("scale", torch.full((8, 1, 1), 1.5))

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.bn(self.conv(x))) * self.scale
            x = nn.functional.max_pool2d(self.frozen(self.own(x)), 2).flatten(1)
            return self.fc(self.drop(torch.tanh(self.again(torch.tanh(self.words(x))))))

    torch.manual_seed(0)
    module = Mixed().train()
    module.frozen.eval()
    nn.init.uniform_(module.frozen.running_var, 0.5, 2.0)
    for parameter in module.aside.parameters():
        parameter.requires_grad_(False)
    return module


def image() -> Any:
    """A batch."""
    return torch.randn(*IMAGE, generator=torch.Generator().manual_seed(1))


def labels() -> Any:
    """Its classes."""
    return torch.arange(IMAGE[0]) % CLASSES
