"""Fresh memory filled with a value: by every name and way in which programs make some, bound before too. Witness: 5,
which memory has by nobody's chance, and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.frameworks import only_here

torch = pytest.importorskip("torch")

pytestmark = only_here("torch", "Paddle's ways lead to two functions of its core")

WAYS: dict[str, Callable[..., Any]] = {
    "torch.empty": torch.empty,
    "torch.empty_strided": lambda *size: torch.empty_strided(size, (size[1], 1)),
    "torch.empty_permuted": lambda *size: torch.empty_permuted(size, (0, 1)),
    "torch.empty_like": lambda *size: torch.empty_like(torch.ones(size)),
    "new_empty": lambda *size: torch.ones(1).new_empty(size),
    "torch.Tensor": torch.Tensor,
    "resize_": lambda *size: torch.ones(0).resize_(size),
    "last": lambda *size: torch.ones(0).resize_(1, *size, 1, memory_format=torch.channels_last).view(size),
    "half": lambda *size: torch.empty(size, dtype=torch.half),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [5.0, math.nan])
def test_fresh_memory_has_the_value(way: str, value: float) -> None:
    from adbg.engine.backends.torch.observing.functions import TorchProbe, apply_now

    probe = TorchProbe(apply_now())
    with probe.filled(value):
        made = WAYS[way](3, 4)
    assert made.shape == (3, 4)
    assert torch.equal(made.isnan(), torch.full((3, 4), math.isnan(value)))
    assert math.isnan(value) or torch.equal(made.double(), torch.full((3, 4), value, dtype=torch.double))


def test_what_was_there_stays() -> None:
    from adbg.engine.backends.torch.observing.functions import TorchProbe, apply_now

    with TorchProbe(apply_now()).filled(5.0):
        grown = torch.ones(4).resize_(6)
        assert torch.ones(3).tolist() == [1.0] * 3
        assert torch.empty(3, dtype=torch.long).shape == (3,)
    assert grown.tolist() == [1.0] * 4 + [5.0] * 2
