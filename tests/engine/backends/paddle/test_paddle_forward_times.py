"""Forward times on Paddle beside its compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.frameworks import only_here

from adbg.engine.backends.base import ForwardTimer

pytestmark = only_here("paddle", "of Paddle's compiler, which looks at the functions that it meets")


@pytest.fixture
def timer() -> Iterator[ForwardTimer]:
    pytest.importorskip("paddle")
    from adbg.engine.backends.paddle.backend import PaddleBackend

    made = PaddleBackend().forward_timer()
    yield made
    made.abandon()


@pytest.mark.parametrize("full_graph", [True, False])
def test_a_compiled_function_meets_paddles_own(timer: ForwardTimer, full_graph: bool) -> None:
    import paddle

    met: list[bool] = []
    own = paddle._C_ops.tanh

    def double(x: Any) -> Any:
        return paddle.tanh(x) * 2

    compiled = paddle.jit.to_static(double, full_graph=full_graph)
    x = paddle.randn([4, 4])
    x.stop_gradient = False
    plain = double(x)
    assert timer.begin() and paddle._C_ops.tanh is not own
    result = compiled(x)
    met.append(paddle._C_ops.tanh is own)
    assert met == [True] and timer.end() is None and "to_static" in timer.problem
    assert (result.numpy() == plain.numpy()).all()
    assert not timer.begin() and "to_static" in timer.problem and paddle._C_ops.tanh is own
