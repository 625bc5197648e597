"""Forward times on torch beside what a program does with torch itself: its profilers, its modes, torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.frameworks import only_here

from adbg.engine.backends.base import ForwardTimer, ForwardTimes

pytestmark = only_here("torch", "of torch's profilers, modes and compiler")


@pytest.fixture
def timer() -> Iterator[ForwardTimer]:
    pytest.importorskip("torch")
    from adbg.engine.backends.torch.backend import TorchBackend

    made = TorchBackend().forward_timer()
    yield made
    made.abandon()


def told(times: ForwardTimes, result: Any) -> dict[str, float | None]:
    from adbg.engine.backends.torch.backend import TorchBackend

    graph = TorchBackend().graph_of([result])
    assert graph is not None
    return {graph.describe(key).name: times.of(graph, key) for key in graph.order()}


def test_parts_of_a_composite(timer: ForwardTimer) -> None:
    import torch

    x = torch.randn(64, 64, requires_grad=True)
    w = torch.randn(64, 64, requires_grad=True)
    attention = torch.nn.MultiheadAttention(64, 4)
    assert timer.begin()
    y = torch.nn.functional.linear(x, w)
    y = attention(y, y, y, need_weights=True)[0]
    view = y.clone()
    view[0].mul_(2)  # in place on a view: CopySlices
    loss = torch.nn.functional.cross_entropy(view, torch.zeros(64, dtype=torch.long))
    times = timer.end()
    assert times is not None
    rows = told(times, loss)
    made = {name: us for name, us in rows.items() if "AccumulateGrad" not in name}
    assert {"LogSoftmaxBackward0", "NllLossBackward0", "CopySlices", "SoftmaxBackward0"} <= {
        name.rpartition("::")[2] for name in made
    }
    assert None not in made.values(), made


def old_profiler() -> Any:
    import torch

    return torch.autograd.profiler_legacy.profile()


def new_profiler() -> Any:
    import torch

    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


@pytest.mark.parametrize("profiler", [old_profiler, new_profiler])
def test_the_programs_own_profiler_has_its_place(timer: ForwardTimer, profiler: Callable[[], Any]) -> None:
    import torch

    x = torch.randn(8, 8, requires_grad=True)
    assert timer.begin()
    with profiler() as profile:
        torch.mm(x, x)
    events = profile.events() if profiler is new_profiler else profile.function_events
    assert "aten::mm" in [event.name for event in events], "its records are its own"
    assert timer.end() is None and timer.problem == "the program started its own profiler"
    with profiler():
        assert not timer.begin() and timer.problem == "the program has a profiler on"
    assert timer.begin() and timer.end() is not None


def test_nothing_is_compiled_again(timer: ForwardTimer) -> None:
    import torch
    import torch._dynamo as dynamo
    from torch._dynamo.utils import counters

    dynamo.reset()
    counters.clear()
    compiled = torch.compile(lambda x: torch.nn.functional.layer_norm(x * 2, (8,)).tanh(), backend="aot_eager")
    x = torch.randn(8, 8, requires_grad=True)

    def seen() -> tuple[int, int, int]:
        stats = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()), counters["frames"]["total"]
        return (int(stats[0]), int(stats[1]), int(stats[2]))

    assert timer.begin()
    first = compiled(x).sum()  # compiled while it is timed
    assert timer.end() is not None
    compiled(x).sum().backward()
    before = seen()
    assert before == (1, 0, 1)
    assert timer.begin()
    result = compiled(x).sum()
    times = timer.end()
    assert times is not None and seen() == before
    rows = told(times, result)
    (region,) = (us for name, us in rows.items() if "Compiled" in name)
    assert region is not None and region > 0, "all that was compiled is one node"
    assert torch.equal(first, result)
    dynamo.reset()


def test_the_programs_modes_see_what_they_saw(timer: ForwardTimer) -> None:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f"F {func}")
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f"D {func}")
            return func(*args, **(kwargs or {}))

    def run() -> list[str]:
        seen.clear()
        x = torch.ones(4, 4, requires_grad=True)
        with Functions(), Dispatches():
            torch.nn.functional.layer_norm(x @ x, (4,)).relu().sum()
        return [each.split(" at 0x")[0] for each in seen]

    plain = run()
    assert any(each.startswith("D") for each in plain) and any(each.startswith("F") for each in plain)
    assert timer.begin()
    assert run() == plain
    assert timer.end() is not None
