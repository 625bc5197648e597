"""A reshape that exchanges two sizes of a tensor, where a transpose was meant: it moves no element, so that each row of
the result is put together of several rows. Asked by ``axes``."""

from __future__ import annotations

from dataclasses import dataclass

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.graphs.turned import axis_behind
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_FOLDS = frozenset({"reshape", "view", "reshape_as", "view_as"})
_TURNS = frozenset({"transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "T", "mT"})
_ALONG = frozenset({
    "mean", "sum", "max", "min", "amax", "amin", "std", "var", "logsumexp", "prod", "median", "softmax", "log_softmax",
    "cumsum", "select", "narrow", "index_select", "unbind",
})  # fmt: skip
_SEQUENCES = frozenset({"gru", "lstm", "rnn", "rnn_tanh", "rnn_relu", "scaled_dot_product_attention", "bmm", "matmul"})


@dataclass(frozen=True, slots=True)
class _Made:
    """The axes of a tensor that a transpose or a stack put where they are, and their sizes."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    stacked: bool


@dataclass(slots=True)
class _Exchange:
    """Of a reshape's line, in one iteration."""

    line: SourceLine | None
    name: str
    before: list[int]
    behind: list[int]
    axes: tuple[int, int]
    why: str = ""  # how it is known what the axes were
    used: str = ""  # what takes the axes of the result for those of a transpose

    @property
    def sizes(self) -> tuple[int, int]:
        one, other = self.axes
        return self.before[one], self.before[other]


class Exchanged:
    """Told where the axes had a meaning (a transpose of the same two, or a stack, stands above it; or one of the two
    sizes changes from call to call and the other does not), and what comes next works along one of them. Layers that
    give the same for every row, and a reshape that merges both axes again, do not mind the order. Nor do rows whose
    targets were reshaped the same way. What a reshape made before may lie as it is meant to."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._made: Marks[_Made] = Marks()
        self._folded: Marks[None] = Marks()
        self._results: Marks[_Exchange] = Marks()
        self._found: list[_Exchange] = []
        self._seen: dict[tuple[str, SourceLine | None], set[tuple[int, int]]] = {}
        self._likewise: set[tuple[int, int]] = set()  # sizes of what no gradient reaches, in this iteration
        self._any = False

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        if name in _FOLDS:
            self._fold(call)
        elif name in _TURNS or name == "stack":
            self._turn(call, name)
        elif self._any:
            self._follow(call, name)

    def iteration_end(self) -> None:
        for each in self._found:
            seen = self._seen.setdefault((each.name, each.line), set())
            if len(seen) < 8:
                seen.add(each.sizes)
            if not each.used or each.sizes in self._likewise:
                continue
            firsts, seconds = {one for one, _ in seen}, {other for _, other in seen}
            varies = min(len(firsts), len(seconds)) == 1 and len(seen) > 1
            if not each.why and varies:
                which, sizes = (0, firsts) if len(firsts) > 1 else (1, seconds)
                counts = " and ".join(str(size) for size in sorted(sizes)[:3])
                each.why = f"axis {each.axes[which]} of what it is given has {counts} elements, as batches have"
            if each.why:
                self._tell(each)
        self._found, self._likewise = [], set()

    # ---- operators

    def _fold(self, call: OperatorCall) -> None:
        source, result = call.operands[0], call.results[0]
        before, behind = shape(source), shape(result)
        known = self._results.of(source) if self._any else None
        if before == behind:
            if known is not None:
                self._results.put(result, known.what, "", None)
            self._pass_on(call)
            return
        axes = tuple(at for at, (one, other) in enumerate(zip(before, behind, strict=False)) if one != other)
        if len(before) != len(behind) or len(axes) != 2 or before[axes[0]] != behind[axes[1]]:
            self._folded.put(result, None, "", None)
            self._pass_on(call)
        elif 1 not in (size := (before[axes[0]], before[axes[1]])) and known is None:
            if not source.requires_grad:
                self._likewise.add(size)
            elif not source.is_leaf and self._folded.of(source) is None:
                found = _Exchange(line_of(call.lines), call.name, before, behind, (axes[0], axes[1]))
                made = self._made.of(source)
                if made is not None and set(made.what.axes) <= set(axes):
                    did = "stacked along one of them" if made.what.stacked else "exchanged these two axes"
                    found.why = f"{made.name} at {place(made.line)} {did} before"
                self._found.append(found)
                self._results.put(result, found, "", None)
                self._any = True

    def _turn(self, call: OperatorCall, name: str) -> None:
        source, result = call.operands[0], call.results[0]
        if name == "stack":
            axis = axis_of(call) if len(call.arguments) > 1 or call.keywords else 0
            if axis is None or len(call.operands) < 2:
                return
            axes: tuple[int, ...] = (axis % len(shape(result)),)
        else:
            moved = [(at, axis_behind(call, at)) for at in range(len(shape(source)))]
            axes = tuple(at for at, to in moved if to is not None and to != at and (to, at) in moved)
            if len(axes) != 2:
                return
        sizes = shape(result)
        made = _Made(axes, tuple(sizes[at] for at in axes), name == "stack")
        self._made.put(result, made, call.name, line_of(call.lines))
        self._any = True

    def _pass_on(self, call: OperatorCall) -> None:
        for operand in call.operands:
            made = self._made.of(operand)
            if made is None:
                continue
            for result in call.results:
                sizes, axes = shape(result), made.what.axes
                if max(axes) < len(sizes) and tuple(sizes[at] for at in axes) == made.what.sizes:
                    self._made.put(result, made.what, made.name, made.line)
            return

    def _follow(self, call: OperatorCall, name: str) -> None:
        self._pass_on(call)
        for operand in call.operands:
            known = self._results.of(operand)
            if known is None:
                continue
            what = known.what
            if not what.used and self._works_along(call, name, operand, what.axes):
                what.used = f"{call.name} at {place(line_of(call.lines))}"
            for result in call.results:
                sizes = shape(result)
                if max(what.axes) < len(sizes) and all(sizes[at] == what.behind[at] for at in what.axes):
                    self._results.put(result, what, "", None)

    def _works_along(self, call: OperatorCall, name: str, operand: object, axes: tuple[int, int]) -> bool:
        rank = len(shape(operand))
        if name in _ALONG:
            axis = axis_of(call)
            return axis is not None and axis % rank in axes
        if name == "getitem" and len(call.arguments) == 2:
            index = call.arguments[1]
            parts = index if isinstance(index, tuple) else (index,)
            if not all(each is None or each is Ellipsis or type(each) in (int, slice) for each in parts):
                return False
            return any(axis_behind(call, at) is None for at in axes)
        if name in _SEQUENCES:  # not what multiplies every row by the same matrix
            return name not in ("bmm", "matmul") or all(len(shape(each)) > 2 for each in call.operands[:2])
        return False

    def _tell(self, found: _Exchange) -> None:
        facts = self._facts
        one, other = found.axes
        message = (
            f"{found.name} at {place(found.line)} makes {found.behind} of {found.before} and moves no element, so that "
            f"it mixes what lies along axes {one} and {other}: use transpose"
        )
        evidence = [
            found.why,
            f"{found.used} works along one of these axes of the result",
            f"a transpose of axes {one} and {other} makes {found.behind} too, and keeps each row together",
        ]
        facts.tell(
            Finding(0, "wrong-axis", "warning", 0.8, message, None, None, facts.iteration + 1, found.line,
                    facts.cause(found.line), evidence, [f"b {place(found.line)}", "info node"])
        )  # fmt: skip
