"""What a long run keeps of backwards that are over: nothing, with Python's collector off too. Figures are of real
Paddle, which leaks by itself where it is asked for a node, and where a post hook answers."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from paddle.autograd import PyLayer  # noqa: E402

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.paddle.native.grad_fn import node_of  # noqa: E402
from tests.support.paddle_watch import EVERY, Watch, watching  # noqa: E402

SIDE = 512  # a gradient of 1 MB
STEPS = 40


class Saving(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2.0

    @staticmethod
    def backward(ctx, d):
        return d * 2.0


def grown(step: Callable[[], None]) -> tuple[float, int]:
    """(MB, Python objects) that ``STEPS`` steps leave behind with the collector off."""
    for _ in range(5):
        step()
    gc.collect()
    gc.disable()
    try:
        objects, memory = len(gc.get_objects()), _resident()
        for _ in range(STEPS):
            step()
        return _resident() - memory, len(gc.get_objects()) - objects
    finally:
        gc.enable()


def _resident() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def checked(here: tuple[float, int], plainly: tuple[float, int]) -> None:
    """A PyLayer of Paddle's leaves 8 objects a step to the collector by itself."""
    memory, objects = here[0] - plainly[0], here[1] - plainly[1]
    assert memory < STEPS / 4 and objects < STEPS, f"{memory:.1f} MB and {objects} objects in {STEPS} steps"


def quiet(plan: HookPlan) -> Watch:
    """A sink that keeps nothing."""
    watch = Watch(plan)
    watch.node_begin = lambda call, key, outs: None
    watch.node_end = lambda call, key, ins, outs: ins
    watch.backward_begin = lambda call: call.hook(plan)
    watch.backward_end = lambda call, error: None
    return watch


@pytest.mark.parametrize("plan", [EVERY, HookPlan(screen=True), HookPlan(name=lambda name: name == "TanhGradNode")])
@pytest.mark.parametrize("entry", ["backward", "grad"])
def test_nothing_of_a_backward_stays(plan: HookPlan, entry: str) -> None:
    x = paddle.full([SIDE, SIDE], 0.5)
    x.stop_gradient = False
    layer = paddle.nn.Linear(SIDE, SIDE)

    def step() -> None:
        loss = Saving.apply(paddle.tanh(layer(paddle.tanh(x)))).sum()
        if entry == "grad":
            paddle.grad([loss], [x])
        else:
            loss.backward()
            x.clear_grad()
            layer.clear_gradients()

    plainly = grown(step)
    with watching(quiet(plan), stacks=entry == "backward"):  # else calls of Layers are kept, 50,000 at most
        checked(grown(step), plainly)


def test_an_unarmed_run_with_stacks_keeps_no_graph() -> None:
    x = paddle.full([SIDE, SIDE], 0.5)
    x.stop_gradient = False
    layer = paddle.nn.Sequential(paddle.nn.Tanh(), paddle.nn.Tanh())

    def step() -> None:
        layer(Saving.apply(x)).sum().backward()
        x.clear_grad()

    plainly = grown(step)
    with watching(Watch(), armed=False, stacks=True):
        checked(grown(step), plainly)


def test_a_node_that_was_looked_at_dies_with_its_graph() -> None:
    died = []

    class Tell:
        def __del__(self) -> None:
            died.append(True)

    class Telling(PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.tell = Tell()
            return x * 2.0

        @staticmethod
        def backward(ctx, d):
            return d

    x = paddle.ones([2])
    x.stop_gradient = False
    node_of(paddle.tanh(x))  # whether this Paddle leaks is known from here on
    for _ in range(3):
        y = Telling.apply(x).sum()
        for _ in range(5):
            assert node_of(y).name() == "SumGradNode"
    del y
    gc.collect()
    assert len(died) == 3


def test_a_paddle_grad_that_always_fails_keeps_nothing_more() -> None:
    """Its hooks must be held until a later run has freed Paddle's copies of the nodes; and no longer."""

    class Fails(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, d):
            raise ValueError("on purpose")

    x = paddle.ones([4])
    x.stop_gradient = False

    def step() -> None:
        with pytest.raises(OSError, match="on purpose"):
            paddle.grad([Fails.apply(paddle.tanh(x)).exp().sum()], [x])
        with pytest.raises(TypeError):
            paddle.base.core.eager.run_partial_grad([x.exp().sum()], 3)

    plainly = grown(step)
    with watching(quiet(EVERY)) as backend:
        here = grown(step)
        paddle.grad([paddle.exp(x).sum()], [x])
        assert not backend._entry._kept
    assert here[1] - plainly[1] < STEPS, (here, plainly)
