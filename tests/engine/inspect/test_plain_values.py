"""Answers as JSON values: compared with ``json`` itself where it can write the value."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import pytest
from fake_backend import FakeBackend
from support.frameworks import on_frameworks

from adbg.engine.inspect.plain_values import ITEMS, LEVELS, plain_value


class Pair(NamedTuple):
    first: int
    second: str


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, 2.5, "text", [], [1, [2, [3, {"a": [4]}]]], (1, "b", None), {"a": {"b": (1, 2)}},
        {1: "one", None: 0}, Pair(1, "x"),
    ],
)  # fmt: skip
def test_what_json_can_say_is_said_as_json_does(value: Any) -> None:
    ours = plain_value(value)
    if isinstance(value, dict) and 1 in value:
        assert ours == {"1": "one", "None": 0}
    else:
        assert json.dumps(ours) == json.dumps(value)


def test_sets_become_lists() -> None:
    assert sorted(plain_value({3, 1, 2})) == [1, 2, 3]


def test_numbers_that_are_not_finite_stay_numbers_until_the_wire() -> None:
    nan, inf = plain_value([float("nan"), float("inf")])
    assert math.isnan(nan) and inf == math.inf


class Sly:
    """Runs code of the program's for whoever looks at it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    def __iter__(self) -> Any:
        raise AssertionError("it was iterated over")


@pytest.mark.parametrize("value", [object(), [1, object()], {"a": object()}, {(1, 2): 3}, "x" * 30_000, 1 << 2000])
def test_what_json_cannot_say_is_none(value: Any) -> None:
    assert plain_value(value) is None


def test_no_code_of_the_program_runs() -> None:
    assert plain_value(Sly()) is None and plain_value([1, Sly()]) is None


def test_what_is_too_large_or_refers_to_itself_is_none() -> None:
    assert plain_value(list(range(ITEMS - 1))) == list(range(ITEMS - 1))
    assert plain_value(list(range(ITEMS + 1))) is None
    loop: list[Any] = []
    loop.append(loop)
    assert plain_value(loop) is None
    deep: Any = 1
    for _ in range(LEVELS + 1):
        deep = [deep]
    assert plain_value(deep) is None


@on_frameworks(frameworks=("torch", "paddle"))
def test_tensors_and_statistics(framework: str) -> None:
    fw = pytest.importorskip(framework)
    if framework == "torch":
        from adbg.engine.backends.torch.backend import TorchBackend as Backend
    else:
        from adbg.engine.backends.paddle.backend import PaddleBackend as Backend  # type: ignore[assignment]
    backend = Backend()
    tensor = fw.to_tensor([[1.0, -2.0], [0.0, 4.0]]) if framework == "paddle" else fw.tensor([[1.0, -2.0], [0.0, 4.0]])
    assert plain_value([tensor, tensor.sum(), 3], backend) == [{"shape": [2, 2], "dtype": "f32"}, 3.0, 3]
    stats = plain_value(backend.stats(tensor), backend)
    assert (stats["numel"], stats["min"], stats["max"], stats["mean"]) == (4, -2.0, 4.0, 0.75)
    assert (stats["negative"], stats["zero"], stats["positive"], stats["nan"]) == (1, 1, 2, 0)
    assert json.loads(json.dumps(stats)) == stats


def test_the_fake_framework_too() -> None:
    backend = FakeBackend()
    assert plain_value([1, 2], backend) == [1, 2]
