"""The program's own ``format_stack`` while Paddle asks for stacks too: Python's answer, and its own list."""

from __future__ import annotations

import contextvars
import functools
import operator
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from adbg.engine.backends.paddle.native import asking, texts  # noqa: E402
from tests.support.paddle_watch import Watch, watching  # noqa: E402

pytestmark = pytest.mark.usefixtures("paddles_own_texts")
python_own = traceback.format_stack


def leaf():
    tensor = paddle.ones([3])
    tensor.stop_gradient = False
    return tensor


def by_name(work):
    return work()


def without_names(work):
    return work(None, None)


def by_default(work, ask=None):
    def inner(ask=ask or work):
        return ask()

    return inner()


def starred(work, *args):
    return work(*args)


def on_a_thread(work):
    got = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    thread.join()
    return got[0]


def in_a_pool(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def as_attribute(work):
    class Tool:
        where = staticmethod(work)

    return Tool().where()


class Layer(paddle.autograd.PyLayer):  # called by Paddle, as an operator is
    work = None
    got = None

    @staticmethod
    def forward(ctx, x):
        Layer.got = Layer.work()
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def in_a_layer(work):
    Layer.work = staticmethod(work)
    Layer.apply(leaf())
    return Layer.got


WAYS = [
    by_name,
    without_names,
    by_default,
    starred,
    on_a_thread,
    in_a_pool,
    as_attribute,
    in_a_layer,
    lambda work: functools.partial(work)(),
    lambda work: next(map(operator.methodcaller("__call__"), [work])),
    lambda work: contextvars.copy_context().run(work),
    lambda work: [work() for _ in range(3)][-1],
]


@pytest.mark.parametrize("way", WAYS)
def test_the_program_gets_its_own_list_without_numbers(way):
    with watching(Watch(), stacks=True):
        work = traceback.format_stack
        assert work is not python_own
        way(lambda *args: paddle.tanh(leaf()))  # an operator at the same instruction, before
        mine = way(work)
        kept = list(mine)
        theirs = way(python_own)
        paddle.exp(leaf())
    assert mine == kept
    assert [line.split(", line ")[0] for line in mine] == [line.split(", line ")[0] for line in theirs]
    assert not any(texts.ORDER in line for line in mine)


def test_every_operator_that_asks_is_told_its_number():
    x = leaf()
    half = paddle.tanh
    made = []
    with watching(Watch(), stacks=True) as backend:
        for _ in range(3):
            for ask in (lambda: half(x), x.exp, lambda: x + 1, lambda: x[0:1], lambda: paddle.add_n([x, x])):
                made.append(ask())
        traceback.format_stack()
        made.append(x.exp())  # where the code names the function
        numbers = [backend._stacks.number(tensor.grad_fn) for tensor in made]
    assert 0 not in numbers and numbers == sorted(set(numbers))


def test_where_it_cannot_be_told_the_code_is_looked_at(monkeypatch):
    monkeypatch.setattr(asking, "_ASKS", "no_such_symbol")
    assert not asking.Asking().found
    with watching(Watch(), stacks=True):
        assert not any(texts.ORDER in line for line in traceback.format_stack())
