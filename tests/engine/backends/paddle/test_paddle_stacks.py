"""Names, forward stacks, Layer paths and parameter names of real Paddle's nodes, and the flags behind them."""

from __future__ import annotations

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.paddle.stacks import framework_name, read_flags  # noqa: E402
from adbg.engine.names import name_matches  # noqa: E402
from tests.support.paddle_watch import Watch, watching  # noqa: E402


def leaf(*shape):
    tensor = paddle.ones(list(shape))
    tensor.stop_gradient = False
    return tensor


class Inner(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc = paddle.nn.Linear(3, 3)

    def forward(self, x):
        return paddle.tanh(self.fc(x))


class Model(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.blocks = paddle.nn.LayerList([Inner(), Inner()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x) * 2.0
        return x


def described(run, **options):
    """NodeInfo of every node by unique name, and its stack, as seen at the begin of the last call."""
    found = {}
    watch = Watch(HookPlan())

    def begin(call):
        found.clear()
        for key in call.order():
            info = call.describe(key)
            found[info.unique_name] = (info, *call.forward_stack(key))

    watch.begin = begin
    with watching(watch, **options):
        run()
    return found


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("matmul2GradNode", "MatmulGradNode"),
        ("split_with_num13GradNode", "SplitWithNumGradNode"),
        ("conv2d1GradNode", "Conv2dGradNode"),
        ("MatmulGradNode", "MatmulGradNode"),
        ("GradNodePyLayer_Outer2", "GradNodePyLayer_Outer2"),
        ("GradNodeAccumulation", "GradNodeAccumulation"),
    ],
)
def test_numbered_names_and_framework_names(printed, name):
    assert framework_name(printed) == name


def test_names_and_lines_while_stacks_are_on():
    def run():
        made = paddle.tanh(leaf(3))
        (made * 2.0).sum().backward()

    found = described(run, stacks=True)
    infos = [info for info, _, _ in found.values()]
    assert {info.name for info in infos} == {"SumGradNode", "ScaleGradNode", "TanhGradNode", "GradNodeAccumulation"}
    info, stack, why = found["TanhGradNode#1"]
    assert why == ""
    assert stack[0].file == __file__ and stack[0].function == "run" and info.forward == stack[0]
    assert stack[0].line == run.__code__.co_firstlineno + 1
    assert not any("site-packages/paddle/" in line.file for line in stack)


def test_nodes_made_earlier_say_why_they_have_no_stack():
    made = paddle.tanh(leaf(3)).sum()
    found = described(made.backward, stacks=True)
    assert set(found) == {"SumGradNode#1", "TanhGradNode#1", "GradNodeAccumulation#1"}
    assert all(stack == () and "before stacks were on" in why for _, stack, why in found.values())
    other = paddle.tanh(leaf(3)).sum()
    assert all("are off" in why for _, _, why in described(other.backward).values())


def test_layer_paths_and_parameters():
    model = Model()
    found = described(lambda: model(leaf(2, 3)).sum().backward(), stacks=True)
    by_module = {}
    for info, _, _ in found.values():
        by_module.setdefault(info.module, set()).add(info.name)
    assert by_module["blocks.0.fc"] >= {"AddGradNode", "MatmulGradNode"}
    assert by_module["blocks.1"] == {"TanhGradNode"} and by_module[""] == {"ScaleGradNode"}
    parameters = {info.parameter for info, _, _ in found.values() if info.accumulate}
    assert parameters == {None, "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.fc.weight", "blocks.1.fc.bias"}


def test_forwards_whose_result_is_dropped_name_no_later_node():
    """A validation without no_grad, a retried step: their nodes' addresses are used again within the same step."""

    class Net(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            linear, tanh = paddle.nn.Linear, paddle.nn.Tanh
            self.parts = paddle.nn.Sequential(linear(4, 4), tanh(), linear(4, 4), tanh(), linear(4, 4), tanh())

        def forward(self, x):
            return self.parts(x)

    net, x = Net(), leaf(2, 4)

    def run(dropped):
        for number in range(dropped):
            net(x)
            if number % 2:
                net.parts[2](x)
        net(x).sum().backward()

    def modules(dropped):
        return {name: info.module for name, (info, _, _) in described(lambda: run(dropped), stacks=True).items()}

    clean = modules(0)
    assert clean["TanhGradNode#1"] == "parts.1" and clean["AddGradNode#3"] == "parts.4"
    for dropped in range(1, 6):
        assert modules(dropped) == clean


def test_a_pylayer_is_told_its_layer():
    class Twice(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, d):
            return d * 2.0

    class Net(paddle.nn.Layer):
        def forward(self, x):
            return Twice.apply(x)

    net = paddle.nn.Sequential(Net(), paddle.nn.Tanh())
    found = described(lambda: net(leaf(3)).sum().backward(), stacks=True)
    assert found["GradNodePyLayer_Twice#1"][0].module == "0" and found["TanhGradNode#1"][0].module == "1"


def test_parameters_have_names_without_stacks():
    model = Model()
    found = described(lambda: model(leaf(2, 3)).sum().backward())
    assert "blocks.1.fc.weight" in {info.parameter for info, _, _ in found.values()}


def test_paths_stay_right_over_iterations():
    """Addresses of freed nodes are used again: what was noted for them must not be believed."""
    model = Model()

    def run():
        for _ in range(5):
            model(leaf(2, 3)).sum().backward()
            (paddle.tanh(leaf(2, 3)) * 3.0).sum().backward()

    assert {info.module for info, _, _ in described(run, stacks=True).values()} == {None}


def test_plans_by_line_module_and_parameter():
    model = Model()

    def begun(plan):
        watch = Watch(plan)
        with watching(watch, stacks=True):
            model(leaf(2, 3)).sum().backward()
        return watch.last.begun

    line = Model.forward.__code__.co_firstlineno + 2
    by_line = HookPlan(info=lambda node, stack: any(f.line == line for f in stack), needs=frozenset({"forward_stack"}))
    assert len(begun(by_line)) == 13  # 8 operators, 4 parameters and the input, which are first used there
    by_module = HookPlan(info=lambda node, stack: node.module == "blocks.0", needs=frozenset({"module"}))
    assert [name.partition("#")[0] for name in begun(by_module)] == ["TanhGradNode"]
    by_name = HookPlan(info=lambda node, stack: node.parameter == "blocks.0.fc.bias", needs=frozenset({"parameter"}))
    assert len(begun(by_name)) == 1


@pytest.mark.usefixtures("paddles_own_texts")
def test_flags_come_back_as_they_were():
    before = read_flags()
    with watching(Watch(), stacks=True):
        assert paddle.get_flags("FLAGS_call_stack_level")["FLAGS_call_stack_level"] == 3
    assert read_flags() == before
    paddle.set_flags({"FLAGS_call_stack_level": 2})
    try:
        with watching(Watch(), stacks=True):
            pass
        assert paddle.get_flags("FLAGS_call_stack_level")["FLAGS_call_stack_level"] == 2
        with watching(Watch(), stacks=True):
            paddle.set_flags({"FLAGS_call_stack_level": 0})  # the script's own wish, meanwhile
        assert paddle.get_flags("FLAGS_call_stack_level")["FLAGS_call_stack_level"] == 0
    finally:
        paddle.set_flags(before)


def test_an_optimizer_keeps_its_state():
    """Paddle's unique names rename parameters at each step, and Adam begins anew: they stay off."""

    def trained():
        paddle.seed(0)
        model = Model()
        optimizer = paddle.optimizer.Adam(0.1, parameters=model.parameters())
        for _ in range(4):
            model(leaf(2, 3)).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
        return model.blocks[0].fc.weight.numpy().tolist(), len(optimizer.state_dict())

    plain = trained()
    with watching(Watch(), stacks=True):
        assert trained() == plain


@pytest.mark.parametrize("pattern", ["tanh2", "tanh2GradNode", "split_with_num1", "TanhGradNode#1"])
def test_a_numbered_name_asks_for_the_framework_name(pattern):
    """Nodes are hooked by framework name; which of them has that number is decided at the hook."""
    framework = "SplitWithNumGradNode" if pattern.startswith("split") else "TanhGradNode"
    assert name_matches(pattern, framework, "")
    assert not name_matches(pattern, "MatmulGradNode", "")
    assert name_matches("tanh2", "TanhGradNode", "tanh2GradNode")
    assert not name_matches("tanh2", "TanhGradNode", "tanh3GradNode")


def test_a_leaf_is_of_the_line_that_uses_it_first():
    """Paddle's own text on it is of the operator that ran before ``stop_gradient`` was set."""

    def run():
        paddle.tanh(paddle.ones([3]))
        used = paddle.ones([3])
        used.stop_gradient = False
        late = paddle.exp(paddle.ones([3]))
        late.stop_gradient = False
        made = paddle.tanh(used)
        (paddle.exp(used) + made + late).sum().backward()

    found = described(run, stacks=True)
    first = run.__code__.co_firstlineno
    lines = sorted(info.forward.line - first for info, _, _ in found.values() if info.accumulate)
    assert lines == [6, 7] and all(stack[0].function == "run" for _, stack, _ in found.values())


def test_what_an_expression_makes_has_no_line_of_the_script():
    made = []

    def run():
        exec(compile("made.append(tanh(leaf) * twice(leaf))", "<adbg>", "exec"), names)
        made[-1].sum().backward()

    def twice(value):
        return value * 2.0

    names = {"made": made, "tanh": paddle.tanh, "leaf": leaf(3), "twice": twice}
    found = described(run, stacks=True)
    _, stack, why = found["TanhGradNode#1"]
    assert stack == () and "expression" in why
    assert [line.function for line in found["ScaleGradNode#1"][1]] == ["twice"]
