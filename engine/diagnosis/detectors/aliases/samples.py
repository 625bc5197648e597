"""A data set whose own tensors are written to as samples are made: what one epoch does to them, the next has."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.graphs.silent import span_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import inside, scope_at
from adbg.engine.diagnosis.values import is_users
from adbg.engine.frames import local
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_GIVES = "__getitem__"
_DEEP = 40  # frames
_MOST = 4_000  # tensors of a data set that are compared
_SPANS = 20_000
_LEAST = 3  # samples
_STORES = frozenset({"copy", "set_value", "set_data"})  # as a cache is filled


@detector("silent-overwrite")
class SamplesWritten(Detector):
    """What ``__getitem__`` of a data set gives is a view of a tensor that the data set keeps, and an augmentation or a
    normalisation writes into it: the masks of all epochs pile up, or a sample is normalised once more each time.

    Evidence: the operator that wrote, the attribute in whose memory it did, how many samples it was; that one of them
    was written to again.
    Mistaken for: a cache that is filled (the attribute itself is written to, or a whole value is copied in: not told),
    fewer than 3 samples, copies (other memory), what stands under ``if i not in self.done:`` (not told until a sample
    is written to again), a scratch tensor. A note.
    Cost: in sampled iterations a look at the functions around each operator that writes; where one is ``__getitem__``,
    at the memory of the tensors of its object.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._spans: dict[SourceLine, set[Any]] = {}
        self._told: dict[str, tuple[SourceLine, int]] = {}  # by attribute, (the first line, the finding)
        self._again: set[str] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not any(line.function == _GIVES for line in call.lines):
            return
        line = line_of(call.lines)
        written = writes(call)
        if line is None or not written or plain(call.name) in _STORES:
            return
        found = self._attribute(written[0], line)
        if found is None or found in self._again or self._told.get(found, (line, 0))[0] != line:
            return
        spans, span = self._spans.setdefault(line, set()), span_of(written[0])
        again = span in spans
        if len(spans) < _SPANS:
            spans.add(span)
        if len(spans) >= _LEAST and (again or (found not in self._told and not any(map(_is_once, call.lines)))):
            self._tell(call, line, found, len(spans), again)

    def _attribute(self, value: Any, line: SourceLine) -> str | None:
        """ "SoundCache.spec": the attribute of the object whose ``__getitem__`` runs that has this memory, and is not
        the tensor itself. None where the line writes to it by its name (``self.uses[i] += 1``)."""
        where = {at for at, _ in self.facts.backend.storages(value)}
        frame: types.FrameType | None = sys._getframe(1)
        for _ in range(_DEEP):
            if frame is None:
                return None
            if frame.f_code.co_name == _GIVES and is_users(frame):
                owner = local(frame, "self")
                for name, each, inside in self._kept(owner):
                    other = inside or each is not value
                    if other and not where.isdisjoint(at for at, _ in self.facts.backend.storages(each)):
                        named = f"self.{name}" in self.facts.text_of(line)
                        return None if named else f"{type(owner).__name__}.{name}"
            frame = frame.f_back
        return None

    def _kept(self, owner: Any) -> Iterator[tuple[str, Any, bool]]:
        """(attribute, tensor, whether it is one of several that the attribute has)."""
        own = dict_of(owner)
        left = _MOST
        for name, value in list(own.items()) if type(own) is dict else ():
            values = value if type(value) in (list, tuple) else list(value.values()) if type(value) is dict else [value]
            for each in values:
                left -= 1
                if left < 0:
                    return
                if self.facts.backend.is_tensor(each):
                    yield name, each, each is not value
                elif type(value) is list and not isinstance(each, (tuple, list)):
                    break

    def _tell(self, call: OperatorCall, line: SourceLine, name: str, samples: int, again: bool) -> None:
        facts = self.facts
        if again:
            self._again.add(name)
        message = (
            f"{call.name} at {place(line)} writes into {name}, which the data set keeps: what is done to a sample "
            "stays, and is done once more in the next epoch; clone() it first"
        )
        evidence = [
            f"{call.name} at {place(line)} within {_GIVES}: {facts.text_of(line)}",
            f"what it writes to lies in the memory of {name}, at {samples} places",
        ]
        evidence.append("whether it is read again, and what is given is that memory, decides it")
        if again:
            evidence.append("a place that had been written to was written to again")
        severity, sure = "note", 0.49 if again else 0.4
        told = facts.tell(
            Finding(
                self._told.get(name, (line, 0))[1], "silent-overwrite", severity, sure, message,
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(line), evidence=evidence,
                next=[f"list {place(line)}"],
            )
        )  # fmt: skip
        self._told[name] = line, told


def _is_once(line: SourceLine) -> bool:
    """Whether it stands under a condition that something was not done yet."""
    scope = scope_at(line.file, line.line)
    for node in inside(scope) if scope is not None else ():
        if isinstance(node, ast.If) and node.body[0].lineno <= line.line <= (node.body[-1].end_lineno or 0):
            tests = ast.walk(node.test)
            if any(isinstance(each, (ast.Not, ast.NotIn, ast.Is)) for each in tests):
                return True
    return False


def dict_of(owner: Any) -> Any:
    """What an object keeps by itself; no code of its class runs."""
    with suppress(Exception):
        return object.__getattribute__(owner, "__dict__")
    return None
