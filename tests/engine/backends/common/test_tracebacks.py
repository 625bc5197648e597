"""The script's tracebacks hold no frame of adbg's, and all of the script's."""

from __future__ import annotations

import contextlib
import importlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adbg.engine.backends.common.tracebacks import strip_own


def frames(error: BaseException) -> list[tuple[str, str]]:
    return [(entry.filename, entry.name) for entry in traceback.extract_tb(error.__traceback__)]


def raised(run: Callable[[], Any]) -> list[tuple[str, str]]:
    with pytest.raises(Exception) as found:
        run()
    return [entry for entry in frames(found.value) if entry[1] not in ("raised", "inner")]  # inner: torch, with hooks


def test_an_exception_of_adbg_s_own_alone() -> None:
    namespace: dict[str, Any] = {"__name__": "adbg.engine.somewhere"}
    exec("def run(call): call()", namespace)
    error = ValueError()
    strip_own(error)
    assert error.__traceback__ is None

    def fail() -> None:
        raise error

    with pytest.raises(ValueError):
        namespace["run"](lambda: namespace["run"](fail))
    strip_own(error)
    names = [name for _, name in frames(error)]
    assert "run" not in names and names[-2:] == ["<lambda>", "fail"]


def test_what_adbg_called_of_the_standard_library_goes_with_it() -> None:
    """A Ctrl-C that comes while adbg waits for a lock. What of the standard library calls the program stays."""
    namespace: dict[str, Any] = {"__name__": "adbg.engine.somewhere"}
    exec("def run(call): call()", namespace)
    with pytest.raises(RuntimeError) as found:
        namespace["run"](threading.Condition().notify)  # raises, for the lock is not held
    strip_own(found.value)
    assert [name for _, name in frames(found.value)] == ["test_what_adbg_called_of_the_standard_library_goes_with_it"]

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        yield

    @around()
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError) as other:
        namespace["run"](fail)
    strip_own(other.value)
    assert [name for _, name in frames(other.value)][1:3] == ["inner", "fail"]


@pytest.mark.torch
def test_torch() -> None:
    torch = pytest.importorskip("torch.autograd") and importlib.import_module("torch")
    from tests.support.torch_watch import Watch, watching  # type: ignore[import-not-found]

    class Inner(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise LookupError("x")

    class Outer(Inner):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            with torch.enable_grad():
                Inner.apply(g.detach().requires_grad_()).sum().backward()

    def run() -> None:
        Outer.apply(torch.ones(3, requires_grad=True)).sum().backward()

    plain = raised(run)
    for armed in (True, False):
        with watching(Watch(), armed=armed):
            assert raised(run) == plain
    assert [name for _, name in plain].count("backward") > 3


@pytest.mark.paddle
def test_paddle() -> None:
    paddle = pytest.importorskip("paddle.autograd") and importlib.import_module("paddle")
    from tests.support.paddle_watch import Watch, watching

    class Bad(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            raise LookupError("x")

    class Around(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.bad = Bad()

        def forward(self, x: Any) -> Any:
            return self.bad(x)

    class Failing(paddle.autograd.PyLayer):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise LookupError("x")

    def backward() -> None:
        x = paddle.ones([3])
        x.stop_gradient = False
        Failing.apply(x).sum().backward()

    runs = (lambda: Around()(None), backward, lambda: paddle.grad([paddle.ones([3])], [paddle.ones([2])]))
    plain = [raised(run) for run in runs]
    with watching(Watch(), stacks=True):
        assert [raised(run) for run in runs] == plain
    assert [name for _, name in plain[0]].count("forward") == 2
