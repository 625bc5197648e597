"""Nodes that give several gradients in one slot (concat), of which Paddle shows none behind them, and nodes that have
slots without any (batch norm). The witness is a tensor's own hook, on what such an operator was given."""

from __future__ import annotations

import functools
import random
from collections import Counter

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

import numpy as np  # noqa: E402
from support.dialled import Dialled  # noqa: E402
from support.front_end import where  # noqa: E402

from adbg.engine.backends.base import Hidden, HookPlan  # noqa: E402
from adbg.engine.backends.paddle.slots import Fed  # noqa: E402
from adbg.engine.types import ValueState  # noqa: E402
from tests.support.paddle_watch import Watch, watching  # noqa: E402

F = paddle.nn.functional


def leaf():
    return paddle.to_tensor(np.linspace(-1, 1, 24, dtype="float32").reshape(4, 6), stop_gradient=False)


def pair(x):
    return paddle.tanh(x), paddle.scale(x, 2.0)


def dropped(a):
    paddle.seed(1)
    return F.dropout(a, 0.5)


@functools.cache
def compiled():
    def product(a, b):
        return paddle.tanh(a) * b

    return paddle.jit.to_static(product, full_graph=True)


#: By kind: (name of the node, what is given to it, the operator on that).
LISTS = {
    "concat": ("Concat", pair, lambda a, b: paddle.concat([a, b])),
    "stack": ("Stack", pair, lambda a, b: paddle.stack([a, b])),
    "einsum": ("Einsum", pair, lambda a, b: paddle.einsum("ij,kj->ik", a, b)),
    "add_n": ("AddN", pair, lambda a, b: paddle.add_n([a, b])),
    "meshgrid": ("Meshgrid", lambda x: pair(x[0]), lambda a, b: sum(m.sum() for m in paddle.meshgrid(a, b))),
    "multi_dot": ("MultiDot", pair, lambda a, b: paddle.linalg.multi_dot([a, b.t()])),
    "broadcast": ("BroadcastTensors", pair, lambda a, b: paddle.add(*paddle.broadcast_tensors([a, b]))),
    "to_static": ("Dy2St", pair, lambda a, b: compiled()(a, b)),
}
SLOTS = {
    "batch_norm": ("BatchNorm", lambda x: (x * 2,), lambda a: paddle.nn.BatchNorm1D(6)(a) ** 2),
    "dropout": ("Dropout", lambda x: (x * 2,), dropped),
    "layer_norm": ("LayerNorm", lambda x: (x * 2,), lambda a: F.layer_norm(a, [6]) ** 2),
    "cross_entropy": (
        "CrossEntropyWithSoftmax", lambda x: (x * 2,), lambda a: F.cross_entropy(a, paddle.to_tensor([1, 2, 3, 0])),
    ),
    "where": ("Where", lambda x: (x * 2,), lambda a: paddle.where(a > 0, a, paddle.zeros([4, 6]))),
}  # fmt: skip
KINDS = {**LISTS, **SLOTS}


def run(kind, hook=None, x=None):
    """Runs a backward; ``hook(place, gradient)`` is called with what arrives at each tensor that is given."""
    _, given, operator = KINDS[kind]
    values = given(leaf() if x is None else x)
    for place, value in enumerate(values if hook is not None else ()):
        value.register_hook(functools.partial(hook, place))
    operator(*values).sum().backward()


def arrived(kind):
    found = {}

    def record(place, gradient):
        found[place] = gradient.numpy().copy()

    run(kind, record)
    return found


@pytest.mark.parametrize("asked", ["from the beginning", "at a stop before it"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_left_the_node_is_what_arrived(kind, asked):
    """Where a list is hidden, the one that the next node got; of the others, that they are not known."""
    name = KINDS[kind][0]
    widened = asked == "at a stop before it"
    seen, states = [], []
    watch = Watch(HookPlan(name=lambda other: other.startswith(name), post=not widened))

    def before(call, key, outs):
        if widened:
            call.hook(HookPlan(indices=frozenset({call.order().index(key) + 1})))

    def after(call, key, ins, outs):
        edges = call.edges(key)
        assert [edge.slot for edge in edges] == list(range(len(ins))), "one edge for each gradient"
        assert [edge.to is None for edge in edges] == [value is None for value in ins]
        seen.extend(value.numpy().copy() if paddle.is_tensor(value) else value for value in ins)
        states.extend(backend.meta(value).state for value in ins)

    watch.before, watch.after = before, after
    with watching(watch) as backend:
        run(kind)
    first, *rest = [value for value in seen if value is not None]
    assert np.array_equal(first, arrived(kind)[0])
    hidden = [value for value in rest if isinstance(value, Hidden)]
    assert len(hidden) == (len(KINDS[kind][1](leaf())) - 1) == states.count(ValueState.HIDDEN)


@pytest.mark.parametrize("kind", ["concat", "stack", "batch_norm", "dropout"])
def test_an_edit_behind_the_node_arrives(kind):
    name, given, operator = KINDS[kind]
    watch = Watch(HookPlan(name=lambda other: other.startswith(name)))
    watch.after = lambda call, key, ins, outs: (backend.adopt(ins[0], 7.0, "grad_inputs[0]"), *ins[1:])
    x = leaf()
    (value, *others) = given(x)
    with watching(watch) as backend:
        operator(value, *others).sum().backward()
    slope = 1 - np.tanh(x.numpy()) ** 2 if others else 2.0  # of what stands between the leaf and the node
    assert np.allclose(x.grad.numpy(), 7.0 * slope + (2.0 if others else 0.0))


def test_what_is_hidden_takes_no_edit():
    watch = Watch(HookPlan(name=lambda other: other.startswith("Concat")))
    said = []

    def after(call, key, ins, outs):
        with pytest.raises(Exception, match="does not show what this node gives") as refused:
            backend.adopt(ins[1], 7.0, "grad_inputs[1]")
        said.append(refused.value)
        return (ins[0], paddle.zeros([4, 6]))  # nor does it where the check is passed by

    watch.after = after
    x = leaf()
    with watching(watch) as backend:
        run("concat", x=x)
    assert said and np.allclose(x.grad.numpy(), 1 - np.tanh(x.numpy()) ** 2 + 2.0)


SCRIPT = """
import paddle
from paddle.autograd import PyLayer

def joined():
    x = paddle.to_tensor([0.5, 1.0], stop_gradient=False)
    h = x * 1
    return paddle.concat([paddle.tanh(h), h * 2]).sum()

class Around(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, g):
        with paddle.enable_grad():
            loss = joined()
        loss.backward()
        return g

joined().backward()
x = paddle.to_tensor([0.5, 1.0], stop_gradient=False)
paddle.concat([Around.apply(x * 1), x * 2]).sum().backward()
"""


def test_after_and_its_kin_stop_behind_the_node(tmp_path):
    with Dialled(tmp_path, SCRIPT) as run:
        run.peer.begin("ConcatGradNode")
        stop = run.peer.stopped()
        assert (stop["phase"], where(stop)[1]) == ("before", "ConcatGradNode#1")
        stop = run.peer.go("adbg/after")
        assert (stop["phase"], where(stop)[1]) == ("after", "ConcatGradNode#1")
        node = run.peer.request("adbg/node")
        assert [slot["meta"]["state"] for slot in node["grad_inputs"]] == ["ok", "hidden"]
        assert where(run.peer.go("next"))[1] == "TanhGradNode#1"
        assert where(run.peer.go("adbg/until", spec="ScaleGradNode#1"))[1] == "ScaleGradNode#1"
        stop = run.peer.go()  # the second backward
        assert (stop["phase"], stop["depth"], where(stop)[1]) == ("before", 0, "ConcatGradNode#1")
        stop = run.peer.go()  # the one inside it
        assert (stop["phase"], stop["depth"], where(stop)[1]) == ("before", 1, "ConcatGradNode#1")
        stop = run.peer.go("stepOut")
        assert (stop["phase"], stop["depth"], where(stop)[1]) == ("after", 0, "GradNodePyLayer_Around#1")


def test_a_breakpoint_behind_the_node(tmp_path):
    with Dialled(tmp_path, SCRIPT) as run:
        run.peer.begin("Concat* after")
        stops = []
        try:
            stop = run.peer.stopped()
            while True:
                stops.append((stop["backward"], stop["depth"], stop["phase"]))
                stop = run.peer.go()
        except ConnectionError:
            pass
        assert sorted(stops) == [(1, 0, "after"), (2, 0, "after"), (3, 1, "after")]
        assert run.end()[0] == 0


def ends(backward):
    """(phase, name, what left it: numbers, or what stands for them) of every node, in order."""
    found = []
    watch = Watch(HookPlan(name=lambda other: other.startswith("Concat")))

    def after(call, key, ins, outs):
        found.append([value.numpy().tolist() if paddle.is_tensor(value) else value for value in ins])

    watch.after = after
    with watching(watch):
        backward()
    return found


def test_a_list_that_goes_to_leaves_at_the_end_of_the_backward():
    x, y = (paddle.to_tensor([value], stop_gradient=False) for value in (1.0, 2.0))
    ((first, second),) = ends(lambda: (paddle.concat([x, y]) * 3).sum().backward())
    given = [value for value in (first, second) if not isinstance(value, Hidden)]
    assert given == [[3.0]] and x.grad.tolist() == y.grad.tolist() == [3.0]


def test_a_list_in_paddle_grad():
    x = leaf()
    h = paddle.tanh(x)
    ((first, second),) = ends(lambda: paddle.grad([paddle.concat([h, x * 2]).sum()], [x]))
    (given,) = [value for value in (first, second) if not isinstance(value, Hidden)]
    assert np.array_equal(given, np.ones((4, 6)))


def test_what_is_part_of_a_sum_is_not_taken_for_the_whole():
    """Both halves flow into one node: what arrives there is neither of them."""
    h = paddle.tanh(leaf())
    ((first, second),) = ends(lambda: paddle.concat([h, h]).sum().backward())
    assert isinstance(first, Hidden) and isinstance(second, Hidden) and "the sum" in first.why


@pytest.mark.parametrize("seed", range(3))
def test_edges_into_a_slot_are_all_counted_whoever_is_asked_first(seed):
    """The witness is a walk over all edges."""
    pick = random.Random(seed)
    found = []

    def begin(call):
        wanted = Counter((edge.to, edge.to_slot) for key in range(len(call.walk())) for edge in call.edges(key))
        asked = [(key, slot) for key in range(len(call.walk())) for slot in range(4)]
        pick.shuffle(asked)
        fed = Fed(call)
        found.extend((fed.into(*each), wanted[each]) for each in asked)

    watch = Watch(HookPlan(name=lambda other: other.startswith("Concat")))
    watch.begin = begin
    x = leaf()
    values = [x, x * 2, paddle.tanh(x)]
    for _ in range(12):
        first, second = pick.sample(values, 2)
        upper, lower = paddle.split(paddle.concat([first, second]), 2)
        values += [upper, lower + first] if pick.random() < 0.5 else [paddle.stack([upper, lower, upper]).sum(0)]
    with watching(watch):
        sum(value.sum() for value in values[1:]).backward()
    assert [got for got, _ in found] == [wanted for _, wanted in found]
    assert max(got for got, _ in found) > 2 and len(found) > 100


class Counted(list):
    """How often somebody went over all of it."""

    walks = 0

    def __iter__(self):
        self.walks += 1
        return super().__iter__()

    def index(self, *args):
        self.walks += 1
        return super().index(*args)


@pytest.mark.parametrize("plan", [HookPlan(every=True), HookPlan(screen=True)], ids=["every", "screen"])
def test_the_whole_graph_is_not_gone_over_for_each_list_nor_each_leaf(plan):
    def walks(blocks):
        kept = []

        def begin(call):
            call._order, call._producers = Counted(call.order()), Counted(call.producers())
            kept.extend((call._order, call._producers))

        watch = Watch(plan)
        watch.begin = begin
        x = leaf()
        y, leaves = x, [leaf() for _ in range(blocks)]
        with watching(watch):
            for other in leaves:
                y = paddle.concat([y * other, paddle.tanh(y)])[:4]
            (y * float("nan")).sum().backward()
        assert watch.last.hooked > 2 * blocks and any(name.startswith("Concat") for name in watch.last.ended)
        return [each.walks for each in kept]

    assert walks(24) == walks(4)
