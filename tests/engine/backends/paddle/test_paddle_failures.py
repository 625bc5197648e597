"""Errors inside real Paddle's backward, what adbg says of them, and the warning before Paddle would die."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from paddle.autograd import PyLayer  # noqa: E402

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.paddle.backend import PaddleBackend  # noqa: E402
from adbg.engine.backends.paddle.native import symbols  # noqa: E402
from tests.support.paddle_watch import Watch, watching  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "paddle_nested_pylayers.py"


def leaf(*shape):
    tensor = paddle.ones(list(shape))
    tensor.stop_gradient = False
    return tensor


def returning(result):
    class Gives(PyLayer):
        @staticmethod
        def forward(ctx, a, b):
            return a * b

        @staticmethod
        def backward(ctx, d):
            return result(d)

    return Gives


class Texts(Watch):
    """Also keeps what the call says of the error."""

    def __init__(self, *args):
        super().__init__(*args)
        self.texts = []

    def backward_end(self, call, error):
        if error is not None:
            self.texts.append((call.error_text(error), type(call.original_error(error)).__name__, call.depth))
            nodes = [call.describe(key) for key in call.order()]
            self.lines = {node.unique_name: node.forward.line for node in nodes if node.forward is not None}
        super().backward_end(call, error)


@pytest.mark.parametrize("armed", [False, True])
def test_an_in_place_change_is_pinned_on_the_node(armed):
    watch = Texts()
    with watching(watch, armed=armed, stacks=True):
        a = leaf(3) * 1.0
        loss = paddle.tanh(a**2).sum()
        a.add_(paddle.ones([3]))
        with pytest.raises(RuntimeError, match="inplace"):
            loss.backward()
    ((name, evidence),) = watch.last.failed
    assert name.startswith(("pow", "PowGradNode")) and "at version 1, saved at 0" in evidence
    text = watch.texts[0][0]
    assert "modified by an inplace operation" in text and "C++ Traceback" not in text
    assert paddle.is_grad_enabled()


@pytest.mark.parametrize("armed", [False, True])
def test_an_exception_three_levels_deep(armed):
    def around(inner):
        class Around(PyLayer):
            @staticmethod
            def forward(ctx, x):
                return x * 1.0

            @staticmethod
            def backward(ctx, d):
                z = leaf(3)
                with paddle.enable_grad():
                    y = inner.apply(z).sum()
                y.backward()
                return z.grad

        return Around

    class Bad(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, d):
            raise ValueError("user bug")

    watch = Texts()
    with watching(watch, armed=armed), pytest.raises(OSError, match="user bug"):
        around(around(Bad)).apply(leaf(3) * 1.0).sum().backward()
    first = next(seen for seen in watch.calls if seen.depth == 2)
    assert first.failed[0][0] == "GradNodePyLayer_Bad#1"
    assert f"raised ValueError ({__file__}:" in first.failed[0][1]
    assert first.enclosing == "GradNodePyLayer_Around#1"
    assert watch.texts[0] == ("ValueError: user bug", "ValueError", 2)
    assert len(watch.texts) == (3 if armed else 1)  # unarmed: told once, where it happened
    with watching(Watch()):
        leaf(3).sum().backward()  # the engine is fine


@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda d: d, "got f32 [3]"),
        (lambda d: (d, d, d), "got (f32 [3], f32 [3], f32 [3])"),
        (lambda d: (d, [d]), "got (f32 [3], [f32 [3]])"),
        (lambda d: (d, "x"), "got (f32 [3], str)"),
    ],
)
def test_the_contract_of_a_pylayer_is_drawn(armed, result, got):
    watch = Texts()
    with watching(watch, armed=armed), pytest.raises((ValueError, OSError, RuntimeError)):
        returning(result).apply(leaf(3) * 1.0, leaf(3) * 2.0).sum().backward()
    name, evidence = watch.last.failed[0]
    assert name == "GradNodePyLayer_Gives#1"
    assert "expected (f32 [3], f32 [3])" in evidence and got in evidence


def taking(result):
    """A PyLayer of tensors and lists of tensors, by position and by name."""

    class Takes(PyLayer):
        @staticmethod
        def forward(ctx, *args, **named):
            given = [value for value in (*args, *named.values()) if value is not None]
            flat = [one for value in given for one in (value if isinstance(value, (list, tuple)) else [value])]
            return sum(value.sum() for value in flat)

        @staticmethod
        def backward(ctx, d):
            return result

    return Takes


def fixed(*shape):
    return paddle.ones(list(shape))


G = "f32 [3]"
GIVEN = {
    "a list and a tensor": (lambda: ([leaf(3), leaf(3)], leaf(3)), {}, f"([{G}, {G}], {G})"),
    "a tuple and a tensor": (lambda: ((leaf(3), leaf(3)), leaf(3)), {}, f"([{G}, {G}], {G})"),
    "by name": (lambda: (leaf(3),), {"z": lambda: [leaf(3), leaf(3)]}, f"({G}, [{G}, {G}])"),
    "a constant": (lambda: (leaf(3), fixed(3)), {}, f"({G}, None)"),
    "a list that ends in a constant": (lambda: ([leaf(3), fixed(3)],), {}, f"([{G}, None],)"),
    "a list that begins with one": (lambda: ([fixed(3), leaf(3)], leaf(3)), {}, f"(None, {G})"),
    "None and a number": (lambda: (leaf(3), None, leaf(3)), {}, f"({G}, {G})"),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_what_is_drawn_is_what_paddle_asks_for(kind):
    """Paddle's own number, in its error for too many; and what is drawn passes, word by word."""
    args, named, drawn = GIVEN[kind]

    def made(result):
        return taking(result).apply(*args(), **{name: value() for name, value in named.items()})

    watch = Texts()
    with watching(watch), pytest.raises(ValueError, match=r"should be \d") as refused:
        made((fixed(3),) * 9).backward()
    assert f"expected {drawn}, got" in watch.last.failed[0][1]
    obeyed = eval(drawn.replace(G, "fixed(3)"), {"fixed": fixed})
    assert len(obeyed) == int(re.search(r"should be (\d+)", str(refused.value))[1])
    made(obeyed).backward()


def test_a_list_of_one_is_drawn_where_paddle_asks_for_it():
    watch = Texts()
    with watching(watch), pytest.raises(ValueError, match="must be list or tuple"):
        taking((fixed(3),)).apply([leaf(3)]).backward()
    assert f"expected ({G} or [{G}],), got ({G},)" in watch.last.failed[0][1]
    taking(([fixed(3)],)).apply([leaf(3)]).backward()


@pytest.mark.parametrize("armed", [False, True])
def test_a_warning_before_an_undefined_gradient_kills(armed):
    """The stop is told on the unarmed path too. Out by an exception: going on would end this process by SIGSEGV."""

    class Gives(PyLayer):
        @staticmethod
        def forward(ctx, a, b):
            return a * 1.0, b * 1.0

        @staticmethod
        def backward(ctx, da, db):
            return da, None

    told = []

    class Warned(Watch):
        def node_warning(self, call, key, gradients, text):
            told.append((call.describe(key).name, gradients, text))
            raise KeyboardInterrupt

    with watching(Warned(HookPlan(name=lambda name: False)), armed=armed), pytest.raises(KeyboardInterrupt):
        o, p = Gives.apply(leaf(3) * 1.0, paddle.nn.functional.softmax(leaf(3)))
        (o.sum() + p.sum()).backward()
    ((name, gradients, text),) = told
    assert name == "SoftmaxGradNode" and gradients == (None,)
    assert "SIGSEGV" in text and "GradNodePyLayer_Gives#1 returned None for it" in text


def test_no_warning_where_paddle_fills_in_zeros():
    class Gives(PyLayer):
        @staticmethod
        def forward(ctx, a, b):
            return a * 1.0, b * 1.0

        @staticmethod
        def backward(ctx, da, db):
            return da, None

    class Warned(Watch):
        def node_warning(self, call, key, gradients, text):
            raise AssertionError(text)

    b = leaf(3)
    with watching(Warned(), armed=False):
        o, p = Gives.apply(leaf(3) * 1.0, paddle.tanh(b))
        (o.sum() + p.sum()).backward()
    assert b.grad.numpy().tolist() == [0.0] * 3


def test_none_of_a_pylayer_can_be_filled_in_behind_it():
    class Gives(PyLayer):
        @staticmethod
        def forward(ctx, a, b):
            return a * 1.0, b * 1.0

        @staticmethod
        def backward(ctx, da, db):
            return da, None

    b = leaf(3)
    watch = Watch()
    with watching(watch) as backend:

        def after(call, key, ins, outs):
            if call.is_custom(key):
                assert ins[1] is None
                return (ins[0], backend.adopt(ins[1], paddle.full([3], 2.0), "grad_inputs[1]"))
            return None

        watch.after = after
        o, p = Gives.apply(leaf(3) * 1.0, paddle.concat([b * 1.0]))
        (o.sum() + p.sum()).backward()
    assert b.grad.numpy().tolist() == [2.0] * 3


# ---- without the exported symbols


@pytest.fixture
def no_symbols(monkeypatch):
    monkeypatch.setattr(symbols, "_native", [None])
    monkeypatch.setattr(symbols._SYMBOL_USES[0], "problem", "libpaddle does not export it")


def test_without_symbols_the_predicted_order_and_post_hooks_serve(no_symbols):
    class Twice(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, d):
            return d * 2.0

    x = leaf(3)
    watch = Watch()
    events = []
    watch.before = lambda call, key, outs: events.append(("before", call.name(key)))
    watch.after = lambda call, key, ins, outs: events.append(("after", call.name(key)))
    with watching(watch):
        (Twice.apply(paddle.tanh(x)) * 3.0).sum().backward()
    names = ["SumGradNode", "ScaleGradNode", "GradNodePyLayer_Twice", "TanhGradNode", "GradNodeAccumulation"]
    assert [name for when, name in events if when == "before"] == names
    assert [name for when, name in events if when == "after"] == names[:-1]
    for name in names[:-1]:
        assert events.index(("before", name)) < events.index(("after", name))
    assert x.grad is not None


def test_doctor_says_which_mechanism_is_in_use(no_symbols):
    lines = {line.what: line for line in PaddleBackend().doctor()}
    assert lines["stops before a node"].status == "limit" and "predicted order" in lines["stops before a node"].detail
    assert lines["edit grad outputs"].status == "off"


def test_doctor_with_all_symbols():
    lines = {line.what: line for line in PaddleBackend().doctor()}
    assert "self-checks passed" in lines["stops before a node"].detail
    assert lines["saved tensors"].status == "off" and "ctx.saved_tensor()" in lines["saved tensors"].detail
    assert not [line for line in lines.values() if line.status == "missing"]


# ---- the whole path


def test_a_batch_session_on_nested_pylayers(tmp_path):
    edit = "set grad_outputs[0] = grad_outputs[0] * -500"
    commands = ["tb ClippedExp", "c", "where", edit, "after", "p grad_inputs[0]", "f", "c"]
    arguments = [sys.executable, "-m", "adbg", "run", "--batch", "--no-record"]
    for command in commands:
        arguments += ["-e", command]
    ran = subprocess.run(
        [*arguments, str(EXAMPLE)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    shown = ran.stdout + ran.stderr
    assert ran.returncode == 0, shown
    assert "before GradNodePyLayer_ClippedExp#1" in shown and "nested 2 deep" in shown
    assert "inside GradNodePyLayer_Checkpoint#1 > GradNodePyLayer_SwiGLU#1" in shown
    plain = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=True)
    lines = [line for line in shown.splitlines() if line.startswith("iteration")]
    expected = plain.stdout.splitlines()
    assert lines[0] == expected[0] and lines[1:] != expected[1:]  # the edit changed the first update


def test_a_batch_session_changes_nothing(tmp_path):
    """Stacks on, every PyLayer stopped at, AdamW: the losses are those of the plain run."""
    arguments = [sys.executable, "-m", "adbg", "run", "--batch", "--no-record", "--stacks", "-b", "GradNodePyLayer_*"]
    for _ in range(5):
        arguments += ["-e", "c"]
    ran = subprocess.run(
        [*arguments, str(EXAMPLE)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    plain = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=True)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("iteration")]
    assert ran.returncode == 0 and lines == plain.stdout.splitlines() and len(lines) == 4
    assert ran.stdout.count("Breakpoint 1") + ran.stderr.count("Breakpoint 1") >= 5


def test_the_same_evidence_is_told_once():
    """The message names the node by address and by name."""
    from adbg.engine.backends.paddle.failures import suspects

    class Graph:
        def addresses(self):
            return {0x10: 0}

        def keys_named(self, printed):
            return [0]

        def printed(self):
            return ["GradNodePyLayer_Two"]

        order = lambda self: [0]  # noqa: E731
        name = lambda self, key: "GradNodePyLayer_Two"  # noqa: E731
        is_custom = lambda self, key: True  # noqa: E731

    text = "GradNodePyLayer_Two(0x10)'s output; GradNode < GradNodePyLayer_Two > error"
    assert suspects(Graph(), ValueError(text), None, None, {}) == [(0, "Paddle's message names it")]


@pytest.mark.parametrize("armed", [False, True])
def test_of_several_nodes_of_a_name_the_line_in_the_message_says_which(armed):
    """The script asks for the line itself: at a lower call stack level it would not read it."""
    watch = Texts()
    before = paddle.get_flags(["FLAGS_call_stack_level"])
    paddle.set_flags({"FLAGS_call_stack_level": 3})
    with contextlib.ExitStack() as stack:
        stack.callback(paddle.set_flags, before)
        stack.enter_context(watching(watch, armed=armed, stacks=True))
        a = leaf(3)
        first = (a * 1).exp()
        second = (a * 2).exp()
        product = second * 2
        second.add_(paddle.ones([3]))
        third = (a * 3).exp()
        loss = first.sum() + product.sum() + third.sum()
        with pytest.raises(RuntimeError, match="inplace") as caught:
            loss.backward()
    line = re.search(rf'File "{re.escape(__file__)}", line (\d+)', str(caught.value).split("Forward Traceback")[1])[1]
    ((name, evidence),) = watch.last.failed[:1]
    assert "names it and its line" in evidence or armed
    assert watch.lines[name] == int(line)


def test_a_graph_that_ran_already_says_so():
    watch = Texts()
    with watching(watch, stacks=True):
        loss = (leaf(3) * 2).exp().sum()
        loss.backward()
        with pytest.raises(SystemError, match="TensorWrappers"):
            loss.backward()
    name, evidence = watch.last.failed[0]
    assert name.startswith("SumGradNode") and "an earlier backward ran it and freed what it saved" in evidence


TEXTS = """
import paddle
from paddle.autograd import PyLayer

class Inner(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no luck")

class Outer(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensor()
        with paddle.enable_grad():
            y = x.detach()
            y.stop_gradient = False
            Inner.apply(y).exp().sum().backward()
        return g

x = paddle.ones([3])
x.stop_gradient = False
try:
    Outer.apply(x).sum().backward()
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("options", [["--no-stacks"], ["--stacks", "-b", "nan"]])
def test_the_text_of_an_error_is_the_one_without_adbg(tmp_path, options):
    script = tmp_path / "script.py"
    script.write_text(TEXTS)
    level = {"FLAGS_call_stack_level": "3"} if "--stacks" in options else {}

    def printed(*command):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=120, env={**os.environ, **level}
        )
        lines = [line for line in done.stdout.splitlines() if not line.startswith(("adbg: ", "(adbg)"))]
        return re.sub("0x[0-9a-f]+", "0x", "\n".join(lines))

    run = ["-m", "adbg", "run", "--batch", "--no-record", *options, "-e", "c", "-e", "c", "-e", "c", "-e", "c"]
    plain = printed(str(script))
    assert "no luck" in plain and "GradNodePyLayer_Inner" in plain
    assert printed(*run, str(script)) == plain
