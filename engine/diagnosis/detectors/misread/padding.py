"""The last step of padded sequences, taken for the last step of each; losses that count what is padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers, numbers
from adbg.engine.diagnosis.source import layer_line
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_KEEPS = frozenset({
    "dropout", "contiguous", "to", "float", "cast", "layer_norm", "transpose", "clone", "index_select", "linear",
    "tanh", "relu", "gelu", "silu",
})  # fmt: skip
_RECURRENT = frozenset({"pad_packed_sequence", "rnn"})  # of Paddle one operator, which may be told lengths
_WIDTH = 4  # numbers of a step: all 0 by chance is nothing that happens
_MOST = 1 << 20  # elements of what is looked at
_SHARE = 0.2  # of the sequences


@detector("padding-taken")
class PaddingTaken(Detector):
    """``outputs[:, -1]`` of sequences that end earlier, each at a length of its own: a recurrent layer that is told the
    lengths (``pad_packed_sequence``, ``sequence_length``) gives zeros after these, so that the last step of most
    sequences is padding. What is computed of it does not depend on them.

    Evidence: how many of the sequences are all 0 at the step that is taken, and how long they are.
    Mistaken for: zeros that the program makes itself, and may weigh its loss by; sequences that are 0 from begin to
    end, and where all are (nothing was computed yet); what no gradient is wanted of: not told.
    Cost: in sampled iterations a look at what is taken by a last index, and at all of it where a row is 0.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._made: Marks[None] = Marks()  # by a recurrent layer that knows the lengths
        self._looked = False
        self._told: set[Any] = set()

    def applied(self) -> bool:
        return self._looked

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        if call.error is not None or not call.results or not call.operands:
            return
        kept = name in _KEEPS and self._made.of(call.operands[0]) is not None
        if kept or name in _RECURRENT:
            self._made.put(call.results[0], None, name, None)
        if name != "getitem" or len(call.arguments) != 2 or self._made.of(call.arguments[0]) is None:
            return
        source, taken = call.arguments[0], call.results[0]
        sizes = shape(source)
        if len(sizes) != 3 or sizes[2] < _WIDTH or not taken.requires_grad or not call.grad_mode:
            return
        axis = _last_of(call.arguments[1], sizes)
        if axis is None or min(sizes) < 1 or sizes[0] * sizes[1] * sizes[2] > _MOST or sizes[axis] < 2:
            return
        self._looked = True
        line = line_of(call.lines)
        if line in self._told:
            return
        lengths = self._lengths(source, sizes, axis)
        if lengths is None:
            return
        self._told.add(line)
        self._tell(line, lengths, sizes[axis])

    def _lengths(self, source: Any, sizes: list[int], axis: int) -> list[int] | None:
        """Up to where each sequence is not 0; None where that is the end of (nearly) all, or of none."""
        read = numbers(self.facts.backend, source)
        if read is None:
            return None
        first, second, width = sizes
        steps, rows = (second, first) if axis == 1 else (first, second)

        def is_zero(row: int, step: int) -> bool:
            at = (row * second + step if axis == 1 else step * second + row) * width
            return not any(read.flat[at : at + width])

        padded = [row for row in range(rows) if is_zero(row, steps - 1)]
        if len(padded) < max(2, _SHARE * rows) or len(padded) == rows:
            return None
        lengths = [
            next((step + 1 for step in reversed(range(steps)) if not is_zero(row, step)), 0) for row in range(rows)
        ]
        ended = [each for each in lengths if 0 < each < steps]
        # Units that are off by chance are so for one step, and anywhere: padding goes on to the end.
        longer = sum(steps - each > 1 for each in ended)
        within = any(is_zero(row, step) for row in range(rows) for step in range(lengths[row]))
        return lengths if len(ended) >= max(2, _SHARE * rows) and longer and not within else None

    def _tell(self, line: Any, lengths: list[int], steps: int) -> None:
        facts, ended = self.facts, [each for each in lengths if each < steps]
        facts.tell(
            Finding(
                0, "padding-taken", "error", 0.9,
                f"{place(line)} takes the last of {steps} steps: {len(ended)} of {len(lengths)} sequences ended before "
                "it, and are all 0 there",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"the sequences are {min(lengths)} to {max(lengths)} steps long, and padded with zeros behind that",
                    "take the step at each sequence's own length, or the state that the recurrent layer returns",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip


def _last_of(key: Any, sizes: list[int]) -> int | None:
    """The axis, 0 or 1, of which the last place alone is taken: 1 of ``[:, -1]`` and ``[:, -1, :4]``."""
    parts = list(key) if isinstance(key, tuple) else [key]
    for axis, part in enumerate(parts[:2]):
        if type(part) is int and part in (-1, sizes[axis] - 1):
            others = parts[:axis] + parts[axis + 1 :]
            return axis if all(each == slice(None) for each in others[:axis]) else None
        if part != slice(None):
            return None
    return None


_LABELS = 1 << 15  # that are read
_COUNTED = 0.1  # of the labels
_LOOKS = 3


@dataclass(slots=True)
class _Counted:
    """A loss over words: which token is padding, and what part of its labels that is, by look."""

    name: str
    token: int
    embedded: SourceLine | None
    shares: list[float] = field(default_factory=list)


@detector("padding-taken")
class PaddingCounted(Detector):
    """A loss over the words of padded sentences that counts the padding: most labels are then one token that is easily
    said, the loss falls for it, and the words are hardly learnt (``ignore_index`` is missing).

    Evidence: the token that an embedding of the same vocabulary calls its padding (``padding_idx``), and how many of
    the labels it is, in each look.
    Mistaken for: labels of another vocabulary (as many classes as the embedding has rows, or it is not told), a loss
    that ignores the token, weighs the classes, or is reduced by the program itself: not told.
    Cost: in sampled iterations a look at embeddings, and the labels of such losses.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        # Rows of a table -> its padding, where it is used, and of how many rows and places the tokens are.
        self._padded: dict[int, tuple[int, SourceLine | None, list[int]]] = {}
        self._lines: dict[SourceLine | None, _Counted] = {}
        self._right: set[SourceLine | None] = set()

    def applied(self) -> bool:
        return bool(self._lines)

    def composite(self, call: OperatorCall) -> None:
        if plain(call.name) == "cross_entropy":  # of an ignored index the mean is a sum and a quotient there
            self._loss(call, call.arguments[2], call.arguments[3])

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.grad_mode or call.in_backward or not call.results:
            return
        name = plain(call.name)
        if name == "embedding" and len(call.arguments) > 1:
            padding: Any = call.keywords.get("padding_idx", call.arguments[2] if len(call.arguments) > 2 else None)
            rows = shape(call.arguments[1])
            if type(padding) is int and len(rows) == 2 and (0 <= padding < rows[0] or padding < -1):
                tokens = shape(call.arguments[0])
                self._padded[rows[0]] = padding % rows[0], line_of(call.lines), tokens  # torch counts from the end
        elif name == "cross_entropy" and not shape(call.results[0]):
            given = call.arguments
            weight = call.keywords.get("weight", given[2] if len(given) > 2 else None)
            ignored = call.keywords.get("ignore_index", given[4] if len(given) > 4 else -100)
            if call.keywords.get("reduction", "mean") == "mean":
                self._loss(call, weight, ignored)

    def _loss(self, call: OperatorCall, weight: Any, ignored: Any) -> None:
        line, operands = line_of(call.lines), call.operands
        if line in self._right or len(operands) < 2 or "int" not in str(operands[1].dtype):
            return
        sizes = shape(operands[0])
        classes = sizes[1] if len(sizes) > 1 and self.facts.backend.name == "torch" else sizes[-1] if sizes else 0
        known = self._padded.get(classes)
        if known is None or len(known[2]) != 2:
            return
        rows, places = known[2]
        if self.facts.backend.meta(operands[1]).numel not in (rows * places, rows * (places - 1)):
            return  # labels of another kind, which happen to be as many
        read = few_numbers(self.facts.backend, operands[1], _LABELS)
        if weight is not None or ignored == known[0] or read is None or not read.flat:
            self._right.add(line)
            return
        found = self._lines.setdefault(line, _Counted(call.name, known[0], known[1]))
        token, pairs = known[0], zip(read.flat, read.flat[1:])  # one alone may end a sentence, and mean that
        found.shares.append(sum(one == other == token for one, other in pairs) / len(read.flat))

    def end(self) -> None:
        for line, found in self._lines.items():
            if line not in self._right and len(found.shares) >= _LOOKS and min(found.shares) >= _COUNTED:
                self._tell(line, found)

    def _tell(self, line: SourceLine | None, found: _Counted) -> None:
        facts, made = self.facts, layer_line(line, "CrossEntropyLoss") if line is not None else None
        shown = ", ".join(f"{share:.0%}" for share in found.shares[:4])
        facts.tell(
            Finding(
                0, "padding-taken", "warning", 0.82,
                f"{found.name} at {place(line)} counts the padding: token {found.token} is up to "
                f"{max(found.shares):.0%} of its labels; give it ignore_index={found.token}",
                None, None, None, line, facts.cause(made or line),
                [
                    f"the embedding at {place(found.embedded)} has padding_idx={found.token}, and as many rows as "
                    "there are classes",
                    f"of the labels it is {shown} in the first looks",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip
