"""The extension's watch for gradients that are not finite: found out about and tried on graphs of our own.

The engine calls a node through its class's virtual table, and there ours stands in for the time of a watch (see
``paddle_watch.cpp``). Which entry that is, how long a tensor is, and where a node counts the hooks in front of it is
looked up here and never assumed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import paddle

from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.final import final_hooks_aside
from adbg.engine.backends.paddle.native.memory import ReadMemory
from adbg.engine.backends.paddle.native.own import own_leaf

#: (address of the node, what flows out of it or None, what flowed in): what to go on with, by gradient, or None.
Found = Callable[[int, list[Any] | None, list[Any]], "list[Any] | None"]
_CALL = "ERN6paddle12small_vectorISt6vectorINS{}_6TensorESaIS{}_EELj15EEEbb"
_CALLS = {
    "ScaleGradNode": "_ZN13ScaleGradNodecl" + _CALL.format(0, 3),
    "GradNodeAccumulation": "_ZN3egr20GradNodeAccumulationcl" + _CALL.format(1, 4),
}
_ENTRIES = 16  # of a virtual table that are looked at
_REACH = 1024  # bytes of a node behind its stack that are looked at


class NativeWatch:
    """Raises LookupError with what is missing or not as expected; runs operators and backwards of our own."""

    def __init__(self, module: Any, nodes: symbols.NativeNodes) -> None:
        self._module = module
        memory = ReadMemory()
        try:
            index = _call_index(module, memory)
            hooks = _hooks_offset(nodes, memory)
            kinds = [int(each) for each in (paddle.float32, paddle.float64, paddle.float16, paddle.bfloat16)]
            begin = functools.partial(module.paddle_watch_begin, index, nodes.layout.tensor_offset)
            with final_hooks_aside(symbols.library(), memory):
                begin(0, *kinds, hooks)
                size = self._probe()
                begin(size, *kinds, hooks)
                self._check()
        finally:
            memory.close()

    def start(self, roots: Sequence[int], found: Found) -> int:
        """Watch the graph below ``roots`` on this thread, until ``stop``; the number of its nodes, 0 where something
        in it is not for the extension: hooks of the script, several gradients in one slot."""
        return int(self._module.paddle_watch_start(roots, (), found))

    def stop(self) -> list[int]:
        """Addresses of the nodes that ran meanwhile."""
        ran: list[int] = self._module.paddle_watch_stop()
        return ran

    def end(self) -> None:
        """``stop``, where nobody asks."""
        self._module.paddle_watch_end()

    # ---- checks

    def _run(self, root: Any, found: Found, gradient: Any = None) -> int:
        watched = self.start([root.grad_fn.node_ptr()], found)
        try:
            private.run_backward([root], [] if gradient is None else [gradient], False, "")
        finally:
            ran = self.stop()
        if len(ran) != watched:
            raise LookupError(f"{len(ran)} of {watched} watched nodes were seen to run")
        return watched

    def _probe(self) -> int:
        self._module.paddle_watch_probe()
        self._run(paddle.scale(own_leaf([3])), _nothing)
        size = int(self._module.paddle_watch_probe()[0])
        if not 48 <= size <= 128 or size % 8:
            raise LookupError(f"a tensor of {size} bytes")
        return size

    def _check(self) -> None:
        told: list[tuple[int, Any, Any]] = []

        def found(address: int, outgoing: Any, incoming: Any) -> Any:
            told.append((address, outgoing, incoming))
            return [own_leaf([3], value=5.0)] if outgoing is not None else None

        leaf = own_leaf([3], value=1.0)
        if self._run(paddle.scale(paddle.scale(leaf, 2.0), 3.0), found) != 3 or told:
            raise LookupError(f"finite gradients were told of: {told}")
        big = own_leaf([3], value=3e38)
        inner = paddle.scale(leaf, 2.0)
        self._run(paddle.scale(inner, 10.0), found, big)
        if [each[0] for each in told[:1]] == [] or len(told) != 1:
            raise LookupError(f"an overflow was told {len(told)} times")
        (_, outgoing, incoming), expected = told[0], 2.0 * 3.0 + 2.0 * 5.0
        values = [float(value.numpy()[0]) for value in (*outgoing, *incoming)]
        got = leaf.grad.numpy().tolist()
        if values[0] != float("inf") or abs(values[1] / 3e38 - 1) > 1e-6 or got != [expected] * 3:
            raise LookupError(f"an overflow was told as {values}, its edit arrived as {got}")


def _nothing(address: int, outgoing: list[Any] | None, incoming: list[Any]) -> None:
    """Nothing is edited."""


def _call_index(module: Any, memory: ReadMemory) -> int:
    """The place of operator() in the virtual tables of nodes."""
    node = paddle.scale(own_leaf([1])).grad_fn
    (accumulate,) = node.next_functions
    places = set()
    for each, symbol in zip((node, accumulate), _CALLS.values(), strict=True):
        function = module.symbol(symbol, "libpaddle")
        table = memory.word(each.node_ptr())
        found = [place for place in range(_ENTRIES) if function and memory.word(table + 8 * place) == function]
        places.add(found[0] if len(found) == 1 else -1)
    if len(places) != 1 or -1 in places:
        raise LookupError("how the engine calls a node was not found")
    return places.pop()


def _hooks_offset(nodes: symbols.NativeNodes, memory: ReadMemory) -> int:
    """Where a node counts the hooks in front of it: what is 0, 1 and 2 with as many, and 0 again without."""
    node = paddle.scale(own_leaf([1])).grad_fn
    size = nodes.mark_offsets()[0] + _REACH

    def words() -> dict[int, int]:
        return dict(memory.words(node.node_ptr(), size))

    seen = [words()]
    placed = []
    for _ in range(2):
        placed.append(nodes.place(node, 0, 0, _same))
        seen.append(words())
    for hook in placed:
        nodes.remove(node, hook)
    seen.append(words())
    nodes.rest()
    found = [at for at in seen[0] if [each.get(at) for each in seen] == [0, 1, 2, 0]]
    if len(found) != 1:
        raise LookupError(f"where a node counts its hooks was found {len(found)} times")
    return found[0]


def _same(gradient: Any) -> None:
    """A hook that changes nothing; it never runs."""
