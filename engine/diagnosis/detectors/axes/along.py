"""A recurrent layer or an attention that goes along the batch: what it takes for the steps of sequences are the rows
that a loss compares with targets, one each. Asked by ``axes``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.noise import Origins
from adbg.engine.diagnosis.detectors.axes.sequences import REDUCES, behind, is_loss, parted_at, steps_of
from adbg.engine.diagnosis.detectors.axes.turned import axis_behind
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine


@dataclass(frozen=True, slots=True)
class _Sequences:
    """What a layer made of sequences: ``steps`` and ``rows`` are its axes by now, ``counts`` their sizes. ``taken``:
    how the rows came to be one. ``both``: another layer went along the rows."""

    name: str
    line: SourceLine | None
    counts: tuple[int, int]
    steps: int
    rows: int | None
    turned: SourceLine | None
    made: SourceLine | None
    taken: str = ""
    sure: bool = False
    both: bool = False


class AlongBatch:
    """Told where one of the rows was picked, the first or the last as one picks a step, and what is left are the steps,
    each with its target. A mean over the rows is a note: it may be one over what is the same at each step. Not where
    there is but one row, or another layer goes along the other axis (attention between samples). An alignment (CTC)
    says itself which axis has the steps."""

    def __init__(self, facts: Facts, origins: Origins) -> None:
        self._facts = facts
        self._origins = origins
        self._marks: Marks[_Sequences] = Marks()
        self._turned: Marks[tuple[SourceLine, ...]] = Marks()  # the lines that exchanged the first two axes

    def operator(self, call: OperatorCall, name: str) -> None:
        source = call.operands[0]
        steps = steps_of(call, source)
        if steps is not None:
            self._begin(call, name, steps)
            return
        self._turn(call)
        for operand in call.operands:
            known = self._marks.of(operand)
            if known is None:
                continue
            if "ctc" in name:
                self._judge_alignment(call, operand, known.what)
                return
            if is_loss(name):
                self._judge(call, known.what)
                return
            what = known.what if known.what.rows is None else self._taken(call, name, operand, known.what)
            if what is None:
                return
            here = behind(call, name, operand, what.steps)
            if what is not known.what and name == "select":
                here = what.steps - (known.what.rows == 0)
            if what is known.what and what.rows is not None:
                what = replace(what, rows=behind(call, name, operand, what.rows))
                if what.rows is None:
                    return
            self._put(call, replace(what, steps=here if here is not None else -1))
            return

    def _put(self, call: OperatorCall, what: _Sequences) -> None:
        sizes = shape(call.results[0])
        axes = [(what.steps, what.counts[0]), *([(what.rows, what.counts[1])] if what.rows is not None else [])]
        if all(0 <= at < len(sizes) and sizes[at] == count for at, count in axes):
            self._marks.put(call.results[0], what, call.name, None)

    def _begin(self, call: OperatorCall, name: str, steps: int) -> None:
        source, result, line = call.operands[0], call.results[0], line_of(call.lines)
        sizes = shape(source)
        if min(sizes[:2]) < 2 or shape(result)[:2] != sizes[:2]:
            return
        before, turned = self._marks.of(source), self._turned.of(source)
        both = before is not None and (before.what.both or before.what.steps != steps)
        lines = [each for each in turned.what if each != line] if turned is not None else []
        born = [at for each in call.operands[1:] if each.is_leaf and (at := self._facts.born(each)) is not None]
        what = _Sequences(
            name, line, (sizes[steps], sizes[1 - steps]), steps, 1 - steps, lines[-1] if lines else None,
            born[0] if born else None, both=both,
        )  # fmt: skip
        self._marks.put(result, what, call.name, line)

    def _turn(self, call: OperatorCall) -> None:
        """Also through what works element by element after it."""
        source, result, line = call.operands[0], call.results[0], line_of(call.lines)
        before = self._turned.of(source)
        lines = before.what if before is not None else ()
        rank = len(shape(source))
        if rank >= 3 and axis_behind(call, 0) == 1 and axis_behind(call, 1) == 0 and line is not None:
            self._turned.put(result, (*lines, line), call.name, line)
        elif before is not None and len(shape(result)) == rank:
            self._turned.put(result, lines, call.name, line)

    @staticmethod
    def _taken(call: OperatorCall, name: str, operand: object, what: _Sequences) -> _Sequences | None:
        """Behind a call that picks one of the rows, or reduces them; None where it does so with the steps."""
        assert what.rows is not None
        rank = len(shape(operand))
        parted, line = parted_at(call, operand), place(line_of(call.lines))
        gone: int | None = None
        sure = False
        if parted is not None and parted[1] is not None:
            gone, at = parted
            if gone == what.rows and at not in (0, -1, what.counts[1] - 1):
                return None
            sure, how = True, f"{call.name} at {line} picks the {'first' if at == 0 else 'last'}"
        elif name in REDUCES and len(shape(call.results[0])) == rank - 1:
            given = axis_of(call)
            gone = given % rank if given is not None else what.steps
            how = f"{call.name} at {line} takes the {name}"
        if gone is None:
            return what
        if gone == what.steps:
            return None
        if gone != what.rows:
            return what
        return replace(what, rows=None, taken=how, sure=sure)

    def _judge(self, call: OperatorCall, what: _Sequences) -> None:
        if what.rows is not None or what.steps != 0 or what.both:
            return
        steps, rows = what.counts
        targets = [
            each for each in call.operands[:2]
            if self._marks.of(each) is None and each.is_leaf and not each.requires_grad
            and shape(each)[:1] == [steps] and self._origins.is_pairing(each)
        ]  # fmt: skip
        if not targets:
            return
        line = line_of(call.lines)
        self._tell(call, what, (
            f"what it takes for {steps} steps of {rows} sequences are the {steps} rows that {call.name} at "
            f"{place(line)} compares with as many targets"
        ), [
            f"of the {rows} sequences {what.taken}, and the {steps} steps are left",
            f"{call.name} at {place(line)} compares these with {steps} targets, one each",
        ])  # fmt: skip

    def _judge_alignment(self, call: OperatorCall, operand: object, what: _Sequences) -> None:
        """Connectionist temporal classification takes axis 0 for the steps, and axis 1 for the rows."""
        if what.rows != 0 or what.steps != 1 or what.both or call.operands[0] is not operand:
            return
        steps, rows = what.counts
        self._tell(call, replace(what, turned=None), (  # the loss wants them turned: the layer does not
            f"what {call.name} at {place(line_of(call.lines))} takes for the {rows} steps of {steps} sequences are "
            "sequences of their own there"
        ), [f"{call.name} takes [steps, sequences, classes], and is given {shape(operand)}"], "error")  # fmt: skip

    def _tell(
        self, call: OperatorCall, what: _Sequences, why: str, proof: list[str], severity: str = "warning"
    ) -> None:
        facts, line = self._facts, line_of(call.lines)
        steps, rows = what.counts
        layer = f"{what.name} at {place(what.line)}"
        advice = f"give it the steps along the other axis (batch_first, time_major), or transpose at {place(what.line)}"
        if what.turned is not None:
            advice = f"leave out the transpose at {place(what.turned)}"
        message = f"{layer} goes along the batch: {why}; {advice}"
        evidence = [f"{layer} takes {steps} steps of {rows} sequences", *proof]
        cause = what.turned or what.made or what.line
        if severity == "warning" and not what.sure:
            severity = "note"
            evidence.append("right if every step has its own target, and the sequences are parts of one")
        facts.tell(
            Finding(0, "wrong-axis", severity, {"error": 0.92, "warning": 0.85, "note": 0.45}[severity], message, None,
                    None, facts.iteration + 1, line, facts.cause(cause), evidence,
                    [f"b {place(what.line)}", "info node"])
        )  # fmt: skip
