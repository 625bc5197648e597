"""Masks that say the opposite of what they are taken for: an attention that sees the padding alone."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding

_KEEPS = frozenset({
    "unsqueeze", "reshape", "view", "expand", "getitem", "contiguous", "clone", "to", "bool", "broadcast_to", "tile",
    "repeat", "cast", "expand_as", "float",
})  # fmt: skip
_FLIPS = frozenset({"logical_not", "bitwise_not", "invert"})
_ORDERS = frozenset({"ge", "gt", "le", "lt", "greater_equal", "greater_than", "less_equal", "less_than", "greater",
                     "less"})  # fmt: skip
_ATTENDS = frozenset({"scaled_dot_product_attention"})
_LOW = -1e3
_KINDS = 8  # different tokens, fewer are no vocabulary
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class _Mask:
    """True where a token is (``same``) or is not the number ``token``; None: behind the end of each sequence.
    ``kinds``: how many others there are."""

    token: float | None
    same: bool
    kinds: int
    shown: str
    ends: bytes = b""  # of each place 1 where it is at the end of its row, or 0


@detector("mask-added")
class Polarity(Detector):
    """A mask that is True at the padding (``ids == PAD``) is given to an attention for which True means that a place is
    seen (torch's ``scaled_dot_product_attention``, Paddle's ``MultiHeadAttention``), or one that is True at all others
    to what hides where it is True (``key_padding_mask``, ``masked_fill``): what is seen are the places of one token.

    Evidence: the comparison that made the mask, and how many other tokens there are that are not seen.
    Mistaken for: masks that other conditions went into, batches without that token, and a token that does not stand at
    one end of the rows, at a length of its own in each, as padding does (legal moves, kinds of edges), rows whose
    padding stands before the words: not told. Where a length made it, and no tokens are known, a note.
    Cost: in sampled iterations a look at comparisons of integers with a number, and at what is done with them.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._masks: Marks[_Mask] = Marks()
        self._wide: Marks[_Mask] = Marks()  # what was cast, minus 1
        self._any = False
        self._filled: Marks[None] = Marks()  # made numbers: what was True is low
        self._shown: Marks[None] = Marks()  # likewise: what was False is low
        self._tokens: weakref.ref[Any] | None = None  # embedded last
        self._told: set[Any] = set()

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands:
            return
        name, source, result = plain(call.name), call.operands[0], call.results[0]
        if name in _ATTENDS:
            self._any = True
            mask: Any = call.keywords.get("attn_mask", call.arguments[3] if len(call.arguments) > 3 else None)
            known = self._masks.of(mask) if mask is not None else None
            shows = mask is not None and ("bool" in str(mask.dtype) or self._shown.of(mask) is not None)
            if known is not None and known.what.same and shows:
                self._tell(call, known, "where it is True a place is seen")
        elif name == "multi_head_attention_forward":
            self._any = True
            mask = call.keywords.get("key_padding_mask")
            known = self._masks.of(mask) if mask is not None else None
            hides = mask is not None and ("bool" in str(mask.dtype) or self._filled.of(mask) is not None)
            if known is not None and not known.what.same and hides:
                self._tell(call, known, "where it is True a place is hidden")
        elif name == "embedding":
            self._tokens = weakref.ref(next((each for each in call.operands if "int" in str(each.dtype)), source))
        elif name in ("eq", "ne", "equal", "not_equal"):
            self._compare(call, name)
        elif name in _ORDERS:
            self._ends(call)
        elif (known := self._masks.of(source)) is not None:
            if name == "where":
                self._choose(call, known)
            elif name in _KEEPS:
                self._masks.put(result, known.what, known.name, known.line)
            elif name in _FLIPS:
                self._flip(result, known)
            elif name in ("sub", "subtract"):
                self._added(call, known)
        elif name == "masked_fill":
            self._fill(call)
        elif name in ("mul", "multiply", "scale"):
            self._lowered(call)

    def composite(self, call: OperatorCall) -> None:
        if call.results and call.operands and plain(call.name) in (*_ATTENDS, "masked_fill"):
            self.operator(call)

    def _compare(self, call: OperatorCall, name: str) -> None:
        source, result = call.operands[0], call.results[0]
        given = call.arguments[1] if len(call.arguments) > 1 else call.keywords.get("other")
        if type(given) not in (int, float, bool):
            return
        same = name in ("eq", "equal")
        known = self._masks.of(source)
        if known is not None and given in (0, 1):
            if same == bool(given):
                self._masks.put(result, known.what, known.name, known.line)
            else:
                self._flip(result, known)
            return
        if len(shape(source)) != 2 or "int" not in str(source.dtype) or known is not None:
            return
        read = few_numbers(self.facts.backend, source, _MOST)
        if read is None:
            return
        others, width = set(read.flat), shape(source)[1]
        rows = [[each == given for each in read.flat[at : at + width]] for at in range(0, len(read.flat), width)]
        if given not in others or len(others) < _KINDS or not _is_at_ends(rows):
            return
        line = line_of(call.lines)
        what = _Mask(float(given), same, len(others) - 1, f"{self.facts.text_of(line) if line is not None else name}")
        self._masks.put(result, what, call.name, line)

    def _ends(self, call: OperatorCall) -> None:
        """Places compared with a length for each row: True at the begin of each, or True behind its end."""
        result = call.results[0]
        sizes, line = shape(result), line_of(call.lines)
        columns = [each for each in call.operands if shape(each)[-1:] == [1] and shape(each)[:1] == sizes[:1]]
        if len(sizes) != 2 or len(call.operands) != 2 or len(columns) != 1 or min(sizes) < 2:
            return
        read = few_numbers(self.facts.backend, result, _MOST)
        if read is None:
            return
        rows = [[bool(each) for each in read.flat[at * sizes[1] : (at + 1) * sizes[1]]] for at in range(sizes[0])]
        ends = [sum(a != b for a, b in itertools.pairwise(row)) for row in rows]
        first = {row[0] for row in rows}
        counts = [sum(row) for row in rows]
        steps = {b - a for a, b in itertools.pairwise(counts)}
        if max(ends) != 1 or len(first) != 1 or len(set(counts)) < 2 or steps in ({1}, {-1}):
            return  # rows that are one longer each: a triangle, which hides what comes later
        text = self.facts.text_of(line) if line is not None else call.name
        begin = first.pop()
        behind = bytes(bool(each) != begin for each in read.flat)
        self._masks.put(result, _Mask(None, not begin, 0, text, behind), call.name, line)

    def _choose(self, call: OperatorCall, known: Marked[_Mask]) -> None:
        """``where(mask, 0.0, -inf)``, which Paddle's attention makes of a bool one."""
        read = [few_numbers(self.facts.backend, each, _MOST) for each in call.operands[1:3]]
        numbers = [each.flat[0] for each in read if each is not None and len(set(each.flat)) == 1]
        if len(numbers) == 2 and numbers[0] == 0 and numbers[1] <= _LOW:
            self._masks.put(call.results[0], known.what, known.name, known.line)
            self._shown.put(call.results[0], None, call.name, None)

    def _padding_is_last(self, what: _Mask) -> bool | None:
        """Whether the places at the end of the rows hold one token, and those before it others; None where no tokens of
        that shape were embedded: padding may stand before the words."""
        tokens = self._tokens() if self._tokens is not None else None
        read = few_numbers(self.facts.backend, tokens, _MOST) if tokens is not None else None
        if read is None or len(read.flat) != len(what.ends):
            return None
        last = {token for token, end in zip(read.flat, what.ends) if end}
        return len(last) == 1 and len({token for token, end in zip(read.flat, what.ends) if not end}) > 1

    def _flip(self, result: Any, known: Marked[_Mask]) -> None:
        what = known.what
        self._masks.put(result, replace(what, same=not what.same), known.name, known.line)

    def _added(self, call: OperatorCall, known: Marked[_Mask]) -> None:
        """Paddle's way: (mask - 1) * 1e9 is added to the scores."""
        other = call.arguments[1] if len(call.arguments) > 1 else None
        minus = call.name in ("__sub__", "sub", "subtract")  # not ``1 - mask``
        if minus and known.what.same and other in (1, 1.0) and "float" in str(call.results[0].dtype):
            self._wide.put(call.results[0], known.what, known.name, known.line)

    def _lowered(self, call: OperatorCall) -> None:
        known = self._wide.of(call.operands[0])
        factor: Any = call.arguments[1] if len(call.arguments) > 1 else None
        if known is not None and type(factor) in (int, float) and factor >= -_LOW:
            self._any = True
            self._tell(call, known, "what is False has its scores lowered, and where it is True a place is seen")

    def _fill(self, call: OperatorCall) -> None:
        mask = call.arguments[1] if len(call.arguments) > 1 else call.keywords.get("mask")
        value: Any = call.arguments[2] if len(call.arguments) > 2 else call.keywords.get("value")
        if type(value) not in (int, float):  # Paddle makes a tensor of it
            read = few_numbers(self.facts.backend, value, 1)
            value = read.flat[0] if read is not None and read.flat else 0.0
        if value > _LOW or mask is None:
            return
        known = self._masks.of(mask)
        if len(shape(call.operands[0])) < 3:  # nn.MultiheadAttention makes one of numbers of what it is given
            if known is not None:
                self._masks.put(call.results[0], known.what, known.name, known.line)
                self._filled.put(call.results[0], None, call.name, None)
            return
        self._any = True
        if known is not None and not known.what.same:
            self._tell(call, known, "where it is True a place is hidden")

    def _tell(self, call: OperatorCall, known: Marked[_Mask], how: str) -> None:
        facts, line, what = self.facts, line_of(call.lines), known.what
        if known.line in self._told:
            return
        last = self._padding_is_last(what) if what.ends else True
        if last is False:
            return
        self._told.add(known.line)
        seen, unseen = "what lies behind the end of each sequence", "none of what is in it"
        if what.token is not None:
            token = int(what.token) if what.token == int(what.token) else what.token
            seen, unseen = f"the places of token {token} alone", f"none of the {what.kinds} other tokens"
        facts.tell(
            Finding(
                0, "mask-added", "error", 0.9 if last else 0.45,
                f"the attention at {place(line)} sees {seen}, and {unseen}: {how}, and the mask was made at "
                f"{place(known.line)}",
                None, None, facts.iteration + 1, line, facts.cause(known.line),
                [
                    f"the mask is `{what.shown}` ({place(known.line)})",
                    "turn it (~mask): which of True and False hides is another in each of these functions",
                    *([] if last else ["whether padding stands at the end of the rows decides it"]),
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip


def _is_at_ends(rows: Sequence[Sequence[bool]]) -> bool:
    """All at the end of each row, or all at its begin, in runs of several lengths."""
    changes = [sum(a != b for a, b in itertools.pairwise(row)) for row in rows]
    some = [row for row in rows if any(row)]
    if not some or max(changes) > 1 or len({sum(row) for row in rows}) < 2:
        return False
    return all(row[-1] for row in some) or all(row[0] for row in some)
