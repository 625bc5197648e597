"""Tensors whose axes nothing gives a meaning, and those that were laid out anew. Asked by ``exchanged``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import plain, shape, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marks

DRAWS = frozenset({
    "randn", "rand", "randint", "randperm", "normal", "gaussian", "uniform", "bernoulli", "poisson", "randn_like",
    "rand_like", "randint_like", "multinomial", "exponential", "standard_normal", "truncated_gaussian_random",
})  # fmt: skip
_FILLED = frozenset({
    "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones",
    "new_full", "new_empty", "arange", "linspace", "eye",
})  # fmt: skip
_LAID = frozenset({
    "view", "reshape", "view_as", "reshape_as", "unflatten", "flatten", "repeat", "repeat_interleave", "tile", "expand",
    "expand_as", "broadcast_to", "unfold", "as_strided",
})  # fmt: skip
_JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
_PICKS = frozenset({"getitem", "index_select", "gather", "take_along_axis", "take"})
_TURNS = frozenset({
    "view", "reshape", "view_as", "reshape_as", "transpose", "permute", "swapaxes", "t", "T", "mT", "flatten",
    "unflatten", "squeeze", "unsqueeze", "contiguous", "to", "cast", "float", "double",
})  # fmt: skip
_DRAWS_INTO = frozenset({"normal_", "uniform_", "bernoulli_", "random_", "exponential_"})


@dataclass(slots=True)
class Drawn:
    """Random numbers, or what is computed of these and of parameters alone. ``meant``: something else took them, too,
    and may have made targets of them."""

    meant: bool = False


class Origins:
    def __init__(self) -> None:
        self._drawn: Marks[Drawn] = Marks()
        self._filled: Marks[None] = Marks()
        self._laid: Marks[None] = Marks()

    def of(self, value: Any) -> Drawn | None:
        """None where its axes may mean something from the start."""
        known = self._drawn.of(value)
        return known.what if known is not None else None

    def forget(self, value: Any) -> None:
        """What takes it from now on says nothing of what it was made of."""
        self._drawn.drop(value)

    def is_pairing(self, target: Any) -> bool:
        """Whether rows of a target belong to rows of the data: no constant, and nothing that was laid out anew."""
        return self._filled.of(target) is None and self._laid.of(target) is None

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        if name in DRAWS or call.name in _DRAWS_INTO:
            self._put(self._drawn, call, Drawn())
        elif name in _FILLED:
            self._put(self._filled, call, None)
        else:
            self._pass_on(call, name)

    def _pass_on(self, call: OperatorCall, name: str) -> None:
        for each in writes(call):
            self._filled.drop(each)  # it has other values now
        roots = [each.what for one in call.operands if (each := self._drawn.of(one)) is not None]
        if roots:
            shapes = [shape(each) for each in call.operands]
            alone = all(
                self._drawn.of(each) is not None or self._filled.of(each) is not None or _is_parameter(each)
                for each in call.operands
            )
            kept = name in _TURNS or all(each.requires_grad or shape(each) in shapes for each in call.results)
            if alone and kept and call.results and not writes(call):
                self._put(self._drawn, call, roots[0])
            elif not (alone and name in _LAID):
                for each in roots:
                    each.meant = True
        elif call.operands and all(map(_is_parameter, call.operands)):
            self._put(self._drawn, call, Drawn())
        laid = name in _LAID and any(_real(each) != _real(call.operands[0]) for each in call.results)
        laid |= name in _JOINS and len({id(each) for each in call.operands}) < len(call.operands)
        laid |= name in _PICKS and any(shape(each)[:1] > shape(call.operands[0])[:1] for each in call.results)
        if laid or any(self._laid.of(each) is not None for each in call.operands):
            self._put(self._laid, call, None, False)

    @staticmethod
    def _put(marks: Marks[Any], call: OperatorCall, what: Any, graphs: bool = True) -> None:
        for each in call.results:
            if graphs or not each.requires_grad:
                marks.put(each, what, call.name, None)


def _is_parameter(value: Any) -> bool:
    return bool(value.requires_grad and value.is_leaf)


def _real(value: Any) -> list[int]:
    return [size for size in shape(value) if size != 1]
