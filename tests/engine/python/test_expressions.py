"""Expressions, statements and assignments in a live frame: values, names, errors of one line, captured output."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adbg.engine.backends.base import SavedValue
from adbg.engine.errors import CommandError
from adbg.engine.python.expressions import (
    GradTarget,
    Namespace,
    PythonTarget,
    assign,
    assign_item,
    evaluate,
    execute,
    node_namespace,
    parse_target,
)
from adbg.engine.python.thread_stdout import MAX_CAPTURED, thread_stdout
from tests.fake_backend import FakeBackend, FakeGraph, FakeTensor

counter = 10  # a global of "the user's module"


def here() -> types.FrameType:
    frame = sys._getframe().f_back
    assert frame is not None
    return frame


def message_of(expression: str, namespace: Namespace) -> str:
    with pytest.raises(CommandError) as caught:
        evaluate(expression, namespace)
    assert "\n" not in str(caught.value)
    return caught.value.message


def at_node(frame: types.FrameType | None = None, ran: bool = False) -> Namespace:
    graph = FakeGraph.chain(3)
    key = graph.order()[0]
    outs = (FakeTensor([3.0, 4.0]), None)
    return node_namespace(FakeBackend(), graph, key, 1, outs, (FakeTensor([1.0]),) if ran else None, frame)


def test_names_of_the_node_the_frame_and_the_helpers() -> None:
    scale, index = 3, "the user's own"
    names = at_node(here())
    assert evaluate("grad_outputs[0].values", names) == [3.0, 4.0]
    assert evaluate("grad_outputs[1] is None", names) is True
    assert evaluate("scale + counter", names) == 13
    assert evaluate("index, locals()['index']", names) == (1, index)
    assert evaluate("node.name", names) == "MulBackward0"
    assert evaluate("norm(grad_outputs[0])", names) == pytest.approx(5.0)
    assert evaluate("norm > 4.9 and norm <= 5.01 and not norm < 1", names) is True
    assert evaluate("norm", names) == pytest.approx(5.0)
    assert evaluate("globals()['__name__']", names) == __name__
    assert evaluate("len(dir()) > 20 and eval('scale')", names) == scale


def test_inner_scopes_see_locals() -> None:
    scale, values = 3, [1, 2]  # noqa: F841  read by the expressions
    names = at_node(here())
    assert evaluate("[scale * v for v in values]", names) == [3, 6]
    assert evaluate("sum(map(lambda v: v * scale, values))", names) == 9
    assert evaluate("{v: [scale + w for w in values] for v in values}", names) == {1: [4, 5], 2: [4, 5]}
    assert execute("[scale * v for v in values]", names) == "[3, 6]\n"


def test_saved_by_attribute_item_and_number() -> None:
    names = at_node()
    assert evaluate("saved.self.values", names) == evaluate("saved['self'].values", names) == [3.0] * 4
    assert evaluate("saved[0].values", names) == [3.0] * 4
    assert evaluate("list(saved), 'self' in saved, len(saved)", names) == (["self"], True, 1)
    assert message_of("saved.mat2", names) == "this node saved nothing named 'mat2'"
    assert "saved 1 values" in message_of("saved[3]", names)
    assert "read-only" in message_of("setattr(saved, 'self', 1)", names)


def test_a_saved_value_that_must_not_be_read_says_why() -> None:
    graph = FakeGraph.chain(1)
    graph.saved = lambda key: [SavedValue("self", None, "checkpoint: recomputed on unpack")]  # type: ignore[method-assign]
    names = node_namespace(FakeBackend(), graph, graph.order()[0], 1, (), None)
    assert message_of("saved.self", names) == "saved['self'] is not read: checkpoint: recomputed on unpack"


def test_what_is_not_there_says_how_to_get_there() -> None:
    assert "the node has not run" in message_of("grad_inputs", at_node())
    assert evaluate("grad_inputs[0].values", at_node(ran=True)) == [1.0]
    nowhere = node_namespace(FakeBackend(), None, None, 0, None, None, here())
    assert "not at a node" in message_of("grad_outputs[0]", nowhere)


def test_at_no_node_the_users_own_names_are_not_hidden() -> None:
    index = saved = node = "mine"
    assert (
        evaluate("index + saved + node", node_namespace(None, None, None, 0, None, None, here()))
        == index + saved + node
    )


ERRORS = {
    "nope": "name 'nope' is not defined",
    "value.foo": "AttributeError: 'int' object has no attribute 'foo'",
    "1/0": "ZeroDivisionError: division by zero",
    "int('x')": "ValueError: invalid literal for int() with base 10: 'x'",
    "[][1]": "IndexError: list index out of range",
    "{}['k']": "KeyError: 'k'",
    "len(1, 2)": "TypeError: len() takes exactly one argument (2 given)",
    "exit(3)": "SystemExit",
    "value +": "invalid syntax: value +",
    "foo(": "'(' was never closed: foo(",
    "": "nothing to evaluate",
    "value = 3": "invalid syntax: value = 3",
}


def test_a_ctrl_c_is_for_whoever_asked() -> None:
    """At a stop it ends the answer; in a condition it is the program's own."""
    with pytest.raises(KeyboardInterrupt):
        evaluate("(_ for _ in ()).throw(KeyboardInterrupt)", Namespace())


@pytest.mark.parametrize("expression", ERRORS)
def test_errors_are_one_line(expression: str) -> None:
    value = 1
    assert message_of(expression, at_node(here())).startswith(ERRORS[expression]), value


def test_hints() -> None:
    scale = 2
    with pytest.raises(CommandError) as caught:
        evaluate("scael", at_node(here()))
    assert caught.value.hint == f"closest: {'scale'}", scale
    with pytest.raises(CommandError) as caught:
        evaluate("x = 3", at_node())
    assert "'!'" in caught.value.hint


def test_an_error_in_the_users_code_names_its_place() -> None:
    def helper() -> None:
        raise ValueError("first line\nsecond line")

    text = message_of("helper()", at_node(here()))
    assert text.startswith(f"ValueError: first line (at {Path(__file__).name}:") and text.endswith("in helper)"), helper


def test_an_exception_whose_text_fails_is_still_told() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fails() -> None:
        raise Broken

    assert message_of("fails()", at_node(here())).startswith("Broken"), fails


def test_exit_in_an_expression_leaves_stdin_open() -> None:
    message_of("exit()", at_node(here()))
    message_of("quit()", at_node())
    assert not sys.stdin.closed


def test_grad_mode_is_the_backends() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def mode() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    names = Namespace(names={"seen": lambda: list(entered)}, mode=mode)
    assert evaluate("seen", names) == ["in"]
    assert entered == ["in", "out"]
    execute("1", names)
    assert entered == ["in", "out"] * 2


# ------------------------------------------------------------------ statements


def test_statements_change_locals_of_the_running_function() -> None:
    value, log = 1, []

    def inner() -> int:
        return value

    names = at_node(here())
    assert (
        execute("value = 7; log.append(value)\nfor i in range(2):\n    print('i', i)\nvalue + 1", names)
        == "i 0\ni 1\n8\n"
    )
    assert (value, inner(), log) == (7, 7, [7])
    assert evaluate("i", names) == 1, "a new name is kept beside the locals"
    execute("log += [8]\nvalue: int = 9", names)
    assert (value, log) == (9, [7, 8])


def test_globals_change_when_declared() -> None:
    global counter
    try:
        execute("global counter\ncounter += 1", at_node(here()))
        assert counter == 11
        execute("counter = 99", at_node(here()))
        assert counter == 11, "without global it is a new local, as in a function"
    finally:
        counter = 10


def test_statements_in_a_module() -> None:
    statements = "x = 5\\nclass C: y = x\\nimport math\\ndef f(): return x"
    source = f"x = 1\nframe = get()\nexecute('{statements}', Namespace(frame))\nz = x, C.y, f()"
    module: dict[str, Any] = {"get": here, "execute": execute, "Namespace": Namespace}
    exec(compile(source, "user.py", "exec"), module)
    assert module["z"] == (5, 5, 5)
    assert module["math"].pi > 3


def test_what_ran_before_an_error_stays() -> None:
    value = 1
    with pytest.raises(CommandError) as caught:
        execute("print('so far')\nvalue = 2\nvalue.foo", at_node(here()))
    assert caught.value.message == "AttributeError: 'int' object has no attribute 'foo' (line 3: value.foo)"
    assert caught.value.printed == "so far\n"  # type: ignore[attr-defined]
    assert value == 2


def test_deleting() -> None:
    value = 1
    names = at_node(here())
    execute("new = 2\nother = 3", names)
    if sys.version_info[:3] != (3, 13, 0):
        execute("del new", names)
        assert message_of("new", names) == "name 'new' is not defined"
    with pytest.raises(CommandError, match="'value' is not deleted"):
        execute("del value\nother = 4", names)
    assert value == 1 and evaluate("other", names) == 4


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("grad_outputs = 1", "grad_outputs is not assigned by a statement"),
        ("x = (", "'(' was never closed: x = ("),
        ("if True:\npass", "expected an indented block"),
        ("return 1", "'return' outside function"),
        ("import nonsuch_module", "ModuleNotFoundError: No module named 'nonsuch_module'"),
    ],
)
def test_bad_statements(statement: str, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        execute(statement, at_node(here()))
    assert caught.value.message.startswith(message)


def test_only_this_threads_output_is_captured() -> None:
    stream = io.StringIO()
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        go.wait(10)
        print("other thread")
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    real, sys.stdout = sys.stdout, stream
    try:
        names = Namespace(values={"go": go, "done": done})
        assert execute("print('mine')\ngo.set()\ndone.wait(10)\nprint('still mine')", names) == "mine\nstill mine\n"
        assert sys.stdout is stream
    finally:
        sys.stdout = real
        thread.join(10)
    assert stream.getvalue() == "other thread\n"


def test_capturing_nests_and_is_bounded() -> None:
    with thread_stdout() as outer:
        print("a")
        with thread_stdout() as inner:
            print("b" * (MAX_CAPTURED + 10))
        print("c")
    assert outer.text == "a\nc\n"
    assert inner.text.endswith("11 more characters not shown\n") and len(inner.text) < MAX_CAPTURED + 100


def test_a_redirected_stdout_of_the_code_is_left_alone() -> None:
    other = io.StringIO()
    real = sys.stdout
    try:
        execute("import sys\nsys.stdout = other", Namespace(values={"other": other}))
        assert sys.stdout is other
    finally:
        sys.stdout = real


# ------------------------------------------------------------------ set


TARGETS = {
    "grad_outputs[0]": GradTarget("grad_outputs", 0),
    "grad_inputs[-1]": GradTarget("grad_inputs", -1),
    "grad_outputs[0][0, :4]": GradTarget("grad_outputs", 0, "[0, :4]"),
    "x": PythonTarget("x"),
    "model.lr": PythonTarget("model.lr"),
    "cfg['é'][0]": PythonTarget("cfg['é'][0]"),
}


@pytest.mark.parametrize("text", TARGETS)
def test_targets(text: str) -> None:
    assert parse_target(text, items=True) == TARGETS[text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grad_outputs", "one entry per slot"),
        ("grad_outputs[i]", "must be a number"),
        ("grad_outputs[True]", "must be a number"),
        ("grad_outputs[0].data", "not a part of a gradient"),
        ("grad_outputs[0][1]", "set as a whole"),
        ("saved.self", "read-only"),
        ("saved", "read-only"),
        ("f(x)", "nothing that can be set"),
        ("a, b", "nothing that can be set"),
        ("a +", "nothing that can be set"),
        ("", "nothing that can be set"),
    ],
)
def test_targets_that_cannot_be_set(text: str, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_target(text)
    assert message in caught.value.message
    assert caught.value.hint


def test_assigning_names_attributes_and_items() -> None:
    value, items = 1, [1, 2]
    box = types.SimpleNamespace(x=1)
    names = at_node(here())
    for text, new in (("value", 5), ("items[1]", 6), ("box.x", 7)):
        target = parse_target(text)
        assert isinstance(target, PythonTarget)
        assign(target, new, names)
    assert (value, items, box.x) == (5, [1, 6], 7)
    with pytest.raises(CommandError, match="IndexError: list assignment index out of range"):
        assign(PythonTarget("items[9]"), 0, names)
    with pytest.raises(CommandError, match="no Python frame"):
        assign(PythonTarget("value"), 0, Namespace())


def test_assigning_a_part_of_a_gradient() -> None:
    first = 0
    clone = FakeTensor([1.0, 2.0])
    assign_item(clone, "[first]", 9.0, at_node(here()))
    assert clone.values == [9.0, 2.0], first
    with pytest.raises(CommandError, match="IndexError"):
        assign_item(clone, "[5]", 9.0, at_node())
