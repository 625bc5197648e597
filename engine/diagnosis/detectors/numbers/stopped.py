"""What a stop alone tells of NaN and infinities, where nobody watched the forward: the gradients at hand, what nodes
saved, and which nodes are known to have given numbers that are not finite."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.backends.base import BackwardCall
from adbg.engine.diagnosis.detectors.numbers import own_backward, saved, singular, values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.graph.forward_origin import reached_from
from adbg.engine.graph.index import index_of
from adbg.engine.graph.nonfinite import maker_of
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import SourceLine

_SCRIPT = "adbg diagnose --only nonfinite SCRIPT"
UNWATCHED = f"the forward was not watched: `{_SCRIPT}` watches it from the start, and names the operator"
_NEXT = [_SCRIPT]
Counts = Mapping[int, Collection[tuple[int, int]]]  # node -> (NaN, infinite) elements of each gradient that it gave


class AtStop:
    """Makes a finding of what lies at a stop; tells none."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._backend = facts.backend

    def judge(self, point: PausedPoint, wrap: Any) -> Finding | None:
        """What began at, or before, the node at hand; None where all there is finite.

        Args:
            wrap: makes a finding of a node that made numbers of finite gradients (``Origins.of_node``).
        """
        call, key = point.graph, point.key
        if not isinstance(call, BackwardCall):
            return None
        outs, ins = self._tensors(point.grad_outputs), self._tensors(point.grad_inputs)
        root = next((each for each in call.root_values() if any(values.bad(self._backend, each))), None)
        arriving = [each for each in outs if any(values.bad(self._backend, each))]
        leaving = [each for each in ins if any(values.bad(self._backend, each))]
        if root is not None:
            return self._of_forward(call, None, self._held("the loss", root))
        if key is None:
            return None
        state = point.state
        if arriving:
            return self._of_maker(call, key, state.spoilt if state is not None else {}, arriving)
        if not leaving:
            return None
        made = saved.made_here(self._backend, call, key, point.grad_outputs or (), point.grad_inputs or ())
        if made.spoilt:
            found = self._of_forward(call, reached_from(call, key), made.evidence[0])
            if found is not None:
                return found
        if not made.why:
            made.why = self._by_zero(call, key, made)
        found = wrap(call, key, made)
        return self._of_half(found, leaving) if made.overflow == "f16" else found

    def _tensors(self, each: Sequence[Any] | None) -> list[Any]:
        return [value for value in each or () if self._backend.is_tensor(value)]

    def _held(self, name: str, value: Any) -> str:
        nan, inf = values.bad(self._backend, value)
        return f"{name} {values.shape_text(self._backend, value)} has {values.counted(nan, inf)}"

    @staticmethod
    def _by_zero(call: BackwardCall, key: int, made: saved.Made) -> str:
        """0 times a finite number is 0: where the gradient that came in is exactly 0, the derivative was not finite.
        For what the node saved cannot be read on every framework."""
        op = plain_name(call.describe(key).name)
        if not made.masked or op not in singular.EDGES:
            return ""
        edge = singular.EDGES[op]
        return (
            f"the gradient that comes in is exactly 0 there, and 0 * inf is NaN: the derivative of {op} is not finite "
            f"at {edge}, and a mask after an operator does not keep its derivative away"
        )

    def _of_half(self, found: Finding, leaving: Sequence[Any]) -> Finding:
        """An overflow of float16 is what a loss scaler tries for, and whether it skips the step is not known yet."""
        found.evidence.append(
            "where a loss scaler skips this step it is no bug; `diagnose` at the next stop tells whether one did"
        )
        return replace(found, severity="warning", confidence=0.6)

    # ---- gradients that came in

    def _of_maker(self, call: BackwardCall, key: int, spoilt: Counts, arriving: Sequence[Any]) -> Finding | None:
        """Another node made them, before this stop: what it was given and saved is gone."""
        facts = self._facts
        here = facts.node(call, key)
        bad = [self._held(f"grad_outputs of {here[0].unique_name}", each) for each in arriving[:1]]
        maker = maker_of(call, key, [each for each in spoilt if each != key])
        if maker is None:
            if key in call.roots():
                return Finding(
                    id=0, kind="nonfinite", severity="error", confidence=0.9, node=here[0], backward=call.number,
                    message="backward was given a gradient that is not finite", forward=here[1],
                    cause=facts.cause(call.location), evidence=bad, next=[f"b {here[0].unique_name}"],
                )  # fmt: skip
            return self._unknown(call, here, "gradients that are not finite flow into this node", bad)
        at, forward = facts.node(call, maker)
        place = index_of(call).position.get(maker)
        evidence = [f"{at.unique_name} is #{place}, which ran before this stop", *bad]
        given = sum(nan + inf for nan, inf in spoilt[maker])
        what = f"{given:,} elements of what {at.unique_name} gave are not finite; what it was given is finite"
        evidence.insert(0, what)
        cause: SourceLine | None = forward
        why = ""
        if call.is_custom(maker):
            line, sure = own_backward.suspect(getattr(type(call.node(maker)), "_forward_cls", None))
            cause, why = line or forward, ": its own backward made it"
            why += f", in `{Facts.text_of(line)}`" if line is not None and sure else ""
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.75 if why else 0.6, node=at, backward=call.number,
            message=f"the backward of {_words(forward, at)} made NaN or infinity, before this stop{why}",
            forward=forward, cause=facts.cause(cause), evidence=evidence, next=[f"b {at.unique_name} after", *_NEXT],
        )  # fmt: skip

    # ---- the forward

    def _of_forward(self, call: BackwardCall, below: set[int] | None, told: str) -> Finding | None:
        """The first value in the graph that is not finite: what made it, or that this was not watched."""
        source = saved.first_in_forward(self._backend, call, below)
        if source is None:
            if below is not None:
                return None
            root = call.roots()[0] if call.roots() else None
            here = self._facts.node(call, root) if root is not None else (FoundAt(), None)
            return self._unknown(call, here, "the loss is not finite: an operator of the forward made it so", [told])
        at, forward = self._facts.node(call, source.key)
        evidence = [told, *source.evidence]
        words = _words(forward, at)
        if source.kind == "parameter":
            return self._of_parameter(call, source, forward, evidence)
        if source.kind == "operator" and source.why:
            message = f"the forward has its first NaN or infinity in {words}: {source.why}"
            confidence = 0.92 if source.sure else 0.85
        elif source.kind == "data":
            # What is computed of the data without gradients has no node: which line made it is not known here.
            return Finding(
                id=0, kind="nonfinite", severity="error", confidence=0.7, node=at, backward=call.number,
                message=f"what enters at {words} is not finite, and no node of the graph made it: the data, or what is "
                "computed of it without gradients",
                forward=forward, cause=None, evidence=[*evidence, UNWATCHED], next=[f"b {at.unique_name}", *_NEXT],
            )  # fmt: skip
        else:
            return self._unknown(
                call, (at, forward), f"the forward has NaN or infinity at {words}, or before", evidence
            )
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=confidence, message=message, node=at,
            backward=call.number, forward=forward, cause=self._facts.cause(forward), evidence=evidence,
            next=[f"b {at.unique_name}"],
        )  # fmt: skip

    def _of_parameter(
        self, call: BackwardCall, source: saved.Source, forward: SourceLine | None, evidence: list[str]
    ) -> Finding:
        name = source.name or "a leaf"
        here = FoundAt(parameter=name), forward
        if call.number > 1:
            what = f"{name} is not finite as this forward begins: an earlier step, or what it began with, made it so"
            return self._unknown(call, here, what, evidence)
        return Finding(
            id=0, kind="nonfinite", severity="error", confidence=0.85, node=here[0], backward=call.number,
            message=f"{name} is not finite before the first backward: it was initialised so", forward=forward,
            cause=None, evidence=evidence, next=_NEXT,
        )  # fmt: skip

    @staticmethod
    def _unknown(
        call: BackwardCall, here: tuple[FoundAt, SourceLine | None], what: str, evidence: Sequence[str]
    ) -> Finding:
        return Finding(
            id=0, kind="nonfinite", severity="note", confidence=0.45, node=here[0], backward=call.number,
            message=f"{what}; the forward was not watched", forward=here[1], cause=None,
            evidence=[*evidence, UNWATCHED], next=_NEXT,
        )  # fmt: skip


def _words(line: SourceLine | None, at: FoundAt) -> str:
    text = Facts.text_of(line) if line is not None else ""
    return f"`{text}` ({at.unique_name})" if text and len(text) < 90 else f"{at.unique_name or at.name}"


class BeforeWatch:
    """Numbers that were not finite already when diagnosis was switched on: what makes them is not told as if it had
    been seen."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked = False
        self.found: list[str] = []  # what was not finite then

    def ask(self) -> None:
        """As the first event comes of a run that was under way; of one that is watched from its start nothing is
        asked. A norm of each parameter and of its gradient, once."""
        if self._asked:
            return
        self._asked = True
        if self._facts.before:
            self.found = self._bad()

    def _bad(self) -> list[str]:
        backend = self._facts.backend
        found = []
        for name, parameter in backend.parameters():
            for what, value in ((name, parameter), (f"the gradient of {name}", backend.gradient_of(parameter))):
                nan, inf = values.bad(backend, value)
                if nan or inf:
                    found.append(f"{what} has {values.counted(nan, inf, backend.meta(value).numel)}")
        return found

    def still(self) -> bool:
        """Whether something is: an iteration that a loss scaler skipped leaves no trace."""
        if self.found and not self._bad():
            self.found = []
        return bool(self.found)

    def finding(self, number: int) -> Finding:
        names = self.found
        return Finding(
            id=0, kind="nonfinite", severity="note", confidence=0.45, node=None, backward=number, forward=None,
            message="numbers were not finite already when diagnosis was switched on; what made them so was not watched",
            cause=None, evidence=[*names[:4], *([f"and {len(names) - 4} more"] if len(names) > 4 else []), UNWATCHED],
            next=_NEXT,
        )  # fmt: skip
