"""The momentum of BatchNorm, which frameworks count from either end."""

from __future__ import annotations

import ast
import itertools
import sys
import weakref
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_MODULES, _LOOKS = 2000, 32
_STEPS = 8  # forwards in training mode
_HALF = 0.5
#: torch: running = (1 - momentum) * running + momentum * batch; Paddle, as Keras and TensorFlow, the other way round.
_RULES = {
    "torch": ("momentum", "running = (1 - momentum) * running + momentum * batch", "Keras, TensorFlow and Paddle"),
    "paddle": ("_momentum", "running = momentum * running + (1 - momentum) * batch", "torch"),
}


@detector("norm-momentum")
class NormMomentum(Detector):
    """BatchNorm whose running statistics keep less than half of what they were at each batch: its momentum is counted
    as another framework does (0.99 of Keras on torch, 0.1 of torch on Paddle). In evaluation it works with the
    statistics of the last batch, which may be a small one.

    Evidence: the momentum, the framework's own rule, and how much of the statistics is left after two batches.
    Mistaken for: statistics that are meant to be those of the last batch alone (momentum 1 on torch, 0 on Paddle: not
    told); layers that are trained for a few steps only, a momentum that a schedule changes, a BatchNorm of the
    program's own, whose rule is not known (not told). A note where nothing runs in evaluation mode.
    Cost: a walk through each module as it is called for the first time.
    """

    needs = Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._found: dict[tuple[str, float], list[tuple[str, weakref.ref[Any]]]] = {}  # by kind and momentum
        self._evaluated = False
        self._line: SourceLine | None = None
        self._files: dict[str, None] = {}  # of the program's, that make modules or call them
        self._forwards = 0

    def applied(self) -> bool:
        return bool(self._seen)

    def module_begin(self, call: ModuleCall) -> None:
        if not call.outermost:
            return
        known = self._seen.get(id(call.module))
        if known is not None and known() is call.module:
            self._evaluated = self._evaluated or not call.training
            self._forwards += call.training and call.grad_mode
            if self._found and call.training and not self._forwards & (self._forwards - 1):
                self._look_again()
            return
        if not (call.grad_mode and call.training):
            return
        if len(self._seen) < _LOOKS:
            self._seen[id(call.module)] = weakref.ref(call.module)
            self._walk(call)

    def _walk(self, call: ModuleCall) -> None:
        torch = self.facts.backend.name == "torch"
        attribute = _RULES[self.facts.backend.name][0]
        every: list[tuple[str, Any]] = []
        if call.line is not None:
            self._files[call.line.file] = None
        with suppress(Exception):  # a method of the program's
            named = call.module.named_modules() if torch else call.module.named_sublayers(include_self=True)
            every = list(itertools.islice(named, _MODULES))
        for path, module in every:
            file = getattr(sys.modules.get(type(module).__module__), "__file__", None) or ""
            if file and is_programs(file):
                self._files[file] = None
            momentum = vars(module).get(attribute)
            kind = type(module)
            own = kind.__module__.partition(".")[0] != self.facts.backend.name  # its momentum may mean anything
            if own or "BatchNorm" not in kind.__name__ or not isinstance(momentum, float):
                continue
            kept = 1 - momentum if torch else momentum
            if 0 < kept < _HALF:
                self._found.setdefault((kind.__name__, momentum), []).append((path, weakref.ref(module)))
                self._line = self._line or call.line

    def _look_again(self) -> None:
        """What a schedule changes is meant."""
        attribute = _RULES[self.facts.backend.name][0]
        for (kind, momentum), known in list(self._found.items()):
            parts = [part for _, ref in known if (part := ref()) is not None]
            if any(vars(part).get(attribute) != momentum for part in parts):
                del self._found[kind, momentum]

    def end(self) -> None:
        if self._forwards < _STEPS:
            return
        self._look_again()
        for (kind, momentum), known in self._found.items():
            self._tell(kind, momentum, [path for path, _ in known])

    def _tell(self, kind: str, momentum: float, paths: list[str]) -> None:
        facts = self.facts
        _, rule, others = _RULES[facts.backend.name]
        kept = 1 - momentum if facts.backend.name == "torch" else momentum
        line = next((found for each in self._files if (found := _made_at(each, momentum)) is not None), self._line)
        facts.tell(
            Finding(
                0, "norm-momentum", "warning" if self._evaluated else "note", 0.85 if self._evaluated else 0.45,
                f"{kind} with momentum={momentum:g} keeps {kept:.3g} of its running statistics at each batch: in "
                f"evaluation it works with those of the last one; {others} count from the other end: "
                f"momentum={1 - momentum:.3g} is meant",
                cause=facts.cause(line),
                evidence=[
                    f"{facts.backend.name}: {rule}",
                    f"of what it knew {kept**2:.3g} is left after two batches",
                    f"at {place(line)}: {facts.some(paths)}",
                ],
                next=["info params"],
            )
        )  # fmt: skip


def _made_at(file: str, momentum: float) -> SourceLine | None:
    """The line of the program that gives a layer of that kind its momentum: the number itself, or else the first that
    says momentum at all."""
    given: list[tuple[bool, int]] = []
    for node in nodes_of(file) if is_programs(file) else ():
        if not isinstance(node, ast.Call) or "BatchNorm" not in called_name(node):
            continue
        for each in node.keywords:
            if each.arg == "momentum":
                with suppress(ValueError, TypeError):
                    own = isinstance(each.value, ast.Constant) and float(each.value.value) == momentum  # type: ignore[arg-type]
                    given.append((not own, each.value.lineno))
    if not given:
        return None
    line = min(given)[1]
    return SourceLine(file, line, getattr(scope_at(file, line), "name", "<module>"))
