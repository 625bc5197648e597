"""What Paddle itself counts below some roots is what a walk finds, and no breakpoint by name is missed for it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from paddle import nn  # noqa: E402
from paddle.autograd import PyLayer  # noqa: E402

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.common.private_use import PrivateUse  # noqa: E402
from adbg.engine.backends.paddle.graph import PaddleGraph, Services  # noqa: E402
from adbg.engine.backends.paddle.native import census as census_module  # noqa: E402
from adbg.engine.backends.paddle.native import symbols  # noqa: E402
from tests.support.paddle_watch import Watch, watching  # noqa: E402

pytestmark = pytest.mark.skipif(census_module.census() is None, reason="this Paddle's graphs cannot be counted")


class Double(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, d):
        return d * 2.0


def leaf(*shape):
    tensor = paddle.full(list(shape), 0.5)
    tensor.stop_gradient = False
    return tensor


def chain():
    x = leaf(4, 4)
    return [(paddle.tanh(x @ x) * 0.9 + x).mean()]


def shared_roots():
    """The second root is below the first, the third is apart, the fourth is the third again."""
    x, y = leaf(3), leaf(3)
    below = x.exp()
    apart = (y * y).sum()
    return [(below * below).sum(), below, apart, apart]


def layers():
    model = nn.Sequential(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    return [nn.functional.cross_entropy(model(paddle.ones([2, 1, 8, 8])), paddle.to_tensor([0, 1]))]


def lists():
    parts = paddle.split(leaf(6), 3)
    return [paddle.concat([parts[0], parts[2].sin(), paddle.stack([parts[1], parts[1]])[0]]).sum()]


def graph_of(roots) -> PaddleGraph:
    return PaddleGraph(roots, Services(None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [chain, shared_roots, layers, lists])
@pytest.mark.parametrize("unique_names", [False, True])
def test_count_and_kinds_are_those_of_a_walk(make: Callable[[], list], unique_names: bool) -> None:
    paddle.set_flags({"FLAGS_enable_unique_name": unique_names})
    try:
        roots = make()
        graph_of(roots).kinds()  # its classes are learnt
        graph = graph_of(roots)
        survey = graph.survey()
        assert survey is not None
        assert survey.count == graph.count()
        assert not graph._nodes, "nothing was walked for it"
        kinds = graph.kinds()
        assert survey.count == len(graph.walk())
        assert {graph.name(key) for key in range(len(graph.walk()))} <= kinds
        if not unique_names:
            assert {name.removesuffix("Final") for name in kinds} == {
                name.removesuffix("Final") for name in graph.names()
            }
    finally:
        paddle.set_flags({"FLAGS_enable_unique_name": False})


def test_pylayers_are_left_to_the_walk() -> None:
    for make in (lambda x: Double.apply(x).sum(), lambda x: Double.apply(x)):
        for _ in range(2):
            graph = graph_of([make(leaf(2))])
            assert "GradNodePyLayer_Double" in graph.kinds() and graph._nodes


def test_more_roots_than_fit_are_left_to_the_walk() -> None:
    x = leaf(2)
    roots = [x * float(k) for k in range(64)]
    graph = graph_of(roots)
    assert graph.survey() is None and graph.kinds() == {"ScaleGradNode", "GradNodeAccumulation"}
    assert graph_of(roots[:63]).survey() is not None


def test_a_leaf_and_a_constant_are_no_roots() -> None:
    assert graph_of([leaf(2), paddle.ones([2]), None]).root_nodes == []


class Walks(Watch):
    """Notes which calls were walked in order to be hooked."""

    def backward_begin(self, call):
        seen = self._seen(call)
        seen.hooked = call.hook(self.plan)
        assert call.count() == 4
        seen.note = "walked" if call._nodes else ""


def test_a_node_that_comes_in_a_later_step_is_not_missed() -> None:
    """The steps before it are passed without a walk, those after it too."""
    watch = Walks(HookPlan(name=lambda name: name == "SinGradNode"))
    w = leaf(4)
    with watching(watch):
        for step in range(12):
            y = w * 2.0
            loss = (y.sin() if step in (5, 9) else y.exp()).sum()
            loss.backward()
    assert [step for step, seen in enumerate(watch.calls) if seen.begun == ["SinGradNode#1"]] == [5, 9]
    assert {step for step, seen in enumerate(watch.calls) if seen.note} <= {0, 5, 9}, "new classes and hits only"


def test_surveys_leave_nothing_behind() -> None:
    roots = layers()
    graph_of(roots).kinds()
    census = census_module.census()
    native = symbols.native()
    assert census is not None and native is not None
    address = native.leaf_node(roots[0])

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(2000):
        census.survey([address])
    gc.collect()
    before = resident()
    for _ in range(20_000):  # 20 nodes each: 10 MB if the maps were kept
        census.survey([address])
    assert resident() - before < 2 << 20


def test_a_check_that_fails_means_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "FREE", "_ZN3egr13no_such_thingEv")
    monkeypatch.setattr(census_module, "_census", [])
    use = census_module._USE
    monkeypatch.setattr(census_module, "_USE", PrivateUse(use.name, use.purpose, True))
    assert census_module.census() is None
    assert not census_module._USE.present and "libpaddle does not export" in census_module._USE.problem
    graph = graph_of(chain())
    assert graph.survey() is None and "TanhGradNode" in graph.kinds() and graph.count() == len(graph.walk())
