"""Losses that are computed of something else than was meant: a broadcast, probabilities in the place of logits."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import layer_line, nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

DIFFERENCES = frozenset({"sub", "subtract", "rsub", "square_error_cost", "dist"})
_OUTER = frozenset({"mul", "multiply", "add"})  # that tables of all pairs are made by as well
_GROWS = frozenset({"unsqueeze", "getitem", "view", "reshape", "slice"})  # x[:, None]
PAIRED = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "poisson_nll_loss", "log_loss",
    "binary_cross_entropy_with_logits", "bce_loss", "sigmoid_cross_entropy_with_logits", "squared_l2_norm",
})  # fmt: skip
_PICTURE = 4  # axes: (N, 1, H, W) and (N, H, W) are no vectors of which all pairs are meant
_REDUCTIONS = frozenset({"mean", "sum", "mean_all", "reduce_sum", "nanmean", "nansum"})
SAME = frozenset({
    "squeeze", "unsqueeze", "view", "reshape", "flatten", "contiguous", "float", "double", "half", "to", "cast",
    "clone", "clamp", "clip", "transpose", "permute", "slice", "getitem", "assign", "squeeze_", "view_as", "bfloat16",
    "select",
})  # fmt: skip
_MADE = {
    "softmax": "probabilities", "softmax_": "probabilities", "sigmoid": "probabilities", "sigmoid_": "probabilities",
    "log_softmax": "log-probabilities", "logsigmoid": "log-probabilities",
}  # fmt: skip
_LAYERS = {"softmax": "Softmax", "sigmoid": "Sigmoid", "log_softmax": "LogSoftmax", "logsigmoid": "LogSigmoid"}


@dataclass(frozen=True, slots=True)
class _Pair:
    """What met: both sizes; ``both``: both carry gradients; ``column``: the line that gave the longer one its axis;
    ``target``: neither carries gradients, and the shape of what came out; ``met``: what that, or what both came to,
    was compared with, or multiplied by (``weighs``)."""

    shapes: str
    both: bool
    column: SourceLine | None
    outer: bool
    target: tuple[int, ...] = ()
    met: str = ""
    weighs: bool = False
    pairs: bool = False  # a difference of the program's own, of vectors: it may be meant of all pairs


@detector("loss-broadcast")
class LossBroadcast(Detector):
    """A prediction of shape (N, 1) meets a target of shape (N,): the difference is N x N, every prediction against
    every target, and the mean of that is no loss; training then finds the mean of all targets. The same with further
    axes: (N, 1, H) and (N, H). Where the two meet in
    a target (a reward of (N,) and a value of (N, 1), without gradients), and a prediction of N meets that.
    Evidence: the shapes of both, of what came out, and the line that reduced it.
    Mistaken for: distances between all pairs, which are no finding where the line itself makes the column
    (x.unsqueeze(1) - y), where a table of both sizes meets the result, or between tensors of one rank. Where neither
    carries gradients, no finding before a prediction is compared with the result. A note where
    both sides are learnt, as in a ranking loss of every positive against every negative, until what came out is
    compared with a target of one size: a bias of (N, 1) was added to a score of (N,). A warning then, where the column
    was made by an unsqueeze elsewhere, and of products and sums.
    Cost: in sampled iterations a look at the shapes of each operator's operands.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._outer: Marks[_Pair] = Marks()
        self._columns: Marks[None] = Marks()  # made of what has one axis less
        self._own: Marks[None] = Marks()  # made of a table of all pairs

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands:
            return
        name = plain(call.name)
        result = call.results[0]
        if name in _GROWS and _is_unsqueezed(shape(result), shape(call.operands[0])):
            self._columns.put(result, None, name, line_of(call.lines))
            return
        if self._meets_table(call):
            return
        for operand in call.operands:
            known = self._outer.of(operand)
            if known is None:
                continue
            if (known.what.target or known.what.both) and self._compared(known, call, name, shape(operand)[-1]):
                return
            if name in _REDUCTIONS and _one(result):
                if not known.what.target:
                    self._tell(known, call)
            elif shape(result) == shape(operand):
                self._outer.put(result, known.what, known.name, known.line)
            else:
                for each in call.results:  # the maximum of each row, say
                    self._own.put(each, None, known.name, known.line)
            return
        if len(call.operands) < 2 or name not in DIFFERENCES | PAIRED | _OUTER:
            return
        first, second = call.operands[:2]
        one, other = shape(first), shape(second)
        long, short = (one, other) if len(one) > len(other) else (other, one)
        columns = short and short[0] > 1 and long == [*short, *[1] * (len(long) - len(short))]
        if len(long) == len(short) or not (columns or (name not in _OUTER and _spreads(long, short))):
            return
        if self.facts.share_memory(first, second):
            return
        line = line_of(call.lines)
        column = self._columns.of(first if one is long else second)
        if column is not None and column.line == line and name not in PAIRED:
            return
        both = first.requires_grad and second.requires_grad
        target = () if first.requires_grad or second.requires_grad else tuple(shape(result))
        what = _Pair(
            f"{one} and {other}", both, column.line if column is not None else None, name in _OUTER, target,
            pairs=not columns and len(long) < _PICTURE and line is not None and _subtracts(line),
        )  # fmt: skip
        if name in PAIRED and _one(result):
            if target:
                return
            self._tell(Marked(None, what, call.name, line), call)
        else:
            self._outer.put(result, what, call.name, line)

    def _compared(self, known: Marked[_Pair], call: OperatorCall, name: str, rows: int) -> bool:
        """Whether a prediction of one size meets the table that a target became, or a target that of a prediction; it
        is told, or goes on as a loss."""
        target = bool(known.what.target)
        if not target and plain(known.name) != "add":  # a ranking: every positive less every negative
            return False
        kinds = DIFFERENCES | PAIRED | (_OUTER if target else frozenset())
        for each in call.operands:
            single = [size for size in shape(each) if size != 1] == [rows]
            if single and each.requires_grad is target and name in kinds and self._own.of(each) is None:
                met = f"{list(shape(each))} at {place(line_of(call.lines))}"
                met = f"what came out meets {'what is learnt, of' if target else 'a target of'} {met}"
                what = replace(known.what, target=(), both=False, met=met, weighs=name in _OUTER or not target)
                if name in PAIRED and _one(call.results[0]):
                    self._tell(replace(known, what=what), call)
                else:
                    self._outer.put(call.results[0], what, known.name, known.line)
                return True
        return False

    def _meets_table(self, call: OperatorCall) -> bool:
        """Whether what has both sizes meets another of these sizes that no such broadcast made: then a table of all
        pairs is meant."""
        known = [each for each in call.operands if self._outer.of(each) is not None]
        sizes = [shape(each) for each in known]
        return bool(known) and any(
            self._outer.of(each) is None and shape(each) in sizes for each in call.operands
        )  # fmt: skip

    def _tell(self, known: Marked[_Pair], call: OperatorCall) -> None:
        facts, pair = self.facts, known.what
        line, reduced = known.line, line_of(call.lines)
        message = (
            f"{known.name} at {place(line)} takes {pair.shapes}, which broadcasts to every one against every other"
        )
        evidence = [
            f"the operands of {known.name} are {pair.shapes}: neither raises, and the result has both sizes",
            f"{call.name} at {place(reduced)} reduces it to one number",
            "reshape one of them: target.unsqueeze(1), or prediction.squeeze(1)",
        ]
        if pair.met:
            evidence.insert(1, pair.met)
            evidence[-1] = "give both one shape before they meet: unsqueeze(1) of the short one, or squeeze(1)"
        warned = ((pair.column is not None or pair.outer) and not pair.met) or pair.weighs
        severity, sure = ("warning", 0.7) if warned else ("error", 0.9)
        if pair.pairs and not pair.met:
            severity, sure = "note", 0.45
            evidence.append("whether the difference of all pairs is meant decides it, as in a mean distance")
        elif pair.both:
            severity, sure = "note", 0.45
            evidence.append("both are learnt: whether each is meant to meet every other decides it, as in a ranking")
        elif severity == "warning":
            made = f", the column is made at {place(pair.column)}" if pair.column is not None else ""
            evidence.append(f"unless all pairs are meant{made}")
        facts.tell(
            Finding(0, "loss-broadcast", severity, sure, message, None, None, facts.iteration + 1, line,
                    facts.cause(line), evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip


@detector("loss-input")
class LossInput(Detector):
    """A loss that applies softmax or sigmoid itself is given what went through one already, or one that wants
    log-probabilities is given something else, or a divergence logarithms where its target is to be probabilities.
    Evidence: the line that made the probabilities, the loss, the values that show it.
    Mistaken for: soft targets, which are probabilities and are not looked at. nll_loss of probabilities is the mean
    absolute error, 1 - p, where that is meant: the warning says so.
    Cost: in sampled iterations a look at each operator's name.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[str] = Marks()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.operands:
            return
        name = plain(call.name)
        made = _MADE.get(name)
        if made is not None:
            for result in call.results:
                self._marks.put(result, made, name, line_of(call.lines))
        elif name in SAME:
            known = self._marks.of(call.operands[0])
            for result in call.results if known is not None else ():
                assert known is not None
                self._marks.put(result, known.what, known.name, known.line)
        elif "loss" in name or "entropy" in name or name in ("kl_div",):
            self._loss(call, name)

    def _loss(self, call: OperatorCall, name: str) -> None:
        given = call.operands[0]
        known = self._marks.of(given)
        if name in ("cross_entropy", "cross_entropy_with_softmax"):
            uses = call.arguments[3] if name == "cross_entropy_with_softmax" and len(call.arguments) > 3 else True
            if known is not None and known.what == "probabilities" and uses is not False:
                self._tell(known, call, "applies log-softmax itself: give it the logits", 0.9)
        elif name in ("binary_cross_entropy_with_logits", "sigmoid_cross_entropy_with_logits"):
            self._shares(call)
            if known is not None and known.name.startswith("sigmoid"):
                self._tell(known, call, "applies a sigmoid itself: give it the logits", 0.9)
        elif name in ("nll_loss", "kl_div", "kldiv_loss") and not self._is_log(given, known, call):
            if known is not None:
                absolute = name == "nll_loss" and known.what == "probabilities"
                wants = ", unless 1 - p, the mean absolute error, is meant" if absolute else ""
                self._tell(known, call, f"wants log-probabilities: use log_softmax{wants}", 0.6 if absolute else 0.9)
            else:
                self._tell_logits(call)
        elif name in ("kl_div", "kldiv_loss"):
            self._target(call)

    def _shares(self, call: OperatorCall) -> None:
        """Of a loss of two classes: labels are shares of the second one, of 0 to 1."""
        target = call.operands[1] if len(call.operands) > 1 else None
        if target is None or target.requires_grad:
            return
        read, facts, line = self.facts.backend.stats(target), self.facts, line_of(call.lines)
        if read.min is None or read.max is None or (read.min >= -1e-3 and read.max <= 1 + 1e-3):
            return
        signs = (
            "labels of -1 and 1 are those of a hinge: (y + 1) / 2" if read.min == -1 and read.max == 1 else "scale them"
        )
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.92,
                f"{call.name} at {place(line)} wants labels of 0 to 1, and is given {read.min:.4g} to {read.max:.4g}: "
                f"the loss has no lower bound then; {signs}",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"the labels go from {read.min:.4g} to {read.max:.4g}",
                    f"{place(line)}: {facts.text_of(line) if line is not None else ''}",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip

    def _target(self, call: OperatorCall) -> None:
        """What a divergence is to come to: probabilities, unless it is told that their logarithms are given."""
        if (
            len(call.operands) < 2
            or call.keywords.get("log_target")
            or any(each is True for each in call.arguments[2:])
        ):
            return
        target = call.operands[1]
        least = self.facts.backend.stats(target).min
        if least is None or least > -1e-3:
            return
        known, facts, line = self._marks.of(target), self.facts, line_of(call.lines)
        made = known.line if known is not None and known.what == "log-probabilities" else None
        by = f", which {known.name} at {place(made)} made" if known is not None and made is not None else ""
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.92,
                f"{call.name} at {place(line)} wants probabilities as its target, and is given numbers below 0{by}: "
                "give it softmax, or log_target=True",
                None, None, facts.iteration + 1, line, facts.cause(made or line),
                [f"the smallest number of the target is {least:.4g}; of probabilities none is below 0",
                 "of such a target torch's result is NaN, Paddle's is 0, with no gradient"],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip

    def _is_log(self, given: Any, known: Marked[str] | None, call: OperatorCall) -> bool:
        """Of what is not known: log-probabilities are never above 0."""
        if known is not None:
            return known.what == "log-probabilities"
        most = self.facts.backend.stats(given).max
        return most is None or most <= 1e-3

    def _tell(self, known: Marked[str], call: OperatorCall, wants: str, sure: float) -> None:
        facts, line = self.facts, line_of(call.lines)
        message = f"{call.name} at {place(line)} is given what {known.name} at {place(known.line)} made; it {wants}"
        evidence = [
            f"{known.name} at {place(known.line)}: {facts.text_of(known.line) if known.line is not None else ''}",
            f"{call.name} at {place(line)}: {facts.text_of(line) if line is not None else ''}",
        ]
        layer = _layer_of(known)
        evidence += [f"the layer that does so is made at {place(layer)}"] if layer is not None else []
        facts.tell(
            Finding(0, "loss-input", "warning", sure, message, None, None, facts.iteration + 1, line,
                    facts.cause(layer or known.line), evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip

    def _tell_logits(self, call: OperatorCall) -> None:
        facts, line = self.facts, line_of(call.lines)
        most = facts.backend.stats(call.operands[0]).max
        message = (
            f"{call.name} at {place(line)} wants log-probabilities and is given values above 0: log_softmax is missing"
        )
        evidence = [f"the largest value that {call.name} is given is {most:.4g}; a log-probability is at most 0"]
        facts.tell(
            Finding(0, "loss-input", "warning", 0.85, message, None, None, facts.iteration + 1, line, facts.cause(line),
                    evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip


def _layer_of(known: Marked[str]) -> SourceLine | None:
    """Where the layer is made that did it, as the last of a Sequential: the line that calls all of them is right."""
    kind = _LAYERS.get(known.name)
    if kind is None or known.line is None or kind.lower() in Facts.text_of(known.line).lower().replace("_", ""):
        return None
    return layer_line(known.line, kind, among=True)


@detector("promoted")
class Promoted(Detector):
    """A float32 tensor that carries gradients meets a float64 one that carries none, and everything after is float64.
    Evidence: the types of the operands and of the result.
    Mistaken for: sums that are taken in float64 on purpose; therefore a note.
    Cost: in sampled iterations a look at the types of each operator's operands.
    """

    sampled = Need.OPERATORS

    def operator(self, call: OperatorCall) -> None:
        operands = call.operands
        if len(operands) < 2 or not call.results or call.error is not None:
            return
        first = operands[0].dtype
        if all(each.dtype == first for each in operands):
            return
        kinds = {str(each.dtype).rpartition(".")[2]: each for each in operands}
        result = call.results[0]
        if not {"float32", "float64"} <= kinds.keys() or str(result.dtype).rpartition(".")[2] != "float64":
            return
        if not kinds["float32"].requires_grad or kinds["float64"].requires_grad or not result.requires_grad:
            return
        facts, line = self.facts, line_of(call.lines)
        message = f"{call.name} at {place(line)} promotes float32 to float64: one of its operands is float64"
        evidence = [f"operands: {', '.join(str(each.dtype) + ' ' + str(shape(each)) for each in operands[:4])}"]
        evidence.append("whether that is meant decides it: arrays of numpy are float64 where nothing else is said")
        facts.tell(
            Finding(0, "promoted", "note", 0.45, message, None, None, facts.iteration + 1, line, facts.cause(line),
                    evidence, [f"b {place(line)}"])
        )  # fmt: skip


def _subtracts(line: SourceLine) -> bool:
    """A minus of the line's own, no loss that is called there."""
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
        and node.lineno <= line.line <= (node.end_lineno or 0) for node in nodes_of(line.file)
    )  # fmt: skip


def _is_unsqueezed(made: list[int], of: list[int]) -> bool:
    return len(made) == len(of) + 1 and any(
        made[at] == 1 and made[:at] + made[at + 1 :] == of for at in range(len(made))
    )  # fmt: skip


def _spreads(long: list[int], short: list[int]) -> bool:
    """The same sizes but for axes of 1, and what comes out is larger than both: masks of (N, 1, H, W) and (N, H, W)."""
    if [size for size in long if size != 1] != [size for size in short if size != 1]:
        return False
    filled = [1] * (len(long) - len(short)) + short
    return math.prod(max(pair) for pair in zip(long, filled)) > math.prod(long)


def _one(value: Any) -> bool:
    return all(size == 1 for size in shape(value))
