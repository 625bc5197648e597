"""Labels that are what the model is given: each place is to say what it sees; or that are two places ahead of it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_EMBEDS = frozenset({"embedding", "lookup_table_v2"})
_LOSSES = frozenset({"cross_entropy", "cross_entropy_with_softmax", "nll_loss"})
_CUTS = frozenset({"clone", "getitem", "slice", "narrow", "index_select", "gather", "select", "index", "take",
                   "where", "masked_fill"})  # fmt: skip
_CARRIES = frozenset({
    "stack", "cat", "concat", "view", "reshape", "flatten", "contiguous", "to", "cast", "long", "astype",
    "unsqueeze", "squeeze", "detach", "collate", "as_tensor", "tensor", "to_tensor", "assign",
})  # fmt: skip
#: What gives each place what it makes of that place, or of all of them: of one operand, the others being weights.
_KEEPS = frozenset({
    "linear", "addmm", "layer_norm", "rms_norm", "native_layer_norm", "dropout", "relu", "gelu", "silu", "swish",
    "tanh", "sigmoid", "leaky_relu", "elu", "softplus", "softmax", "log_softmax", "chunk", "split",
    "split_with_num", "unbind", "view",
    "reshape", "flatten", "transpose", "permute", "swapaxes", "contiguous", "getitem", "squeeze", "unsqueeze", "to",
    "cast", "float", "scale", "div", "divide", "truediv", "lstm", "gru", "rnn_tanh", "rnn_relu", "rnn", "masked_fill",
    "scaled_dot_product_attention", "multi_head_attention_forward", "flash_attn", "unflatten", "clone", "assign",
})  # fmt: skip
_JOINS = frozenset({"add", "matmul", "bmm", "mul", "multiply"})
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "rnn"})
_MIXES = _RECURRENT | {"scaled_dot_product_attention", "multi_head_attention_forward", "flash_attn"}
_MIXED = "mixed"  # name of the mark of what has something of other places, too
_SLICES = frozenset({"getitem", "slice", "narrow"})
_PICKS = frozenset({"gather", "take_along_axis", "index_sample", "one_hot"})
_TWICE = 2
_SHORTEST = 4  # places of a sequence
_KINDS = 3  # different tokens
_MOST = 1 << 15  # tokens that are compared
_LOOKS = 3
_FELL = 0.2  # of the first loss that is left


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was embedded: rows, places, where, the bytes of the tokens, and where these were cut out."""

    rows: int
    places: int
    line: SourceLine | None
    digest: int
    made: SourceLine | None
    tokens: Any = field(compare=False)  # a weak reference
    cut: bool = False  # the last of ``places`` is left out


@dataclass(slots=True)
class _Place:
    """A loss that got its model's own input in each look so far."""

    name: str
    line: SourceLine | None
    seen: _Seen
    labels: SourceLine | None  # where they were cut out
    mixed: bool  # each place knows of others
    losses: list[float]


@dataclass(slots=True)
class _Ahead:
    """A loss whose labels were two places ahead in each look."""

    name: str
    line: SourceLine | None
    seen: _Seen
    labels: SourceLine | None
    looks: int = 0
    moved: int = 0  # how often the labels were moved on by one


@detector("loss-input")
class LabelsNotShifted(Detector):
    """A language model whose labels are its input: ``x = text[i:i + n]``, ``y = text[i:i + n]``. Each place gives back
    the token that it sees, the loss falls to nothing, and nothing is learnt of what comes next.

    Evidence: the labels and what was embedded, equal in every place that counts (labels below 0 do not) in each look;
    that what each place says is computed from what was embedded there; the loss, which fell.
    Mistaken for: an encoder that gives its tokens back out of fewer places, words that are masked, moved or noised
    (before they are embedded or after it), two sequences that meet: not told, as what each place says does not come of
    that place alone by operators that keep it there. A note where the loss did not fall: then a place may not see its
    own token; and where no place knows of another one, as in codes of single words. Labels that were shifted twice are
    two places ahead: not told where another loss of the program has those of the next place.
    Cost: in sampled iterations a look at each operator's name, and a checksum of what is embedded and of labels.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._places: Marks[tuple[_Seen, ...]] = Marks()
        self._cut: Marks[int] = Marks()  # how often tokens were moved on by one
        self._found: dict[SourceLine | None, _Place] = {}
        self._other: set[SourceLine | None] = set()  # losses that got something else
        self._ahead: dict[SourceLine | None, _Ahead] = {}
        self._next = False  # a loss has the labels of the next place
        self._any = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.operands:
            return
        if not call.results:
            for each in writes(call):  # ``h[masked] = token``
                self._places.drop(each)
            return
        name, result = plain(call.name), call.results[0]
        seen = self._kept(call, name) if name in _KEEPS or name in _JOINS else ()
        mixed = name in _MIXES or sum(self._places.of(each) is not None for each in call.operands) > 1
        mixed = (mixed and name != "add") or any(self._is_mixed(each) for each in call.operands)
        for each in writes(call):
            self._places.drop(each)  # it has other values now
        if name in _EMBEDS:
            self._embed(call, result)
        elif name in _LOSSES:
            self._compare(call)
        elif name in _PICKS and not self._next:  # a loss of the program's own
            known = self._places.of(call.operands[0])
            labels = call.operands[1] if len(call.operands) > 1 else None
            if known is not None and labels is not None and "int" in str(labels.dtype):
                self._next = any(self._are_ahead(labels, each, 1) for each in known.what)
        elif not seen:
            self._follow_tokens(call, name, result)
        for each in call.results:
            if seen and _has_places(shape(each), seen[0]):
                self._places.put(each, seen, _MIXED if mixed else name, None)
            elif seen and name in _SLICES and not seen[0].cut and _first_of(call) == 0:
                less = tuple(replace(one, places=one.places - 1, cut=True) for one in seen)
                if _has_places(shape(each), less[0]):  # ``logits[:, :-1]``
                    self._places.put(each, less, _MIXED if mixed else name, None)

    def _is_mixed(self, value: Any) -> bool:
        known = self._places.of(value)
        return known is not None and known.name == _MIXED

    def _kept(self, call: OperatorCall, name: str) -> tuple[_Seen, ...]:
        """Where what comes out has the places of what was embedded, () otherwise. Beside it there may be weights, what
        is no batch of rows (positions), and, added to it, what else was embedded for the same places."""
        known = [self._places.of(each) for each in call.operands]
        found = list(dict.fromkeys(each.what for each in known if each is not None))
        if not found or len({(each.rows, each.places) for what in found for each in what}) > 1:
            return ()
        if len(found) > 1 and name != "add":
            return ()
        seen = tuple(dict.fromkeys(each for what in found for each in what))
        for mark, each in zip(known, call.operands):
            sizes = shape(each)
            if mark is None and not (each.is_leaf and each.requires_grad):
                if len(sizes) > 2 and (sizes[0] != 1 or (seen[0].rows == 1 and name not in _RECURRENT)):
                    return ()  # another batch: noise, a second sequence
                if name not in ("add", "masked_fill") and len(sizes) > 1 and name in _JOINS:
                    return ()
        return seen

    def _follow_tokens(self, call: OperatorCall, name: str, result: Any) -> None:
        """The line that cuts them out of a text, which is the one to change; through what only lays them otherwise."""
        if (name not in _CARRIES and name not in _CUTS) or "int" not in str(result.dtype):
            return
        source = call.operands[0]
        both = shape(source), shape(result)
        rows = name != "clone" and len(both[0]) == len(both[1]) == 2 and both[0][1] == both[1][1]
        before = self._cut.of(source)
        made = before if name in _CARRIES or rows else None  # rows that are picked were cut before
        if made is not None:
            self._cut.put(result, made.what, made.name, made.line)
        else:
            moved = (before.what if before is not None else 0) + (name in _SLICES and _first_of(call) == 1)
            self._cut.put(result, moved, name, line_of(call.lines))

    def _embed(self, call: OperatorCall, result: Any) -> None:
        tokens = next((each for each in call.operands if "int" in str(each.dtype)), None)
        sizes = shape(tokens) if tokens is not None else []
        if len(sizes) != 2 or sizes[1] < _SHORTEST or not self.facts.backend.meta(result).requires_grad:
            return  # frozen: a head of its own is trained, of whatever place
        digest = self.facts.digest(tokens) if sizes[0] * sizes[1] <= _MOST else None
        if digest is not None:
            cut = self._cut.of(tokens)
            what = _Seen(
                sizes[0],
                sizes[1],
                line_of(call.lines),
                digest,
                cut.line if cut is not None else None,
                weakref.ref(tokens),
            )
            self._places.put(result, (what,), call.name, what.line)

    def _compare(self, call: OperatorCall) -> None:
        line, known = line_of(call.lines), self._places.of(call.operands[0])
        labels = call.operands[1] if len(call.operands) > 1 else None
        if known is None or labels is None or "int" not in str(labels.dtype):
            return
        self._look_ahead(call, labels, known.what)
        if line in self._other:
            return
        self._any = True
        backend = self.facts.backend
        given = call.results[0 if plain(call.name) == "nll_loss" else -1]  # beside a weight, or behind a softmax
        losses = few_numbers(backend, given, _MOST)
        seen = next((each for each in known.what if self._are_tokens(labels, each)), None)
        if losses is None or not losses.flat or seen is None:
            self._other.add(line)
            self._found.pop(line, None)
            return
        found = self._found.get(line)
        if found is None:
            tokens_read = few_numbers(backend, labels, _MOST)
            if tokens_read is None or len({each for each in tokens_read.flat if each >= 0}) < _KINDS:
                return
            cut, tokens = self._cut.of(labels), seen.tokens()
            alike = tokens is not None and self.facts.share_memory(tokens, labels)
            made = cut.line if cut is not None and not alike else None
            found = self._found[line] = _Place(call.name, line, seen, made, self._is_mixed(call.operands[0]), [])
        found.losses.append(sum(losses.flat) / len(losses.flat))

    def _look_ahead(self, call: OperatorCall, labels: Any, every: tuple[_Seen, ...]) -> None:
        if self._next:
            return
        line = line_of(call.lines)
        by = next((by for each in every for by in (1, 2) if self._are_ahead(labels, each, by)), 0)
        self._next = by == 1
        if by != 2:
            self._ahead.pop(line, None)
            return
        cut = self._cut.of(labels)
        found = self._ahead.setdefault(line, _Ahead(call.name, line, every[0], cut.line if cut is not None else None))
        found.looks += 1
        found.moved = cut.what if cut is not None else 0

    def _are_ahead(self, labels: Any, seen: _Seen, by: int) -> bool:
        """Whether each label is the token ``by`` places behind that of its place, as far as there is one."""
        backend, tokens = self.facts.backend, seen.tokens()
        if tokens is None or backend.meta(labels).numel != seen.rows * seen.places or seen.rows * seen.places > _MOST:
            return False
        wide, read, given = seen.places + seen.cut, few_numbers(backend, labels, _MOST), None
        if read is not None and self.facts.digest(tokens) == seen.digest:
            given = few_numbers(backend, tokens, _MOST)
        if read is None or given is None or len(given.flat) != seen.rows * wide:
            return False
        pairs = [
            (read.flat[row * seen.places + at], given.flat[row * wide + at + by])
            for row in range(seen.rows) for at in range(min(seen.places, wide - by))
        ]  # fmt: skip
        counted = [(label, token) for label, token in pairs if label >= 0]
        kinds = len({label for label, _ in counted})
        return 2 * len(counted) > len(pairs) and kinds >= _KINDS and all(one == two for one, two in counted)

    def _are_tokens(self, labels: Any, seen: _Seen) -> bool:
        """Equal in every place, but for labels below 0, which count for nothing (``ignore_index``)."""
        backend, count = self.facts.backend, seen.rows * seen.places
        if seen.cut or backend.meta(labels).numel != count:
            return False
        if self.facts.digest(labels) == seen.digest:
            return True
        read = few_numbers(backend, labels, _MOST)
        tokens = seen.tokens()
        if read is None or tokens is None or min(read.flat, default=0) >= 0 or self.facts.digest(tokens) != seen.digest:
            return False
        given = few_numbers(backend, tokens, _MOST)
        counted = [] if given is None else [pair for pair in zip(read.flat, given.flat) if pair[0] >= 0]
        return 2 * len(counted) >= count and all(label == token for label, token in counted)

    def iteration_end(self) -> None:
        self._places = Marks()  # of one iteration

    def end(self) -> None:
        for found in self._found.values():
            if len(found.losses) >= _LOOKS:
                self._tell(found)
        for ahead in self._ahead.values() if not self._next else ():
            if ahead.looks >= _LOOKS:
                self._tell_ahead(ahead)

    def _tell(self, found: _Place) -> None:
        facts, seen, losses = self.facts, found.seen, found.losses
        fell = losses[-1] < _FELL * losses[0]
        sure = fell and found.mixed
        made = found.labels
        evidence = [
            f"in {len(losses)} looks all labels that count are the tokens that {place(seen.line)} embeds, in "
            f"{seen.rows} rows of {seen.places} places",
            f"the loss went from {losses[0]:.3g} to {losses[-1]:.3g}",
        ]
        if made is not None and seen.made is not None:
            evidence.append(f"the labels are cut out at {place(made)}, the input at {place(seen.made)}")
        if not found.mixed:
            evidence.append("no place knows of another one: where words are to be given back out of codes, it is right")
        elif not fell:
            evidence.append("whether a place sees its own token decides it: where none does, these labels are right")
        facts.tell(
            Finding(
                0, "loss-input", "warning", 0.88 if sure else 0.45,
                f"{found.name} at {place(found.line)} is given the model's own input as its labels: they are not "
                "shifted by one (tokens[:, :-1] and tokens[:, 1:])",
                None, None, None, found.line, facts.cause(made or found.line), evidence,
                [f"b {place(found.line)}", "info node"],
            )
        )  # fmt: skip

    def _tell_ahead(self, found: _Ahead) -> None:
        facts, seen = self.facts, found.seen
        evidence = [
            f"in {found.looks} looks each label was the token two places behind what {place(seen.line)} embeds there, "
            f"in {seen.rows} rows",
            "no loss has the labels of the next place",
        ]
        if found.labels is not None and seen.made is not None:
            evidence.append(f"the labels are cut out at {place(found.labels)}, the input at {place(seen.made)}")
        twice = found.moved >= _TWICE
        why = "they are shifted twice, where the data is made and here, and" if twice else "unless that is meant,"
        facts.tell(
            Finding(
                0, "loss-input", "warning" if twice else "note", 0.85 if twice else 0.45,
                f"{found.name} at {place(found.line)} is given labels that are two places ahead of the model's input: "
                f"{why} the next token is never learnt",
                None, None, None, found.line, facts.cause(found.labels or found.line), evidence,
                [f"b {place(found.line)}", "info node"],
            )
        )  # fmt: skip


def _first_of(call: OperatorCall) -> int:
    """At which element a slice begins, of the only axis that it cuts; -1 where that is not known."""
    given = list(call.arguments or ())[1:]
    if plain(call.name) == "narrow":
        return given[1] if len(given) > 1 and type(given[1]) is int else -1
    index = given[0] if given else None
    parts = [each for each in (index if isinstance(index, tuple) else (index,)) if isinstance(each, slice)]
    cuts = [each for each in parts if each != slice(None)]
    if len(cuts) != 1 or cuts[0].step not in (None, 1):
        return -1
    return cuts[0].start if type(cuts[0].start) is int else 0 if cuts[0].start is None else -1


def _has_places(sizes: list[int], seen: _Seen) -> bool:
    """Whether a tensor has the places of each row apart: rows and places in its first three axes, or as one."""
    if not sizes:
        return False
    if sizes[0] == seen.rows * seen.places or sizes[:2] == [seen.places, seen.rows]:
        return True
    return sizes[0] % seen.rows == 0 and seen.places in sizes[1:3]
