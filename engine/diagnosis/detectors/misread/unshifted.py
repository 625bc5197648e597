"""Labels that are what the model is given: each place is to say what it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_EMBEDS = frozenset({"embedding", "lookup_table_v2"})
_LOSSES = frozenset({"cross_entropy", "cross_entropy_with_softmax", "nll_loss"})
_CUTS = frozenset({"getitem", "slice", "narrow", "index_select", "gather", "select", "index", "take"})
_CARRIES = frozenset({
    "stack", "cat", "concat", "view", "reshape", "flatten", "contiguous", "clone", "to", "cast", "long", "astype",
    "unsqueeze", "squeeze", "detach", "collate", "as_tensor", "tensor", "to_tensor", "assign",
})  # fmt: skip
_SHORTEST = 4  # places of a sequence
_KINDS = 3  # different tokens
_MOST = 1 << 15  # tokens that are compared


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was embedded: rows, places, where, and the tokens."""

    rows: int
    places: int
    line: SourceLine | None
    tokens: Any


@detector("loss-input")
class LabelsNotShifted(Detector):
    """A language model whose labels are its input: ``x = text[i:i + n]``, ``y = text[i:i + n]``. Each place gives back
    the token that it sees, the loss goes to 0, and nothing is learnt of what comes next.

    Evidence: the labels and what was embedded, equal in every place; how many tokens; that what each place says is
    computed from what was embedded at that place.
    Mistaken for: an encoder that gives its tokens back out of one vector for all places (what each place says comes of
    no single place there: not told), masked words and labels that the model shifts itself (they are not equal: not
    told).
    Cost: in sampled iterations a look at each operator's shapes, and a comparison of labels with what was embedded.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._places: Marks[_Seen] = Marks()
        self._cut: Marks[None] = Marks()
        self._any = self._told = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or call.in_backward or not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        if "int" in str(result.dtype):
            self._follow_tokens(call, name, result)
        elif name in _EMBEDS:
            self._embed(call, result)
        elif name in _LOSSES:
            self._compare(call)
        else:
            known = next((each for one in call.operands if (each := self._places.of(one)) is not None), None)
            for each in call.results if known is not None else ():
                if known is not None and _has_places(shape(each), known.what):
                    self._places.put(each, known.what, name, known.line)

    def _follow_tokens(self, call: OperatorCall, name: str, result: Any) -> None:
        """The line that cuts them out of a text, which is the one to change; through what only lays them otherwise."""
        made = self._cut.of(call.operands[0]) if name in _CARRIES else None
        if made is not None:
            self._cut.put(result, None, made.name, made.line)
        elif name in _CUTS or name in _CARRIES:
            self._cut.put(result, None, name, line_of(call.lines))

    def _embed(self, call: OperatorCall, result: Any) -> None:
        tokens = next((each for each in call.operands if "int" in str(each.dtype)), None)
        sizes = shape(tokens) if tokens is not None else []
        if len(sizes) == 2 and sizes[0] > 1 and sizes[1] >= _SHORTEST and call.grad_mode:
            what = _Seen(sizes[0], sizes[1], line_of(call.lines), tokens)
            self._places.put(result, what, call.name, what.line)

    def _compare(self, call: OperatorCall) -> None:
        known = self._places.of(call.operands[0])
        labels = call.operands[1] if len(call.operands) > 1 else None
        if known is None or labels is None or "int" not in str(labels.dtype):
            return
        self._any = True
        wanted = few_numbers(self.facts.backend, labels, _MOST)
        given = few_numbers(self.facts.backend, known.what.tokens, _MOST)
        if wanted is None or given is None or len(set(given.flat)) < _KINDS or wanted.flat != given.flat:
            return
        self._told = True
        self._tell(call, known.what, labels, len(wanted.flat))

    def _tell(self, call: OperatorCall, seen: _Seen, labels: Any, count: int) -> None:
        facts, line = self.facts, line_of(call.lines)
        cut, other = self._cut.of(labels), self._cut.of(seen.tokens)
        made = cut.line if cut is not None and labels is not seen.tokens else None
        evidence = [
            f"all {count:,} labels are the tokens that {place(seen.line)} embeds, in {seen.rows} rows of "
            f"{seen.places} places",
            "what each place says is computed from what was embedded there: to give that back is no task",
        ]
        if made is not None:
            evidence.append(f"the labels are cut out at {place(made)}, the input at "
                            f"{place(other.line if other is not None else None)}")  # fmt: skip
        facts.tell(
            Finding(
                0, "loss-input", "warning", 0.88,
                f"{call.name} at {place(line)} is given the model's own input as its labels: the labels are not "
                "shifted by one (tokens[:, :-1] and tokens[:, 1:])",
                None, None, facts.iteration + 1, line, facts.cause(made or line), evidence,
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip

    def iteration_end(self) -> None:
        self._places = Marks()  # they hold the tokens of an iteration


def _has_places(sizes: list[int], seen: _Seen) -> bool:
    """Whether a tensor has the places of each row apart: rows and places in its first three axes, or as one."""
    if not sizes:
        return False
    if sizes[0] == seen.rows * seen.places or sizes[:2] == [seen.places, seen.rows]:
        return True
    return sizes[0] % seen.rows == 0 and seen.places in sizes[1:3]
