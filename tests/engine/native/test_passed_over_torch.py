"""A call that is just like one in which breakpoints took nothing is passed over; one that differs in a stack, a module,
a parameter or a type of node is not. And objects of nodes that are handed out and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adbg.engine.protocol.messages import BreakpointRequest  # noqa: E402
from adbg.engine.session.breakpoints.table import BreakpointTable  # noqa: E402
from adbg.engine.session.passed_over import PassedOver  # noqa: E402
from tests.support.torch_watch import Watch, watching  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("native")]

# What the model does in each iteration: it takes the other part and the other parameter, or an operation more.
COURSE = [0] * 6 + [1] + [0] * 3 + [2] + [0] * 2 + [1] * 2
OTHER = [number for number, what in enumerate(COURSE, 1) if what == 1]
ALIKE = {4, 5, 6, 8, 9, 10, 12, 13}  # just like one of the first three


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.v, self.w = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))

    def forward(self, x: Any, what: int) -> Any:
        part, leaf = (self.two, self.w) if what == 1 else (self.one, self.v)
        y = part(x) * leaf
        if what == 2:
            y = y.tanh()  # more
        return y.sum()


LINE = next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "# more" in line)


class Looking(Watch):
    """Decides as the session does."""

    def __init__(self, spec: str) -> None:
        super().__init__()
        table = BreakpointTable()
        (state,) = table.replace([BreakpointRequest(spec, 1)])
        assert state.verified, state
        self.plan = table.plan()
        self.passed = PassedOver()
        self.passed.look_for(*table.passing(True))
        self.looked: set[int] = set()
        self.took: list[int] = []
        self.nodes: dict[int, int] = {}

    def passes_over(self, kinds: frozenset[str], alike: Any = None) -> bool:
        return self.passed.holds(kinds, alike)

    def backward_begin(self, call: Any) -> None:
        super().backward_begin(call)
        self.looked.add(call.number)
        if not call.hook(self.plan):
            self.passed.learn(call.alike, self.plan)

    def node_begin(self, call: Any, key: int, grad_outputs: Any) -> None:
        self.took.append(call.number)

    def node_end(self, call: Any, key: int, grad_inputs: Any, grad_outputs: Any) -> None: ...

    def brief_begin(self, call: Any) -> None:
        self.nodes[call.number] = call.nodes

    def brief_end(self, number: int, us: float, error: Any) -> None: ...


@pytest.mark.parametrize(
    ("spec", "in_calls"),
    [
        ("module:two", OTHER),
        ("param:w", OTHER),
        (f"{__file__}:{LINE}", [COURSE.index(2) + 1]),
        ("TanhBackward0", [COURSE.index(2) + 1]),
    ],
)
def test_only_calls_like_one_without_a_match_are_passed_over(spec: str, in_calls: list[int]) -> None:
    watch = Looking(spec)
    model = Model()
    sizes = []
    with watching(watch, stacks=True) as backend:
        for what in COURSE:
            loss = model(torch.ones(2, 3), what)
            seen, todo = {loss.grad_fn}, [loss.grad_fn]
            while todo:
                for node, _ in todo.pop().next_functions:
                    if node is not None and node not in seen:
                        seen.add(node)
                        todo.append(node)
            sizes.append(len(seen))
            loss.backward()
        assert not backend._core.failed
    assert sorted(set(watch.took)) == in_calls
    assert watch.nodes.keys() >= ALIKE and not ALIKE & watch.looked
    assert all(nodes == sizes[number - 1] for number, nodes in watch.nodes.items())


def test_a_parameter_of_another_model_is_no_look_alike() -> None:
    """The same lines, the same shapes: the accumulate nodes are others."""
    watch = Looking("param:w")
    first, second = torch.nn.Parameter(torch.ones(3)), Model()
    with watching(watch, stacks=True):
        for number in range(8):
            leaf = second.w if number == 7 else first
            second(torch.ones(2, 3), 0).backward() if number == 0 else None
            (leaf * 2).exp().sum().backward()
    assert watch.took and set(watch.took) == {9}


def test_objects_that_are_taken_back_leave_no_trace() -> None:
    """Nodes that the program itself refers to keep theirs."""
    with watching(Watch()) as backend:
        (torch.ones(2, requires_grad=True) * torch.ones(2, requires_grad=True)).sum().backward()
        x = torch.ones(2, requires_grad=True)
        end = x
        for _ in range(3_000):
            end = end * 1.5
        mine = end.grad_fn.next_functions[0][0]
        numbers = [mine._sequence_nr() - back for back in range(2_998)]
        graph = backend.graph_of([end])
        asked = [graph.node(key)._sequence_nr() for key in range(1, 2_999)]
        assert asked == numbers and graph.node(1) is mine
        held = graph.node(5)
        assert graph.far.reclaim() == 1, "the one that is held here, of those that were handed out"
        assert graph.node(5) is held and held.name() == "MulBackward0"
        assert len({graph.address(key) for key in range(3_001)}) == 3_001
        del held
        assert graph.far.reclaim() == 0
        graph.release()
    assert mine.next_functions[0][0]._sequence_nr() == numbers[1]
    end.sum().backward()
    assert x.grad.tolist() == torch.full((2,), 1.5, dtype=torch.float64).pow(3_000).float().tolist()
