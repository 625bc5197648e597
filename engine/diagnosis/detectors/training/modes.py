"""Modules that train in evaluation mode, or are evaluated in training mode."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import ModuleCall, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, mode_commands
from adbg.engine.diagnosis.detectors.training.source import assigning, dropped, dropping, once_before, place, uncalled
from adbg.engine.diagnosis.ledger import Optimizer, Seen
from adbg.engine.diagnosis.variables import frame_at, value_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_EVAL_STEPS = 3  # in evaluation mode, until it is told
_LISTEN = 2  # forwards of a module in evaluation mode whose operators are looked at


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
    evals: set[int] = field(default_factory=set)  # ``mode_number`` of its forwards since it was in evaluation mode
    left: list[str] = field(default_factory=list)  # parts in evaluation mode though the module says that it trains
    meant: bool = False  # all that evaluation changes in it is BatchNorm with frozen weights


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
    """A model with Dropout or BatchNorm that is trained in evaluation mode (eval() without a train() after it, or with
    an assignment to ``training``, which does not reach the parts), or evaluated in training mode; or one whose
    evaluation drops at random all the same: ``F.dropout(x)`` leaves ``training`` at its default, True, and
    ``scaled_dot_product_attention(dropout_p=0.1)`` knows no mode. As a note:
    BatchNorm with frozen weights whose statistics follow the new data, for it runs in training mode.

    Evidence: the mode of the outermost module at its forwards, and where it was set; of a dropout its arguments.
    Mistaken for: ``training=True`` that is written out (not told), a frozen backbone (only what steps is looked at),
    BatchNorm that is frozen, weights and statistics, in a model without Dropout (not told),
    Monte-Carlo dropout (not told where train() is called for it), forwards whose result is dropped, for statistics of
    BatchNorm (not told), fine-tuning without dropout after one eval() (a warning that says so), the flag of a model
    that was in evaluation from the start (not told), or of some parts of it, a generator that runs without gradients
    for its discriminator (not told: a backward follows).
    Cost: a function around the outermost module's call, 1 us; a look at each operator in two of its forwards in
    evaluation mode.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._trained: dict[int, _Trained] = {}
        self._looks: dict[tuple[int, str, int], _Looks] = {}
        self._told: dict[int, int] = {}  # key -> id of the finding that it is trained in evaluation mode
        self._backwards: dict[int, int] = collections.defaultdict(int)
        self._listened = collections.Counter[int]()  # forwards in evaluation whose operators were looked at
        self._listening: Seen | None = None
        self._dropping: set[SourceLine] = set()
        self._learning: set[int] = set()  # ids of parameters that stepped after a forward in training mode
        self._drop_results: dict[SourceLine | None, bool] = {}  # lines that call a module for no result
        self._thread = 0  # of the last backward

    def applied(self) -> bool:
        return bool(self._listened) or any(seen.regular for seen in self.ledger.modules.values())

    def forward(self, call: ModuleCall) -> None:
        key = id(call.module)
        seen = self.ledger.modules.get(key)
        if seen is not None and not call.training and seen.parameters & self._learning:
            self._listen(key, seen)
        if seen is None or not seen.regular:
            return
        if call.grad_mode:
            known = self._trained.setdefault(key, _Trained(set()))
            known.line, known.mode_line, known.number = call.line, call.mode_line, call.mode_number
            known.left = []
            if call.assigned and call.training and known.in_training:
                self._look_below(call, known)
            known.modes.add(call.training and not known.left)
            known.evals = known.evals | {call.mode_number} if False in known.modes else set()
            self._close(key)
        elif call.training and call.line is not None and not self._for_statistics(call):
            before = self._trained.get(key)
            looks = self._looks.setdefault((key, call.line.file, call.line.line), _Looks(call.line))
            looks.pending += 1
            looks.deliberate = looks.deliberate or (before is not None and before.number != call.mode_number)

    def _for_statistics(self, call: ModuleCall) -> bool:
        """A forward whose result is dropped evaluates nothing: it lets BatchNorm meet the data."""
        if call.line not in self._drop_results:
            frame = frame_at(call.line)
            self._drop_results[call.line] = (
                frame is not None and call.line is not None
                and any(value_of(each, frame) is call.module for each in dropped(call.line))
            )  # fmt: skip
        return self._drop_results[call.line]

    def _look_below(self, call: ModuleCall, known: _Trained) -> None:
        """eval() reached all parts of a module; assigning its flag reaches none of them."""
        for whole, line in call.assigned:
            known.left = self.ledger.left_behind(whole, call.module)
            if known.left:
                known.mode_line = line
                return

    # ---- dropout that knows no mode

    def _listen(self, key: int, seen: Seen) -> None:
        """Have the operators of this forward told."""
        if self._listened[key] < _LISTEN and get_ident() == self._thread:
            self._listened[key] += 1
            self._listening = seen
            self.needs |= Need.OPERATORS
            self.facts.other_needs = True

    def _deaf(self) -> None:
        if self._listening is not None:
            self._listening = None
            self.needs &= ~Need.OPERATORS
            self.facts.other_needs = True

    def module_end(self, call: ModuleCall) -> None:
        self._deaf()

    def operator(self, call: OperatorCall) -> None:
        seen = self._listening
        if seen is None or not call.lines or not ("dropout" in call.name or "attention" in call.name):
            return
        line = call.lines[0]
        if line in self._dropping or not _drops(call) or (text := dropping(line.file, line.line)) is None:
            return
        self._dropping.add(line)
        self.facts.tell(
            Finding(
                0, "wrong-mode", "warning", 0.85,
                f"{seen.kind} drops at random in evaluation too: `{text}` does not follow its mode "
                "(training=self.training is missing)",
                cause=self.facts.cause(line),
                evidence=[
                    f"{call.name} dropped elements in a forward of {seen.kind} with training=False",
                    "it was trained in training mode before",
                ],
                next=mode_commands(self, seen),
            )
        )  # fmt: skip

    def begins(self, running: Running) -> None:
        self._thread = get_ident()
        self._deaf()  # where a forward raised
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
        if optimizer.steps <= 2:
            for seen in self.ledger.modules.values():
                self._learning.update(seen.parameters if seen.training else ())
        ids: set[int] | None = None
        for key, known in self._trained.items():
            if not known.modes:
                continue
            if ids is None:
                frozen = set(event.frozen)
                ids = {id(tensor) for at, tensor in enumerate(event.tensors) if at not in frozen}
            trained = self.ledger.modules.get(key)
            if trained is None or not trained.parameters & ids:
                continue
            known.ever += 1
            known.in_training += True in known.modes
            known.row = 0 if True in known.modes else known.row + 1
            known.modes.clear()
            if known.row == 2:
                known.meant = self.ledger.only_frozen(trained)
            if known.row == _EVAL_STEPS and key not in self._told:
                self._tell_eval(key, trained, known)

    def end(self) -> None:
        for looks in self._looks.values() if self.facts.at_backward else ():
            looks.pending = 0  # as ``begins``
        for key, known in self._trained.items():
            seen = self.ledger.modules.get(key)
            if seen is None:
                continue
            if known.row >= 2 and (key not in self._told or known.row > _EVAL_STEPS):
                self._tell_eval(key, seen, known)  # told early: of how many steps it was in the end
            self._close(key)
            self._tell_looks(key, seen, known)
        for seen in self.ledger.modules.values():
            if seen.means and any(optimizer.steps >= 2 for optimizer in self.ledger.optimizers.values()):
                self._tell_statistics(seen)

    def _tell_eval(self, key: int, seen: Seen, known: _Trained) -> None:
        if known.meant:
            return
        told = self.facts.findings.get(self._told.get(key, 0))
        which = f"all {known.row} steps" if known.row == known.ever else f"the last {known.row} of {known.ever} steps"
        evidence = [f"{which} were made of forwards with training=False, in {place(known.line)}"]
        if known.in_training:
            evidence.append(f"the {known.in_training} steps before were made in training mode")
        if known.mode_line is not None:
            evidence.append(f"its mode was set last in {place(known.mode_line)}")
        line, why, once = known.mode_line or known.line, "eval() without a train() after it", False
        if known.left:
            evidence[0] = f"{which} were made of forwards with training=False in {self.facts.some(known.left)}"
            evidence.append("eval() sets the flag of each part, an assignment to .training that of one module alone")
            why = "its own training flag was assigned after eval(), which does not reach its parts: call train()"
            line = (assigning(known.mode_line, "training") if known.mode_line is not None else None) or line
        elif known.mode_line is not None and (forgotten := uncalled(known.mode_line.file, "train")) is not None:
            line, why = forgotten, "train is named but not called: its parentheses are missing"
        else:
            once = known.in_training > 0 and len(known.evals) == 1
            before = once_before(known.line, "train") if known.line is not None and known.in_training else None
            if before is not None and known.mode_line is not None:
                line, why = before, f"train() is called once, before the loop, and eval() at {place(line)} after that"
        if once:
            evidence.append("eval() was called once: right if it is to be trained without that from there on")
        finding = Finding(
            0, "wrong-mode", "warning", 0.6 if once else 0.85 if known.in_training else 0.8,
            f"{seen.kind} is trained in evaluation mode: its {seen.regular} does not act as in training ({why})",
            cause=self.facts.cause(line), evidence=evidence,
            next=mode_commands(self, seen, *known.left[:1]),
        )  # fmt: skip
        if told is not None:
            finding = replace(finding, id=told.id, iteration=told.iteration, cause=told.cause)
        self._told[key] = self.facts.tell(finding)

    def _tell_statistics(self, seen: Seen) -> None:
        """Of BatchNorm whose own weights take no gradient."""
        changed = [(path, before, now) for path, before, now in self.ledger.statistics(seen) if before != now]
        if not changed:
            return
        names = self.facts.some([path for path, _, _ in changed])
        self.facts.tell(
            Finding(
                0, "wrong-mode", "note", 0.45,
                f"{names} of {seen.kind}: the weights are frozen, the running statistics are not, for it runs in "
                "training mode; right if they are meant to follow the new data, else eval() of these layers",
                cause=self.facts.cause(seen.variable.line),
                evidence=[f"norm of the running mean of {path}: {before:.4g}, at the end {now:.4g}"
                          for path, before, now in changed[:3]],
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


def _drops(call: OperatorCall) -> bool:
    """Whether it left elements out: ``training`` of torch's function, ``is_test`` of Paddle's operator, or an attention
    with a probability."""
    if "attention" in call.name:
        given = call.keywords.get("dropout_p", call.arguments[4] if len(call.arguments) > 4 else 0)
        return isinstance(given, (int, float)) and given > 0
    if "training" in call.keywords:
        return call.keywords["training"] is True and call.keywords.get("p", 0.5) != 0
    if len(call.arguments) > 3:
        return call.arguments[3] is False and call.arguments[2] != 0
    return len(call.arguments) == 3 and call.arguments[2] is True
