"""Columns that are picked for all rows at once, where each row has one of its own: ``prob[:, target]``."""

from __future__ import annotations

from dataclasses import dataclass

from adbg.engine.backends.base import Need, OperatorCall
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_PICKS = frozenset({"getitem", "index_select", "gather", "take", "index"})
_REDUCES = frozenset({"mean", "sum", "mean_all", "reduce_sum", "nanmean", "nansum"})
_LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"})
#: Element by element, so that what comes out is each row's loss with each row's target.
_PASSES = frozenset({
    "log", "log1p", "exp", "neg", "clamp", "clip", "scale", "add", "sub", "rsub", "mul", "multiply", "subtract", "div",
    "truediv", "divide", "pow", "square", "sqrt", "sigmoid", "logsigmoid", "log_sigmoid", "softplus", "relu", "abs",
    "float", "double", "to", "cast", "contiguous", "clone", "minimum", "maximum", "elementwise_pow", "rtruediv",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Picked:
    rows: int
    columns: int


@detector("loss-broadcast")
class PickedForAll(Detector):
    """A target of each row picks its column in all rows: ``prob[:, target]`` of (N, C) and (N,) is N x N, every row
    with every target, and the mean of that is no loss of the rows; meant is ``prob[arange(N), target]``, a gather.

    Evidence: the shapes of the table, of the index and of what came out, and the line that reduced it.
    Mistaken for: scores of all rows against the items of a batch, which a softmax, a table of all pairs or other scores
    meet (not told), a table with as many columns as rows (not told). A warning.
    Cost: in sampled iterations a look at the shapes of operators that pick.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._picked: Marks[_Picked] = Marks()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        if name in _PICKS and len(call.operands) == 2:
            table, index = (shape(each) for each in call.operands)
            single = len(index) == 1 or (len(index) == 2 and index[1] == 1)  # Paddle's gather takes (N, 1), too
            whole = len(table) == 2 and single and table[0] == index[0] != table[1]
            kind = str(call.operands[1].dtype)
            if whole and index[0] > 1 and "int" in kind and result.requires_grad and shape(result) == [index[0]] * 2:
                self._picked.put(result, _Picked(index[0], table[1]), call.name, line_of(call.lines))
            return
        for operand in call.operands:
            known = self._picked.of(operand)
            if known is None:
                continue
            others = [each for each in call.operands if each is not operand]
            tables = any(map(_is_learnt_or_table, others))
            reduces = name in _REDUCES or (name in _LOSSES and not tables)
            if reduces and all(size == 1 for size in shape(result)):
                self._tell(known, call)
            elif name in _PASSES and shape(result) == shape(operand) and not tables:
                self._picked.put(result, known.what, known.name, known.line)
            return

    def _tell(self, known: Marked[_Picked], call: OperatorCall) -> None:
        facts, rows, columns = self.facts, known.what.rows, known.what.columns
        line = known.line
        facts.tell(
            Finding(
                0, "loss-broadcast", "warning", 0.8,
                f"{known.name} at {place(line)} picks the columns of all {rows} targets in each of the {rows} rows: "
                f"every row meets every target; pick one of each row (gather with target.unsqueeze(1), "
                f"take_along_axis, or [arange({rows}), target])",
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(line),
                evidence=[
                    f"{known.name} takes [{rows}, {columns}] and {rows} indices, and gives [{rows}, {rows}]",
                    f"{call.name} at {place(line_of(call.lines))} reduces it to one number",
                ],
                next=[f"b {place(line)}", "info node"],
            )
        )  # fmt: skip


def _is_learnt_or_table(value: object) -> bool:
    sizes = [size for size in shape(value) if size != 1]
    return bool(getattr(value, "requires_grad", False)) or len(sizes) > 1
