"""A wrapper that averages gradients between ranks, and that nobody calls."""

from __future__ import annotations

import gc
import re
import sys
import types
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.ranks.facts import world_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.values import is_users
from adbg.engine.protocol.messages import Finding
from adbg.engine.python.user_code import source_line
from adbg.engine.types import SourceLine

_AT = (2, 3)  # iterations at whose steps it is looked at
_INNER = re.compile(r"\.module\b|\._layers\b")
_MOST = 64  # calls of modules whose stacks are looked at
_DEEP = 30  # frames


@detector("drifted-parameters")
class PassedBy(Detector):
    """A model is wrapped to have its gradients averaged between ranks (DistributedDataParallel, DataParallel), and what
    is trained is called past the wrapper (``model.module.loss(x)``): it prepares that in its own forward, which never
    runs, so that each rank trains a model of its own.

    Evidence: the parameters of the wrapper that got gradients, no call of the wrapper, how many collectives ran between
    two steps, the line that goes past it.
    Mistaken for: gradients that the program averages itself, or a wrapper that a compiled one calls unseen: where
    collectives run between two steps (their number is not known on Paddle), it is told only if a line is seen to go
    past the wrapper; a wrapper of another model, which got no gradients. A note: what the collectives carry is not
    looked at.
    Cost: nothing in a job of one process; else a look at all objects, once, 30 ms for a million.
    """

    needs = Need.STEPS | Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._line: SourceLine | None = None
        self._looks = _MOST  # for that line
        self._seen = 0
        self._begun: list[int | None] = []  # collectives, at the steps that are looked at

    def applied(self) -> bool:
        return bool(self._begun)

    def module_begin(self, call: ModuleCall) -> None:
        if call.outermost and call.grad_mode and self._looks > 0 and self._line is None:
            self._looks -= 1
            self._line = _past_wrapper()

    def optimizer(self, event: OptimizerEvent) -> None:
        backend = self.facts.backend
        if event.what != "step" or self.facts.iteration not in _AT or world_of(backend) < 2:
            return
        if self._seen == self.facts.iteration:  # another optimizer, in the same one
            return
        self._seen = self.facts.iteration
        self._begun.append(backend.collectives_begun())
        quiet = None in self._begun or len(set(self._begun)) == 1
        # A loss that is averaged to be shown is no gradient: the line that goes past the wrapper has to be known then.
        if len(self._begun) < len(_AT) or not (quiet or self._line) or backend.reducer():
            return  # a wrapper that reduces is among the modules that ran
        held = {id(each) for each in event.tensors}
        for wrapper in _alive(backend.reducer_kind):
            parameters = [each for each in wrapper.parameters() if id(each) in held]
            if any(backend.gradient_of(each) is not None for each in parameters):
                self._tell(type(wrapper).__name__)
                return

    def _tell(self, kind: str) -> None:
        facts, line = self.facts, self._line
        where = f" at {place(line)}" if line is not None else ""
        message = (
            f"{kind} averages nothing: its parameters are trained{where} past it, so that its own forward never runs, "
            "and each rank trains a model of its own; call the wrapper"
        )
        evidence = [f"its parameters have gradients at the step of iteration {facts.iteration}, and it was not called"]
        if None not in self._begun:
            count = int(self._begun[-1] or 0) - int(self._begun[0] or 0)
            ran = f"{count} ran" if count else "none ran"
            evidence.append(f"collectives of the default group between two steps: {ran}")
        if line is not None:
            evidence.append(f"{place(line)}: {facts.text_of(line)}")
        evidence.append("whether the program averages gradients by itself, in another group, decides it")
        facts.tell(
            Finding(
                0, "drifted-parameters", "note", 0.49, message, iteration=facts.iteration, forward=line,
                cause=facts.cause(line), evidence=evidence, next=["b backward-end", "rank diff grads"],
            )
        )  # fmt: skip


def _alive(kind: type | None) -> list[Any]:
    return [each for each in gc.get_objects() if issubclass(type(each), kind)] if kind is not None else []


def _past_wrapper() -> SourceLine | None:
    """The user's line on the stack that goes past a wrapper."""
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(_DEEP):
        if frame is None:
            return None
        line = source_line(frame) if is_users(frame) else None
        if line is not None and _INNER.search(Facts.text_of(line)):
            return line
        frame = frame.f_back
    return None
