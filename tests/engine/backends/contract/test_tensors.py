"""Facts of tensors, against plain recomputation."""

from __future__ import annotations

import math
import statistics
import struct
from typing import Any

import pytest
from support.frameworks import LACKS
from support.watch import Watch
from support.worlds import World

from adbg.engine.errors import CommandError
from adbg.engine.types import ValueState

VALUES = [[1.5], [3.0, -4.0, 0.0, 0.5, 2.0, -0.25], [0.0] * 5, [float(n % 7) for n in range(1000)]]
INF, NAN = math.inf, math.nan


def test_what_is_a_tensor(world: World) -> None:
    backend = world.backend
    assert backend.is_tensor(world.tensor([1.0]))
    assert not any(backend.is_tensor(value) for value in (None, 1.0, [1.0], "text"))


def test_meta(world: World) -> None:
    meta = world.backend.meta(world.tensor([1.0] * 6, (2, 3)))
    assert (meta.shape, meta.dtype, meta.device, meta.nbytes, meta.numel) == ((2, 3), "f32", "cpu", 24, 6)
    assert not meta.requires_grad and meta.state is ValueState.OK and not meta.note
    undefined = world.backend.meta(None)
    assert undefined.shape is None and undefined.state is ValueState.UNDEFINED


@pytest.mark.needs("layouts")
def test_the_layout(world: World) -> None:
    assert world.backend.meta(world.tensor([1.0])).layout == "strided"


@pytest.mark.parametrize("values", VALUES)
def test_norm_and_statistics_of_finite_values(world: World, values: list[float]) -> None:
    tensor, exact = world.tensor(values), pytest.approx
    norm = math.sqrt(math.fsum(value * value for value in values))
    assert world.backend.norm(tensor) == exact(norm)
    assert world.backend.nonfinite(tensor) == (0, 0)
    stats = world.backend.stats(tensor, bins=8)
    assert (stats.numel, stats.sampled) == (len(values), None)
    assert (stats.min, stats.max) == (min(values), max(values))
    assert stats.mean == exact(math.fsum(values) / len(values), abs=1e-12) and stats.norm == exact(norm)
    if len(values) > 1:
        assert stats.std == exact(statistics.stdev(values), abs=1e-12)
    signs = (stats.negative, stats.zero, stats.positive)
    assert signs == (sum(v < 0 for v in values), values.count(0.0), sum(v > 0 for v in values))
    assert (stats.nan, stats.neg_inf, stats.pos_inf) == (0, 0, 0)
    assert sum(stats.histogram) == len(values) and len(stats.histogram) == 8


def test_what_is_not_finite_is_counted_and_left_out(world: World) -> None:
    tensor = world.tensor([NAN, 1.0, INF, -INF, 3.0, NAN, INF])
    assert world.backend.nonfinite(tensor) == (2, 3)
    counted = world.backend.helpers()["nonfinite"](tensor)
    assert counted == (2, 3) and counted and repr(counted) == "(2, 3)", (
        "in an expression it is true where there are any"
    )
    assert not math.isfinite(world.backend.norm(tensor))
    stats = world.backend.stats(tensor)
    assert (stats.nan, stats.neg_inf, stats.pos_inf) == (2, 1, 2)
    assert (stats.min, stats.max, stats.mean) == (1.0, 3.0, 2.0)
    assert (stats.negative, stats.zero, stats.positive) == (0, 0, 2)


def test_large_finite_values_are_finite(world: World) -> None:
    """Squared in their own type they overflow."""
    tensor = world.tensor([world.large, world.large])
    assert world.backend.nonfinite(tensor) == (0, 0)
    assert world.backend.norm(tensor) == pytest.approx(world.large * math.sqrt(2), rel=1e-6)


def test_whether_all_of_several_are_finite(world: World) -> None:
    """What is not known may be; what is not finite never is."""
    good, finite = [world.tensor([1.0, -2.0]), world.tensor([0.0])], world.backend.keeping.finite
    for bad in (NAN, INF, -INF):
        for place in range(3):
            assert not finite([*good[:place], world.tensor([3.0, bad, 1.0]), *good[place:]]), bad


@pytest.mark.parametrize(
    ("text", "expected", "shape"),
    [
        ("", [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]], (3, 4)),
        ("[1]", [[4.0, 5.0, 6.0, 7.0]], (4,)),
        ("[1:, ::2]", [[4.0, 6.0], [8.0, 10.0]], (2, 2)),
        ("[..., -1]", [[3.0, 7.0, 11.0]], (3,)),
        ("[2, 3]", [[11.0]], ()),
    ],
)
def test_windows_are_slices(world: World, text: str, expected: list[list[float]], shape: tuple[int, ...]) -> None:
    tensor = world.tensor([float(n) for n in range(12)], (3, 4))
    window = world.backend.window(tensor, text, 8, 8)
    assert window.shape == shape and window.reduced == "exact"
    if text != "[..., -1]":  # one number a row or one row: either shows it
        assert [list(row) for row in window.values] == expected
    assert [number for row in window.values for number in row] == [number for row in expected for number in row]


def test_more_than_two_dimensions_show_their_first_plane(world: World) -> None:
    window = world.backend.window(world.tensor([float(n) for n in range(24)], (2, 3, 4)), "", 8, 8)
    assert window.slice == "[0, 0:3, 0:4]" and window.values[2] == (8.0, 9.0, 10.0, 11.0)


@pytest.mark.needs("reductions")
def test_windows_that_do_not_fit_show_block_maxima(world: World) -> None:
    values = [float(-n) for n in range(64)]
    values[9] = NAN
    window = world.backend.window(world.tensor(values, (8, 8)), "", 2, 2)
    assert window.reduced == "max|x| per block of 4x4"
    first, *rest = [number for row in window.values for number in row]
    assert math.isnan(first) and rest == [31.0, 59.0, 63.0]


@pytest.mark.parametrize("text", ["[5]", "[0, 0, 0]", "[a]", "[0:1:2:3]", "[::-1]", "[0"])
def test_a_bad_slice_is_refused(world: World, text: str) -> None:
    with pytest.raises(CommandError):
        world.backend.window(world.tensor([1.0] * 4, (2, 2)), text, 8, 8)


def test_numbers_and_tensors_are_adopted(world: World) -> None:
    old = world.tensor([1.0, 2.0])
    for new, expected in ((3, [3.0, 3.0]), (0.5, [0.5, 0.5]), (world.tensor([7.0, 8.0]), [7.0, 8.0])):
        adopted = world.backend.adopt(old, new, "grad_outputs[0]")
        assert world.backend.meta(adopted).shape == (2,) and world.values(adopted) == expected
    assert world.values(old) == [1.0, 2.0]


@pytest.mark.needs("dtypes")
def test_another_dtype_is_refused(world: World) -> None:
    wide = world.wide(world.tensor([1.0, 2.0]))
    with pytest.raises(CommandError, match=r"grad_outputs\[0\] has dtype f32 and the new value has f64"):
        world.backend.adopt(world.tensor([1.0, 2.0]), wide, "grad_outputs[0]")


@pytest.mark.needs("versions")
def test_a_change_in_place_moves_the_version(world: World) -> None:
    tensor = world.tensor([1.0, 2.0])
    before = world.backend.version_of(tensor)
    tensor.add_(world.tensor([1.0, 1.0]))
    assert isinstance(before, int) and world.backend.version_of(tensor) == before + 1
    assert world.backend.version_of("text") is None


@pytest.mark.needs("versions")
def test_the_gradient_of_a_parameter(world: World) -> None:
    leaf = world.leaf([1.0, 2.0])
    assert world.backend.gradient_of(leaf) is None
    world.backward(world.total(world.scale(leaf, 3.0)))
    assert world.values(world.backend.gradient_of(leaf)) == [3.0, 3.0]


def test_texts_and_helpers(world: World) -> None:
    tensor = world.tensor([1.5, 2.5])
    assert "1.5" in world.backend.text(tensor) and world.backend.text("text") == "'text'"
    helpers = world.backend.helpers()
    assert helpers["norm"](tensor) == pytest.approx(math.sqrt(8.5))
    assert helpers["nonfinite"](tensor) == (0, 0) and helpers["stats"](tensor).max == 2.5
    assert not helpers["nonfinite"](tensor), "a condition `if nonfinite(t)` does not stop there"
    assert world.backend.memory()["rss"] > 0


@pytest.mark.needs("grad_modes")
def test_expressions_see_the_grad_mode_of_user_code(world: World, watching: Any) -> None:
    """In a hook too, where the framework records nothing; afterwards all is as it was."""
    watch = Watch()
    recorded: list[bool] = []

    def records() -> bool:
        return world.records(world.scale(world.leaf([1.0]), 2.0))

    def before(call: Any, key: int, outs: Any) -> None:
        outside = records()
        with world.backend.user_mode():
            recorded.append(records())
        recorded.append(outside == records())

    watch.before = before
    with watching(watch):
        world.backward(world.total(world.leaf([1.0, 2.0])))
    assert recorded == [True, True] * 2 and records()


def test_capabilities_are_those_that_the_suite_leaves_out(world: World) -> None:
    lacking = {name for name in world.backend.capabilities.__dataclass_fields__ if (world.name, name) in LACKS}
    off = {n for n in world.backend.capabilities.__dataclass_fields__ if not getattr(world.backend.capabilities, n)}
    assert off == lacking
    told = world.backend.doctor()
    assert told[0].status == "ok" and told[0].what == world.name
    reasons = {line.what: line.detail for line in told if line.status == "off"}
    assert all(reasons[name.replace("_", " ")] for name in off)


@pytest.mark.needs("grad_modes")
def test_an_adopted_tensor_is_not_recorded(world: World, watching: Any) -> None:
    """In a hook of a backward that makes no graph."""
    watch = Watch()
    adopted: list[Any] = []

    def before(call: Any, key: int, outs: Any) -> None:
        with world.backend.user_mode():
            new = [world.leaf([7.0, 8.0]), world.scale(world.leaf([7.0, 8.0]), 1.0), 3.0]
        adopted.extend(world.backend.adopt(world.tensor([1.0, 2.0]), value, "grad_outputs[0]") for value in new)

    watch.before = before
    with watching(watch):
        world.backward(world.total(world.leaf([1.0, 2.0])))
    assert len(adopted) == 6 and not any(map(world.records, adopted))
    assert not any(world.backend.meta(value).requires_grad for value in adopted)
    assert world.backend.meta(world.leaf([1.0])).requires_grad


@pytest.mark.needs("sampling")
def test_statistics_of_many_elements_are_of_a_sample(world: World) -> None:
    most = 1_000_000
    exact = world.backend.stats(world.tensor([1.0] * most))
    assert (exact.numel, exact.sampled) == (most, None)
    many = world.tensor([0.0] * most + [5.0] * most)
    sample = world.backend.stats(many)
    assert sample.numel == 2 * most and sample.sampled is not None and most // 4 <= sample.sampled <= most
    assert sample.zero + sample.positive == sample.sampled and sample.mean == pytest.approx(2.5, rel=0.01)
    exact = world.backend.stats(many, exact=True)
    assert (exact.sampled, exact.zero, exact.positive, exact.mean) == (None, most, most, 2.5)


@pytest.mark.parametrize("values", [*VALUES, [NAN, -0.0, INF]])
def test_bits_are_those_of_memory(world: World, values: list[float]) -> None:
    pieces: list[bytes] = []
    world.backend.feed_bits(world.tensor(values), lambda piece: pieces.append(bytes(piece)))
    assert b"".join(pieces) == struct.pack(f"{len(values)}f", *values)
