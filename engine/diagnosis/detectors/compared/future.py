"""Attention that sees the token it is to predict."""

from __future__ import annotations

from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_PRODUCTS = frozenset({"matmul", "bmm", "einsum", "mm"})
_ATTENTIONS = frozenset({"scaled_dot_product_attention", "flash_attention", "memory_efficient_attention"})
_LOSSES = frozenset({"cross_entropy", "cross_entropy_with_softmax", "nll_loss"})
_LEAST = 3  # tokens of a sequence
_MASKED = 1e-12  # a weight that a mask leaves: Paddle's softmax on a CPU takes no exp below that of -64, 1.6e-28
_MOST = 1 << 16  # elements of a table of weights, and of tokens


@detector("mask-added")
class SeesTheFuture(Detector):
    """A language model is trained to predict the next token (``inputs = seq[:, :-1]``, ``labels = seq[:, 1:]``), and
    its attention has no causal mask: place i sees token i + 1, which is its label, and learns to copy it.

    Evidence: that the labels are the tokens moved by one place, by their numbers; the attention of these tokens with
    themselves, without a mask, or its weights behind the diagonal.
    Mistaken for: encoders and attention to another sequence (not looked at), masked language models, whose labels are
    not moved (not told).
    Cost: in sampled iterations a mark on what is made of tokens, and a comparison of tokens and labels.
    """

    sampled = Need.OPERATORS
    calls = False

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._tokens: list[tuple[int, list[float]]] = []  # of one iteration: (length, numbers)
        self._made: Marks[int] = Marks()  # of tokens: which
        self._scores: Marks[int] = Marks()
        self._open: dict[int, SourceLine | None] = {}  # tokens -> the attention that sees all of them
        self._told = self._any = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or call.in_backward or not call.results or not call.grad_mode:
            return
        name = plain(call.name)
        if name == "embedding":
            self._embedded(call)
            return
        if not self._tokens:
            return
        if name in _LOSSES and len(call.operands) > 1:
            self._compare(call)
            return
        marked = [(each, known.what) for each in call.operands if (known := self._made.of(each)) is not None]
        if name in _ATTENTIONS:
            self._attends(call)
        elif name == "multi_head_attention_forward":
            masked = call.keywords.get("attn_mask") is not None or call.keywords.get("is_causal")
            if not masked and len(marked) > 1 and marked[0][1] == marked[1][1]:
                self._open.setdefault(marked[0][1], line_of(call.lines))
        elif name in _PRODUCTS and len(marked) == 2 and marked[0][1] == marked[1][1]:
            sizes = shape(call.results[0])
            if len(sizes) > 2 and sizes[-1] == sizes[-2] == self._tokens[marked[0][1]][0]:
                self._scores.put(call.results[0], marked[0][1], name, line_of(call.lines))
        scores = next((known.what for each in call.operands if (known := self._scores.of(each)) is not None), None)
        if scores is not None:
            self._weights(call, name, scores)
        for each in call.results if marked else ():
            self._made.put(each, marked[0][1], name, None)

    def _embedded(self, call: OperatorCall) -> None:
        ids = next((each for each in call.operands if "int" in str(each.dtype)), None)
        sizes = shape(ids) if ids is not None else []
        read = few_numbers(self.facts.backend, ids, _MOST) if len(sizes) == 2 and sizes[1] >= _LEAST else None
        if read is None or len(set(read.flat)) < _LEAST or len(self._tokens) > 16:
            return
        at = next((at for at, known in enumerate(self._tokens) if known == (sizes[1], list(read.flat))), None)
        if at is None:
            at = len(self._tokens)
            self._tokens.append((sizes[1], list(read.flat)))
        self._made.put(call.results[0], at, call.name, None)

    def _attends(self, call: OperatorCall) -> None:
        marks = [self._made.of(each) for each in call.operands[:2]]
        if len(marks) < 2 or None in marks or len(call.operands) > 3:
            return
        causal = call.keywords.get("is_causal", call.keywords.get("causal", False))
        if causal or any(each is True for each in call.arguments[3:]):
            return
        one, other = (known.what for known in marks if known is not None)
        if one == other and shape(call.operands[0])[-2:-1] == shape(call.operands[1])[-2:-1]:
            self._open.setdefault(one, line_of(call.lines))

    def _weights(self, call: OperatorCall, name: str, tokens: int) -> None:
        result = call.results[0]
        if name != "softmax":
            if shape(result)[-2:] == shape(call.operands[0])[-2:] and name not in _PRODUCTS:
                self._scores.put(result, tokens, name, None)
            return
        size = shape(result)[-1]
        read = few_numbers(self.facts.backend, result, _MOST)
        if read is None or len(read.flat) < size * size:
            return
        if all(read.flat[row * size + row + 1] > _MASKED for row in range(size - 1)):
            self._open.setdefault(tokens, line_of(call.lines))

    def _compare(self, call: OperatorCall) -> None:
        labels = call.operands[1]
        if "int" not in str(labels.dtype):
            return
        read = few_numbers(self.facts.backend, labels, _MOST)
        given = list(read.flat) if read is not None else []
        for at, (length, tokens) in enumerate(self._tokens):
            if len(given) != len(tokens):
                continue
            self._any = True
            rows = range(0, len(tokens), length)
            moved = all(given[row : row + length - 1] == tokens[row + 1 : row + length] for row in rows)
            if moved and at in self._open:
                self._told = True
                self._tell(self._open[at], line_of(call.lines), length, call.name)
                return

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if len(running.chain) == 1:
            self._tokens, self._open = [], {}
            self._made, self._scores = Marks(), Marks()

    def _tell(self, line: SourceLine | None, loss: SourceLine | None, length: int, name: str) -> None:
        facts = self.facts
        message = (
            f"the attention of {place(line)} has no causal mask, and the labels of {place(loss)} are the tokens moved "
            "by one place: each place sees the token that it is to predict; give it a causal mask"
        )
        evidence = [
            f"{place(line)}: {facts.text_of(line) if line is not None else ''}",
            f"label i is token i + 1, in all sequences of {length} tokens that {name} at {place(loss)} compares",
            "the attention is one of these tokens among themselves, and place i gives token i + 1 a weight above 0",
        ]
        facts.tell(
            Finding(
                0, "mask-added", "error", 0.9, message, None, None, facts.iteration + 1, loss, facts.cause(line),
                evidence, [f"b {place(line)}"],
            )
        )  # fmt: skip
