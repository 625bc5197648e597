"""What a review of the entry found: races of attach and detach, wrapped engines, exceptions that must not be kept."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from adbg.engine.backends.torch.backend import TorchBackend


class Sink:
    """Counts, and never raises."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    def backward_begin(self, call: Any) -> None:
        self.begun += 1

    def backward_end(self, call: Any, error: BaseException | None) -> None:
        self.ended += 1


def test_detach_while_backward_begins_raises_nothing_into_the_script() -> None:
    backend, stop, parameter = TorchBackend(), threading.Event(), torch.ones(3, requires_grad=True)
    failures: list[BaseException] = []

    def script() -> None:
        try:
            while not stop.is_set():
                (parameter * 2).sum().backward()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=script)
    thread.start()
    for _ in range(1500):
        backend.install(Sink())
        backend.arm(True)
        backend.uninstall()
    stop.set()
    thread.join(20)
    assert not failures


def test_an_engine_wrapped_by_another_tool_counts_each_backward_once() -> None:
    engine, variable = torch.autograd.Variable._execution_engine, torch.autograd.Variable
    backend = TorchBackend()
    try:
        backend.install(Sink())
        ours = variable._execution_engine

        class Tool(torch._C._ImperativeEngine):  # type: ignore[misc,name-defined]
            @staticmethod
            def run_backward(*args: Any, **kwargs: Any) -> Any:
                return ours.run_backward(*args, **kwargs)

        variable._execution_engine = Tool()
        backend.uninstall()
        sink = Sink()
        backend.install(sink)
        backend.arm(True)
        before = backend.backward_count
        torch.ones(2, requires_grad=True).sum().backward()
        assert (backend.backward_count - before, sink.begun, sink.ended) == (1, 1, 1)
    finally:
        backend.uninstall()
        variable._execution_engine = engine


@pytest.mark.parametrize("armed", [False, True])
def test_an_exception_that_a_custom_backward_catches_is_not_kept(armed: bool) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    class Catches(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            big = torch.ones(1000)
            seen.append(weakref.ref(big))
            try:
                with torch.enable_grad():
                    x = torch.ones(3, requires_grad=True)
                    y = x.exp()
                    loss = (y * 2).sum()
                    y.add_(1)
                    loss.backward()
            except RuntimeError:
                pass
            return grad * 2

    backend = TorchBackend()
    backend.install(Sink())
    backend.arm(armed)
    try:
        for _ in range(5):
            Catches.apply(torch.ones(3, requires_grad=True)).sum().backward()
    finally:
        backend.uninstall()
    gc.collect()
    assert len(seen) == 5 and not any(ref() is not None for ref in seen)
