"""A reshape that exchanges two sizes of a tensor, or puts others in front of its rows, where a transpose was meant: it
moves no element, so that each row of the result is put together of several rows. Asked by ``axes``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.noise import Drawn, Origins
from adbg.engine.diagnosis.detectors.axes.regrouped import group_in_front, places
from adbg.engine.diagnosis.detectors.axes.sequences import Rows, Steps, parted_at, steps_of
from adbg.engine.diagnosis.detectors.axes.turned import axis_behind
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers import values
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
_LOOKED_AT = 512  # places of rows and steps


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
    axes: tuple[int, int]  # of the result
    iteration: int
    group: tuple[int, ...] = ()  # axes in front of the result together, where it has others than what it is made of
    why: str = ""  # how it is known what the axes were
    used: str = ""  # what takes the axes of the result for those of a transpose
    data: bool = False  # no gradient reaches it
    drawn: Drawn | None = None
    moved: str = ""  # which elements lie elsewhere than a transpose puts them; of what sequences may be made of
    sequence: str = ""  # what takes one of the axes for the steps of sequences, and the other one for the rows
    inner: bool = False  # the rows are the second one of the two
    paired: str = ""  # where these rows meet targets
    steps: Steps = field(default_factory=Steps)

    @property
    def at(self) -> tuple[int, int]:
        """The two axes of what is reshaped."""
        return (0, self.group[0]) if self.group else self.axes

    @property
    def sizes(self) -> tuple[int, int]:
        one, other = self.axes
        return self.behind[other], self.behind[one]

    @property
    def cuts(self) -> bool:
        """No row is one of several whole ones joined, or of one that was parted: neither size divides the other."""
        one, other = self.sizes
        return one % other != 0 and other % one != 0

    @property
    def mixes(self) -> bool:
        """Steps and rows of sequences lie as no data do. Where the rows are in front, a long sequence may have been cut
        at other places; where sizes divide each other, some rows may have been joined, or parted."""
        if not self.moved or not self.sequence or (self.drawn is not None and not self.drawn.meant):
            return False
        if self.cuts or (self.group and not self.data):  # no row of a feature map is one of several joined
            return self.inner or bool(self.paired)
        return self.inner and bool(self.paired)


@dataclass(frozen=True, slots=True)
class _Result:
    """Where the two axes are by now."""

    exchange: _Exchange
    axes: tuple[int, int]


class Exchanged:
    """Told where the axes had a meaning (a transpose of the same two, or a stack, stands above it; or one of the two
    sizes changes from call to call and the other does not), and what comes next works along one of them. Layers that
    give the same for every row, and a reshape that merges both axes again, do not mind the order. Nor do rows whose
    targets were reshaped the same way. What a reshape made before may lie as it is meant to.

    Or a recurrent layer, an attention or a loop takes the two for the steps and the rows of sequences, which no other
    layout explains (``_Exchange.mixes``). Data count there as well, but not random numbers that nothing else is made
    of."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._made: Marks[_Made] = Marks()
        self._folded: Marks[None] = Marks()
        self._results: Marks[_Result] = Marks()
        self._rows: Rows[_Exchange] = Rows()
        self.origins = Origins()
        self._moves: dict[tuple[str, SourceLine | None], str] = {}
        self._found: list[_Exchange] = []
        self._seen: dict[tuple[str, SourceLine | None], set[tuple[int, int]]] = {}
        self._any = False

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        self.origins.operator(call)
        if call.error is not None or not call.results or not call.operands:
            return
        if self._any:
            self._pair(call)
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
            if not (each.sequence if each.group else each.used) or self._is_likewise(each):
                continue
            firsts, seconds = {one for one, _ in seen}, {other for _, other in seen}
            varies = min(len(firsts), len(seconds)) == 1 and len(seen) > 1
            if not each.why and varies and (not each.data or (each.sequence and each.moved)):
                which, sizes = (0, firsts) if len(firsts) > 1 else (1, seconds)
                counts = " and ".join(str(size) for size in sorted(sizes)[:3])
                each.why = f"axis {each.at[which]} of what it is given has {counts} elements, as batches have"
            if each.why and (each.drawn is None or each.drawn.meant or not each.data):
                self._tell(each, [each.why])
            elif each.mixes:
                self._tell(each, [each.moved, *([each.paired] if each.paired else [])])
        self._found = []

    def _is_likewise(self, found: _Exchange) -> bool:
        """Targets, or what else no gradient reaches, were reshaped the same way."""
        return any(
            each.data and each.sizes == found.sizes and not (found.data and (each.line == found.line or each.sequence))
            for each in self._found
        )

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
        differ = [at for at, (one, other) in enumerate(zip(before, behind, strict=False)) if one != other]
        group: tuple[int, ...] = ()
        if len(before) == len(behind) and len(differ) == 2 and before[differ[0]] == behind[differ[1]]:
            axes = differ[0], differ[1]
        else:
            axes, group = (0, 1), group_in_front(before, behind)
            self._pass_on(call)
            self._folded.put(result, None, "", None)
            if not group:
                return
        if 1 not in (behind[axes[0]], behind[axes[1]]) and known is None:
            data = not source.requires_grad
            self._exchange(
                call,
                _Exchange(
                    line_of(call.lines), call.name, before, behind, axes, self._facts.iteration + 1, group, data=data
                ),
            )

    def _exchange(self, call: OperatorCall, found: _Exchange) -> None:
        source, result = call.operands[0], call.results[0]
        if (source.is_leaf and not found.data) or self._folded.of(source) is not None:
            if found.data:  # targets may have been reshaped so; it is never told, for nothing is seen to use it
                self._found.append(found)
            return
        made = self._made.of(source)
        if made is not None and set(made.what.axes) <= set(found.axes) and not found.data and not found.group:
            did = "stacked along one of them" if made.what.stacked else "exchanged these two axes"
            found.why = f"{made.name} at {place(made.line)} {did} before"
        found.drawn = self.origins.of(source)
        self.origins.forget(result)
        if found.axes == (0, 1) and (len(found.before) > 2 or found.group):
            found.moved = self._moved(found, source)
        self._found.append(found)
        self._results.put(result, _Result(found, found.axes), "", None)
        self._any = True

    def _moved(self, found: _Exchange, source: Any) -> str:
        """Not where all rows are alike: zeros that states begin with."""
        backend, rows, steps = self._facts.backend, *found.sizes
        if (found.name, found.line) in self._moves:
            return self._moves[found.name, found.line]
        text, read = "", values.numbers(backend, source)
        if read is not None:
            size = len(read.flat) // (rows * steps)
            chosen = range(0, rows * steps, max(1, rows * steps // _LOOKED_AT))
            group, every = found.group or (1,), list(chosen)
            wrong = 0
            for at in every:
                lie = places(found.before, group, at // rows, at % rows)
                wrong += any(read.flat[at * size + one] != read.flat[each] for one, each in enumerate(lie))
            if 2 * wrong > len(every):
                text = (
                    f"{wrong} of {len(every)} places along both axes of the result hold other numbers than a "
                    "transpose puts there"
                )
        else:
            found_range = values.stats(backend, source)
            if found_range is not None and found_range.min != found_range.max:
                text = "its numbers are too many to be compared with those of a transpose"
        if text:
            self._moves[found.name, found.line] = text
        return text

    def _turn(self, call: OperatorCall, name: str) -> None:
        source, result = call.operands[0], call.results[0]
        if name == "stack":
            axis = axis_of(call) if len(call.arguments) > 1 or call.keywords else 0
            if axis is None or len(call.operands) < 2:
                return
            axes: tuple[int, ...] = (axis % len(shape(result)),)
        else:
            moved = [(at, axis_behind(call, at)) for at in range(len(shape(source)))]
            known = self._results.of(source)
            if known is not None:
                one, other = (moved[at][1] for at in known.what.axes)
                if one is not None and other is not None:
                    self._results.put(result, _Result(known.what.exchange, (one, other)), "", None)
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
            what, axes = known.what.exchange, known.what.axes
            self._take(call, operand, what, axes)
            if not what.used and self._works_along(call, name, operand, axes):
                what.used = f"{call.name} at {place(line_of(call.lines))}"
            before = shape(operand)
            for result in call.results:
                sizes = shape(result)
                if max(axes) < len(sizes) and all(sizes[at] == before[at] for at in axes):
                    self._results.put(result, known.what, "", None)

    def _take(self, call: OperatorCall, operand: Any, what: _Exchange, axes: tuple[int, int]) -> None:
        """Note what takes steps along one of the axes."""
        if what.axes != (0, 1) or (len(what.before) < 3 and not what.group):
            return
        sizes, steps, taken = shape(operand), steps_of(call, operand), False
        if steps is not None and sorted(axes) == [0, 1]:
            taken = True
            self._rows.begin(call, what, sizes[1 - steps], 1 - steps)
        elif (parted := parted_at(call, operand)) is not None and parted[0] in axes:
            steps = parted[0]
            taken = what.steps.are_taken(axes.index(steps), parted[1])
            rows = axes[1 - axes.index(steps)]
            self._rows.part(call, what, sizes[rows], rows - (steps < rows))
        inner = axes[0] == steps
        if taken and (not what.sequence or (inner and not what.inner)):  # which tells more
            what.sequence = what.used = f"{call.name} at {place(line_of(call.lines))}"
            what.inner = inner

    def _pair(self, call: OperatorCall) -> None:
        met = self._rows.follow(call)
        if met is None or met[0].paired:
            return
        what, target = met
        if self.origins.is_pairing(target) and self._results.of(target) is None:
            rows = what.axes[what.inner]
            what.paired = (
                f"{call.name} at {place(line_of(call.lines))} compares the {what.behind[rows]} rows with "
                f"{what.behind[rows]} targets, as many as lie along axis {what.at[not what.inner]} of {what.before}"
            )

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

    def _tell(self, found: _Exchange, why: list[str]) -> None:
        facts = self._facts
        one, other = found.at
        made = (
            f"{found.name} at {place(found.line)} makes {found.behind} of {found.before} and moves no element, so that"
        )
        message = f"{made} it mixes what lies along axes {one} and {other}: use transpose"
        keeps = f"a transpose of axes {one} and {other} makes {found.behind} too, and keeps each row together"
        if found.group:
            axes = f"ax{'is' if len(found.group) == 1 else 'es'} {' and '.join(map(str, found.group))}"
            message = (
                f"{made} its rows along axis 1 are put together of several along axis 0: use transpose, to have {axes} "
                "in front of them before it is reshaped"
            )
            keeps = f"a transpose that puts {axes} in front makes {found.behind} too, and keeps each row together"
        evidence = [*why, f"{found.used} works along one of these axes of the result", keeps]
        facts.tell(
            Finding(0, "wrong-axis", "warning", 0.8, message, None, None, found.iteration, found.line,
                    facts.cause(found.line), evidence, [f"b {place(found.line)}", "info node"])
        )  # fmt: skip
