"""The tap of operators on real Paddle: what is told, and that everything is as it was once it is out."""

from __future__ import annotations

import inspect
import pickle
import threading

import pytest

paddle = pytest.importorskip("paddle")

from paddle.base.framework import EagerParamBase  # noqa: E402

from adbg.engine.backends.base import OperatorCall, Watcher  # noqa: E402
from adbg.engine.backends.paddle.observing.operators import OperatorTap  # noqa: E402


class Told(Watcher):
    def __init__(self) -> None:
        self.calls: list[OperatorCall] = []
        self.wholes: list[OperatorCall] = []

    def composite(self, call: OperatorCall) -> None:
        self.calls.append(call)
        self.wholes.append(call)

    def operator(self, call: OperatorCall) -> None:
        paddle.ones([2]).add_(paddle.ones([2]))  # an operator of the watcher's own
        self.calls.append(call)

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]


def places():
    modules = (paddle._C_ops, paddle._legacy_C_ops, paddle.Tensor, paddle.nn.functional, paddle, paddle.nn.MSELoss)
    return [dict(vars(module)) for module in modules]


@pytest.fixture
def tap():
    before = places()
    tap, told = OperatorTap(), Told()
    tap.put_in(told)
    yield tap, told
    tap.take_out()
    for was, now in zip(before, places(), strict=True):
        assert was.keys() == now.keys()
        assert [name for name, value in was.items() if now[name] is not value] == []


def test_calls_are_told_with_operands_versions_and_lines(tap):
    _, told = tap
    x = paddle.ones([2, 3])
    x.add_(paddle.ones([3]))
    y = paddle.concat([x, x])
    y[0] = 5.0
    assert y.numpy().sum() == 33
    with paddle.no_grad():
        z = y.detach()
    names = told.names
    add, cat, item = (
        next(call for call in told.calls if call.name == name) for name in ("add_", "concat", "__setitem__")
    )
    assert add.versions[0] == 0 and add.operands[0] is x and x.inplace_version == 1
    assert [id(each) for each in cat.operands] == [id(x), id(x)] and cat.results[0] is y
    assert item.lines[0].line == test_calls_are_told_with_operands_versions_and_lines.__code__.co_firstlineno + 5
    assert told.calls[-1].name == "detach" and told.calls[-1].results[0] is z and not told.calls[-1].grad_mode
    assert names.count("numpy") == 1


def test_a_function_of_several_operators_is_told_after_them(tap):
    _, told = tap
    x, y = paddle.ones([2, 3]), paddle.zeros([2, 3])
    paddle.nn.MSELoss()(x, y)
    loss = paddle.nn.functional.mse_loss(x, y, "sum")
    first, whole = told.wholes
    assert first.name == "mse_loss" and first.arguments == (x, y) and first.keywords == {"reduction": "mean"}
    assert whole.name == "mse_loss" and told.calls[-1] is whole and len(told.calls) > 1
    assert [id(each) for each in whole.operands] == [id(x), id(y)] and whole.results[0] is loss
    assert whole.keywords == {"reduction": "sum"}
    assert whole.lines[0].line == test_a_function_of_several_operators_is_told_after_them.__code__.co_firstlineno + 4
    x.masked_fill(x > 0.5, -1e9)
    assert told.wholes[-1].name == "masked_fill" and float(told.wholes[-1].arguments[2]) == -1e9
    paddle.masked_fill(x, x > 0.5, -2.0)
    assert float(told.wholes[-1].arguments[2]) == -2.0
    q = paddle.ones([1, 4, 2, 8])
    paddle.nn.functional.scaled_dot_product_attention(q, q, q, paddle.ones([1, 1, 4, 4]).astype("bool"))
    assert told.wholes[-1].name == "scaled_dot_product_attention" and told.wholes[-1].arguments[3].shape == [1, 1, 4, 4]
    assert len(told.wholes) == 5


def test_a_mean_of_the_users_own_is_no_loss(tap):
    _, told = tap

    def mse_loss(x):
        return (x * x).mean()

    mse_loss(paddle.ones([2]))
    paddle.nn.functional.softmax(paddle.ones([2, 2])).sum()
    assert told.wholes == []


def test_functions_are_what_they_were_while_they_are_told(tap):
    assert pickle.loads(pickle.dumps(paddle.nn.functional.mse_loss)) is paddle.nn.functional.mse_loss
    assert list(inspect.signature(paddle.nn.functional.mse_loss).parameters) == ["input", "label", "reduction", "name"]


def test_what_forward_stacks_stand_in_for(tap):
    _, told = tap
    paddle.nn.functional.conv2d(paddle.ones([1, 1, 4, 4]), paddle.ones([1, 1, 2, 2]))
    assert "conv2d" in told.names


def test_an_operator_that_raises(tap):
    _, told = tap
    with pytest.raises(ValueError) as raised:
        paddle.matmul(paddle.ones([2, 3]), paddle.ones([2, 3]))
    assert told.calls[-1].error is raised.value
    assert not any("observing" in str(entry.path) for entry in raised.traceback)


def test_other_threads_are_left_alone(tap):
    _, told = tap
    thread = threading.Thread(target=lambda: paddle.ones([3]).exp())
    thread.start()
    thread.join()
    assert told.calls == []


def test_the_program_compiles(tap):
    tap, told = tap

    def plain(x):
        return x * 2 + 1

    run = paddle.jit.to_static(plain, full_graph=True)
    assert run(paddle.ones([2])).tolist() == [3.0, 3.0]
    assert tap.problem
    before = len(told.calls)
    paddle.ones([2])
    assert len(told.calls) == before


def test_a_parameter_of_what_has_a_graph_is_told(tap):
    _, told = tap
    x = paddle.ones([2])
    x.stop_gradient = False
    y = x * 2
    made = EagerParamBase.from_tensor(y)
    EagerParamBase.from_tensor(paddle.zeros([2]))
    EagerParamBase.from_tensor(y.detach())
    (call,) = [each for each in told.calls if each.name == "Parameter"]
    assert call.operands[0] is y and call.results[0] is made
    assert call.lines[0].line == test_a_parameter_of_what_has_a_graph_is_told.__code__.co_firstlineno + 5
