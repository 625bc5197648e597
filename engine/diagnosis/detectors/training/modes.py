"""Modules that train in evaluation mode, or are evaluated in training mode."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import ModuleCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, mode_commands
from adbg.engine.diagnosis.detectors.training.source import place, uncalled
from adbg.engine.diagnosis.ledger import Optimizer, Seen
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts


@dataclass(slots=True)
class _Trained:
    """An outermost module, since its last step. ``modes``: training flags of its forwards that record gradients."""

    modes: set[bool]
    line: SourceLine | None = None
    mode_line: SourceLine | None = None
    row: int = 0  # steps in a row that it took in evaluation mode
    ever: int = 0  # steps that it took at all
    in_training: int = 0  # of these in training mode
    number: int = 0  # ``ModuleCall.mode_number`` as it was trained last


@dataclass(slots=True)
class _Looks:
    """Forwards without gradients of a module in training mode, from one line."""

    line: SourceLine | None
    pending: int = 0  # since the last backward
    groups: int = 0  # runs of them that no backward followed before the next training forward
    calls: int = 0
    deliberate: bool = False  # train() or eval() was called since it was trained


@detector("wrong-mode")
class WrongMode(LoopDetector):
    """A model with Dropout or BatchNorm that is trained in evaluation mode (eval() without a train() behind it), or
    evaluated in training mode.

    Evidence: the mode of the outermost module at its forwards, and where it was set.
    Mistaken for: a frozen backbone (only what steps is looked at), Monte-Carlo dropout (not told where train() is
    called for it), a generator that runs without gradients for its discriminator (not told: a backward follows).
    Cost: a function around the outermost module's call, 1 us.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._trained: dict[int, _Trained] = {}
        self._looks: dict[tuple[int, str, int], _Looks] = {}
        self._told: set[int] = set()
        self._backwards: dict[int, int] = collections.defaultdict(int)

    def applied(self) -> bool:
        return any(seen.regular for seen in self.ledger.modules.values())

    def forward(self, call: ModuleCall) -> None:
        key = id(call.module)
        seen = self.ledger.modules.get(key)
        if seen is None or not seen.regular:
            return
        if call.grad_mode:
            known = self._trained.setdefault(key, _Trained(set()))
            known.modes.add(call.training)
            known.line, known.mode_line, known.number = call.line, call.mode_line, call.mode_number
            self._close(key)
        elif call.training and call.line is not None:
            before = self._trained.get(key)
            looks = self._looks.setdefault((key, call.line.file, call.line.line), _Looks(call.line))
            looks.pending += 1
            looks.deliberate = looks.deliberate or (before is not None and before.number != call.mode_number)

    def begins(self, running: Running) -> None:
        for looks in self._looks.values():
            looks.pending = 0  # made for this backward, as far as one can tell

    def _close(self, key: int) -> None:
        """A training forward, or the end: what was looked at before was no part of a training step."""
        for (module, _, _), looks in self._looks.items():
            if module == key and looks.pending:
                looks.groups += 1
                looks.calls += looks.pending
                looks.pending = 0

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what != "stepped" or optimizer is None:
            return
        ids: set[int] | None = None
        for key, known in self._trained.items():
            if not known.modes:
                continue
            if ids is None:
                frozen = set(event.frozen)
                ids = {id(tensor) for at, tensor in enumerate(event.tensors) if at not in frozen}
            seen = self.ledger.modules.get(key)
            if seen is None or not seen.parameters & ids:
                continue
            known.ever += 1
            known.in_training += True in known.modes
            known.row = 0 if True in known.modes else known.row + 1
            known.modes.clear()
            if known.row == 3 and key not in self._told:
                self._tell_eval(key, seen, known)

    def end(self) -> None:
        for key, known in self._trained.items():
            seen = self.ledger.modules.get(key)
            if seen is None:
                continue
            if known.row >= 2 and key not in self._told:
                self._tell_eval(key, seen, known)
            self._close(key)
            self._tell_looks(key, seen, known)

    def _tell_eval(self, key: int, seen: Seen, known: _Trained) -> None:
        self._told.add(key)
        evidence = [f"{known.row} steps in a row were made of forwards with training=False, in {place(known.line)}"]
        if known.in_training:
            evidence.append(f"the {known.in_training} steps before were made in training mode")
        if known.mode_line is not None:
            evidence.append(f"its mode was set last in {place(known.mode_line)}")
        forgotten = uncalled(known.mode_line.file, "train") if known.mode_line is not None else None
        why = "train is named but not called: its parentheses are missing" if forgotten else "eval() without a train() behind it"
        self.facts.tell(
            Finding(
                0, "wrong-mode", "warning", 0.85 if known.in_training else 0.8,
                f"{seen.kind} is trained in evaluation mode: its {seen.regular} does not act as in training "
                f"({why})",
                cause=self.facts.cause(forgotten or known.mode_line or known.line), evidence=evidence,
                next=mode_commands(self, seen),
            )
        )  # fmt: skip

    def _tell_looks(self, key: int, seen: Seen, known: _Trained) -> None:
        if known.in_training < 2:
            return
        for (module, _, _), looks in self._looks.items():
            if module != key or not looks.groups or looks.deliberate or looks.line == known.line:
                continue
            forgotten = uncalled(looks.line.file, "eval") if looks.line is not None else None
            why = "eval is named but not called: its parentheses are missing" if forgotten else "no eval() before it"
            seldom = looks.groups * 2 <= known.ever
            self.facts.tell(
                Finding(
                    0, "wrong-mode", "warning" if seldom else "note", 0.75 if seldom else 0.45,
                    f"{seen.kind} is evaluated in training mode: its {seen.regular} acts as in training "
                    f"({why})",
                    cause=self.facts.cause(forgotten or looks.line),
                    evidence=[
                        f"{looks.calls} forwards without gradients and with training=True in {place(looks.line)}, "
                        f"beside {known.ever} steps",
                    ],
                    next=mode_commands(self, seen),
                )
            )  # fmt: skip
            return
