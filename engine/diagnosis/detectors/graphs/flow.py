"""Where values go and where gradients come back: which leaf reaches which tensor, and at which calls that is cut.

A leaf is a bit of an int; so is a cut. Tensors are known by their id while a weak reference says that they live.
"""

from __future__ import annotations

import ast
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape, writes
from adbg.engine.diagnosis.source import called_name, nodes_of
from adbg.engine.types import SourceLine

#: Results that depend on shapes alone.
_SHAPES = frozenset({
    "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_tensor", "randint_like", "bernoulli", "expand_as", "view_as", "type_as", "shape",
})  # fmt: skip
_KEEP = frozenset({"expand_as", "view_as", "type_as", "new_tensor", "bernoulli"})
#: What gives numbers that are no tensors.
LEAVES_GRAPH = frozenset({"item", "tolist", "numpy", "__float__", "__int__", "__array__", "__index__", "__complex__"})
_MATHS = ("math", "cmath", "np", "numpy", "torch", "paddle", "F", "jnp", "scipy")
_SHOWS = frozenset({
    "print", "format", "debug", "info", "warning", "log", "write", "add_scalar", "log_metric", "set_postfix",
    "set_description",
})  # fmt: skip
ROUNDS = frozenset({"round", "floor", "ceil", "sign", "sgn", "trunc", "fix", "heaviside", "floor_divide", "floordiv"})
MAKES_LEAF = "Parameter"  # of a tensor that has a graph
UNRECORDED = "it is computed under no_grad"
_MOST = 8000
_SCALARS = 256


@dataclass(slots=True)
class Known:
    """What reached a tensor: ``values`` and ``gradients`` are bits of leaves, ``cuts`` and ``rounds`` of calls.
    ``counted``: the cuts after which it was made a count or an index, which carries no gradient whatever is cut."""

    ref: Any
    values: int
    gradients: int
    cuts: int
    rounds: int
    line: SourceLine | None
    name: str
    counted: int = 0


@dataclass(slots=True)
class Leaf:
    ref: Any
    place: int  # its bit
    born: SourceLine | None  # where it was first written, which is where its module was made
    used: SourceLine | None = None  # the first call that took it, with gradients
    written: SourceLine | None = None  # where it was written last before that


@dataclass(slots=True)
class Cut:
    """A call after which there is less gradient than value. ``lost``: bits of leaves. ``copies``: it took these leaves
    themselves, as a state dict and a deep copy do."""

    name: str
    lines: tuple[SourceLine, ...]
    why: str
    lost: int = 0
    hidden: SourceLine | None = None  # the line that made what was cut silently in between
    copies: bool = False


@dataclass(slots=True)
class Scalar:
    """A single number with a graph: a loss, or a term of one. ``leaves``: bits of those that it has gradients of."""

    name: str
    line: SourceLine
    leaves: int


class Flow:
    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self.leaves: dict[int, Leaf] = {}
        self.cuts: list[Cut] = []
        self.rounds: list[Cut] = []
        self.scalars: dict[tuple[str, SourceLine | None], Scalar] = {}  # with a graph, in order
        self.escapes: list[Cut] = []  # in order, the last of each place after the others
        self._cut_at: dict[tuple[str, SourceLine | None], int] = {}
        self._round_at: dict[tuple[str, SourceLine | None], int] = {}
        self.stepping = False  # what an optimizer writes is no initialisation
        self._bits = itertools.count()

    def of(self, value: Any) -> Known | None:
        known = self.known.get(id(value))
        return known if known is not None and known.ref() is value else None

    def leaf(self, value: Any) -> Leaf | None:
        known = self.leaves.get(id(value))
        return known if known is not None and known.ref() is value else None

    def add_leaf(self, value: Any, line: SourceLine | None) -> Leaf:
        known = self.leaf(value)
        if known is None:
            known = self.leaves[id(value)] = Leaf(weakref.ref(value), next(self._bits), line)
        return known

    def born(self, value: Any) -> SourceLine | None:
        """Where a parameter was first written; None where its first use is the first that was seen of it."""
        known = self.leaf(value)
        return known.born if known is not None and known.born != known.used else None

    def written(self, value: Any) -> SourceLine | None:
        """Where it was initialised by hand: written to before its first use, in another line than the first."""
        known = self.leaf(value)
        return known.written if known is not None and known.written not in (known.born, known.used) else None

    # ---- a call

    def note(self, call: OperatorCall) -> None:
        name, lines = call.name, call.lines
        line = lines[0] if lines else None
        made = line if not self.stepping else None
        values = gradients = cuts = rounds = direct = 0
        for operand in call.operands:
            v, g, c, r, d = self._reach(operand, call)
            values, gradients, cuts, rounds, direct = values | v, gradients | g, cuts | c, rounds | r, direct | d
        for each in writes(call) if made is not None else ():
            written = self.leaf(each)
            if written is not None and written.used is None:
                written.written = made
        if not values:
            for result in call.results:
                if result.is_leaf and result.requires_grad:
                    self.add_leaf(result, made)
                elif id(result) in self.known:
                    del self.known[id(result)]
            return
        if name in LEAVES_GRAPH and not call.results:
            # NumPy asks a tensor so, as Paddle's ``to_tensor`` and torch's ``tensor`` do of a list: nobody writes it.
            who = "what takes tensors as numbers there" if name == "__array__" else f"{name}()"
            self._escape(
                Cut(name, lines, f"{who} gives numbers that carry no gradient", values), direct if gradients else cuts
            )
            return
        if name in _SHAPES and name not in _KEEP:
            return
        turn = 0
        if gradients and plain(name) in ROUNDS:
            turn = 1 << self._at(self._round_at, self.rounds, Cut(name, lines, "its derivative is 0"), gradients)
        for result in call.results or (call.operands[:1] if plain(name) == "setitem" else ()):
            if result.is_leaf and result.requires_grad:
                leaf = self.add_leaf(result, made)
                if any(result is operand for operand in call.operands):
                    continue  # written in place: a parameter's own initialisation, or a step
                bit = 1 << leaf.place
                cut = (
                    1 << self._at(self._cut_at, self.cuts, Cut(name, lines, self._why(call, result)), gradients)
                    if gradients
                    else 0
                )
                counted = cuts & ~direct
                self._set(
                    result, Known(weakref.ref(result), values | bit, bit, cuts | cut, rounds, line, name, counted)
                )
                continue
            reaching = gradients if result.requires_grad else 0
            lost = gradients & ~reaching
            cut = 0
            if lost:
                told = Cut(name, lines, self._why(call, result), copies=all(each.is_leaf for each in call.operands))
                cut = 1 << self._at(self._cut_at, self.cuts, told, lost)
            if reaching and line is not None and shape(result) in ([], [1]):
                self._single(name, line, reaching)
            every = cuts | cut
            counted = every if "int" in str(result.dtype) else cuts & ~direct  # no mask: that is a gate of values
            self._set(result, Known(weakref.ref(result), values, reaching, every, rounds | turn, line, name, counted))

    def _why(self, call: OperatorCall, result: Any) -> str:
        if call.name != MAKES_LEAF:
            return _why(call, result)
        made = self.of(call.operands[0])
        what = f"what {made.name} at {place(made.line)} computed" if made is not None else "what was computed"
        return f"it makes a leaf of its own of {what}, where the gradient stops: compute with the tensor itself"

    def _reach(self, operand: Any, call: OperatorCall) -> tuple[int, int, int, int, int]:
        wants = operand.requires_grad
        known = self.of(operand)
        if operand.is_leaf and wants:
            leaf = self.add_leaf(operand, call.lines[0] if call.lines and not self.stepping else None)
            if (
                leaf.used is None
                and call.lines
                and any(each.requires_grad and not each.is_leaf for each in call.results)
            ):
                leaf.used = call.lines[0]
            bit = 1 << leaf.place
            if known is not None:
                return known.values | bit, bit, known.cuts, known.rounds, known.cuts & ~known.counted
            return bit, bit, 0, 0, 0
        if known is None:
            return 0, 0, 0, 0, 0
        if wants and not known.gradients:  # a custom function: what its forward did is no cut
            known.gradients, known.cuts, known.counted = known.values, 0, 0
        elif not wants and known.gradients:
            was, known.gradients = known.gradients, 0
            told = Cut(known.name, call.lines, "it was told to carry no gradient", 0, known.line)
            cut = 1 << self._at(self._cut_at, self.cuts, told, was)
            known.cuts, known.counted = known.cuts | cut, known.counted & ~cut
        return known.values, known.gradients, known.cuts, known.rounds, known.cuts & ~known.counted

    def _single(self, name: str, line: SourceLine, leaves: int) -> None:
        known = self.scalars.pop((name, line), None)
        if len(self.scalars) < _SCALARS:
            leaves |= known.leaves if known is not None else 0
            self.scalars[name, line] = Scalar(name, line, leaves)

    def last_of(self, bit: int) -> Scalar | None:
        """The last number that was made of a leaf."""
        return next((each for each in reversed(self.scalars.values()) if each.leaves >> bit & 1), None)

    def _set(self, value: Any, known: Known) -> None:
        if len(self.known) > _MOST:
            self.known = {key: each for key, each in self.known.items() if each.ref() is not None}
        self.known[id(value)] = known

    def _at(self, places: dict[tuple[str, SourceLine | None], int], rows: list[Cut], row: Cut, lost: int) -> int:
        key = row.name, row.lines[0] if row.lines else None
        at = places.get(key)
        if at is None:
            at = places[key] = len(rows)
            rows.append(row)
        rows[at].lost |= lost
        return at

    def _escape(self, escape: Cut, cuts: int) -> None:
        """Numbers left: those of a tensor that was cut before are that cut's."""
        for at, cut in enumerate(self.cuts):
            if cuts >> at & 1 and cut.lost & escape.lost:
                escape = Cut(cut.name, cut.lines, cut.why, escape.lost & cut.lost, cut.hidden)
                break
        key = escape.name, escape.lines[:1]
        others = []
        for each in self.escapes:
            if (each.name, each.lines[:1]) != key:
                others.append(each)
            else:  # a line in a loop: the values of every turn
                escape.lost |= each.lost
        self.escapes = [*others, escape]


def _why(call: OperatorCall, result: Any) -> str:
    name = plain(call.name)
    if name in ("detach", "data"):
        return "detach() cuts it off" if name == "detach" else ".data cuts it off"
    if not call.grad_mode:
        return UNRECORDED
    if name in ("tensor", "as_tensor", "asarray", "to_tensor", "new_tensor"):
        return "a new tensor is made of its values"
    kind = str(result.dtype)
    if "int" in kind or "bool" in kind:
        return f"its result is {kind.rpartition('.')[2]}, which carries no gradient"
    return "its result carries no gradient"


def bits_of(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _shows(call: ast.Call) -> bool:
    """``print(...)``, ``logger.log(...)``, and not ``math.log(...)``."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "print"
    return isinstance(function, ast.Attribute) and function.attr in _SHOWS and ast.unparse(function.value) not in _MATHS


def is_shown(cut: Cut) -> bool:
    """Whether numbers leave the graph to be printed, logged or put into a text, as far as that line says."""
    line = line_of(cut.lines)
    for node in nodes_of(line.file) if line is not None and cut.name in LEAVES_GRAPH else ():
        if not isinstance(node, (ast.JoinedStr, ast.Call)) or line is None:
            continue
        shows = isinstance(node, ast.JoinedStr) or _shows(node)
        if shows and node.lineno <= line.line <= (node.end_lineno or node.lineno):
            inner = (each for each in ast.walk(node) if isinstance(each, ast.Call) and each is not node)
            if any(called_name(each) in (cut.name, cut.name.strip("_")) for each in inner):
                return True
    return False
