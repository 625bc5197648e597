"""Operators written by hand in C++ (conv2d, add_n, compiled programs) have a line and a Layer like all others, though
Paddle forgets theirs. The witness is a hook after each Layer's forward, and the line that the forward itself notes."""

from __future__ import annotations

import signal
import sys

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.paddle.backend import PaddleBackend  # noqa: E402
from adbg.engine.backends.paddle.native import handwritten  # noqa: E402
from adbg.engine.names import name_matches, short_op  # noqa: E402
from tests.support.paddle_watch import Watch, watching  # noqa: E402

nn = paddle.nn


def line():
    """Of the caller."""
    return sys._getframe(1).f_lineno


class Block(nn.Layer):
    def __init__(self, wide):
        super().__init__()
        self.conv1 = nn.Conv2D(wide, wide, 3, padding=1, bias_attr=False)
        self.conv2 = nn.Conv2D(wide, wide, 3, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(wide)
        self.noted = {}

    def forward(self, x):
        self.noted["conv1"], y = line(), self.conv1(x)
        y = nn.functional.relu(self.norm(y))
        self.noted["conv2"], y = line(), self.conv2(y)
        self.noted["sum"], y = line(), paddle.add_n([x, y])
        return y


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2D(3, 4, 3, padding=1, bias_attr=False)
        self.blocks = nn.LayerList([Block(4), Block(4)])
        self.sequence = nn.Conv1D(4, 2, 1, bias_attr=False)
        self.noted = {}

    def forward(self, x):
        self.noted["stem"], x = line(), self.stem(x)
        for block in self.blocks:
            x = block(x)
        self.noted["sequence"], x = line(), self.sequence(x.flatten(2))
        return x.mean()


@pytest.fixture
def backend():
    backend = PaddleBackend()
    backend.set_stacks(True)
    yield backend
    backend.set_stacks(False)
    backend.abandon()


def test_every_convolution_and_sum_of_a_residual_net_has_its_line_and_layer(backend):
    net, made = Net(), {}

    def note(path):
        def hook(layer, given, result):
            made[result.grad_fn.node_ptr()] = path

        return hook

    for path, layer in net.named_sublayers():
        if isinstance(layer, nn.Conv2D):
            layer.register_forward_post_hook(note(path))
    for _ in range(2):  # the second time, nodes stand where the first graph's did
        made.clear()
        loss = net(paddle.ones([2, 3, 6, 6]))
    graph = backend.graph_of([loss])
    found = {graph.address(key): graph.describe(key) for key in graph.order()}
    convolutions = {at: info for at, info in found.items() if info.name.startswith("Conv2d")}
    assert len(convolutions) == 6 and len(made) == 5
    assert {at: found[at].module for at in made} == made
    lines = {path: net.noted[path] for path in ("stem", "sequence")}
    for number, block in enumerate(net.blocks):
        lines |= {f"blocks.{number}.{name}": at for name, at in block.noted.items() if name != "sum"}
    assert {info.module: info.forward.line for info in convolutions.values()} == lines
    sums = [info for info in found.values() if info.name.startswith("AddN")]
    assert {(info.module, info.forward.line) for info in sums} == {
        (f"blocks.{number}", block.noted["sum"]) for number, block in enumerate(net.blocks)
    }
    assert all(info.forward is not None for info in found.values()), "a kind of node without a line"


def test_their_short_names():
    assert short_op("Conv2dGradNodeFinal") == "Conv2d" and short_op("AddNGradNodeFinal") == "AddN"
    for pattern in ("Conv2d", "conv2d3", "Conv2dGradNode", "Conv*", "Conv2dGradNodeFinal#2"):
        assert name_matches(pattern, "Conv2dGradNodeFinal"), pattern
    assert name_matches("Conv2d#2", "Conv2dGradNodeFinal", "Conv2dGradNodeFinal#2")
    assert not name_matches("Conv2d#2", "Conv2dGradNodeFinal", "Conv2dGradNodeFinal#1")


def test_a_capture_counts_them_in(backend):
    image, kernel = paddle.ones([1, 2, 4, 4]), paddle.ones([2, 2, 3, 3])
    kernel.stop_gradient = False
    before = nn.functional.conv2d(image, kernel)
    watch = backend.watch_creation()
    inside = paddle.add_n([nn.functional.conv2d(image, kernel), before])
    watch.close()
    graph = backend.graph_of([inside + nn.functional.conv2d(image, kernel)])
    held = sorted(graph.name(key) for key in graph.order() if watch.holds(graph, key))
    assert held == ["AddNGradNodeFinal", "Conv2dGradNodeFinal"]
    assert not [stray for stray in watch.strays(graph)[0] if "conv2d" in stray.text or "add_n" in stray.text]


def test_a_compiled_program_names_its_function(backend):
    def region(x):
        return paddle.tanh(x) * 2.0

    x = paddle.ones([3])
    x.stop_gradient = False
    compiled = paddle.jit.to_static(region, full_graph=True)
    called, result = line(), compiled(x)
    graph = backend.graph_of([result])
    info = graph.describe(0)
    assert info.name == "Dy2StGradNode" and info.compiled and info.forward.function == "region"
    stack = graph.forward_stack(0)[0]
    assert [frame.line for frame in stack[:2]] == [region.__code__.co_firstlineno, called]


def test_what_is_handed_through_keeps_its_own(backend):
    """A tensor made before stacks were on gets no line of the operator that only returns it."""
    backend.set_stacks(False)
    x = paddle.ones([3])
    x.stop_gradient = False
    before = paddle.tanh(x)
    backend.set_stacks(True)
    handed = backend._stacks._handwritten._wrapped(lambda tensor: tensor)
    assert handed(before) is before
    assert backend.graph_of([before]).forward_stack(0)[0] == ()


@pytest.mark.usefixtures("paddles_own_texts")
def test_an_operator_s_own_error_and_functions_are_the_program_s(backend):
    wrapped = paddle._C_ops.conv2d
    with pytest.raises(ValueError) as raised:
        nn.functional.conv2d(paddle.ones([1, 2, 4, 4]), paddle.ones([2, 3, 3, 3]))
    trace, files = raised.tb, []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert handwritten.__file__ not in files
    backend.set_stacks(False)
    assert paddle._C_ops.conv2d is wrapped.__wrapped__


@pytest.mark.usefixtures("paddles_own_texts")
def test_what_a_signal_handler_raises_meanwhile_reaches_the_program(backend, monkeypatch):
    """And what goes wrong here does not."""

    class TimeOut(Exception):
        pass

    def handler(*args):
        raise TimeOut

    image, kernel = paddle.ones([1, 2, 4, 4]), paddle.ones([2, 2, 3, 3])
    kernel.stop_gradient = False
    before = signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr(handwritten, "_made", lambda given: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(TimeOut):
            nn.functional.conv2d(image, kernel)
    finally:
        signal.signal(signal.SIGUSR1, before)
    monkeypatch.setattr(handwritten, "_made", None)
    assert nn.functional.conv2d(image, kernel).shape == [1, 2, 2, 2]


def test_what_paddle_makes_for_a_second_derivative_has_no_other_operator_s_line():
    """Its sums have the line that asked for the derivative, and not that of the last operator before it."""
    watch = Watch(HookPlan())
    with watching(watch, stacks=True) as backend:
        x = paddle.ones([3])
        x.stop_gradient = False
        product = paddle.exp(x) * paddle.exp(x)
        loss = product.sum()
        earlier = set(backend.graph_of([loss]).addresses())
        asked, (gradient,) = line(), paddle.grad([loss], [x], create_graph=True)
        graph = backend.graph_of([gradient])
        made = [key for key in graph.order() if graph.address(key) not in earlier and not graph.is_accumulate(key)]
        found = {graph.name(key): graph.forward_stack(key) for key in made}
        without = set() if backend._stacks.native else {name for name in found if "Double" in name}
        assert {name for name in found if not found[name][0]} == without
        assert len(found) >= 3 and found["AddGradNode"][0][0].line == asked
        assert all("for a higher derivative" in why for frames, why in found.values() if not frames)
