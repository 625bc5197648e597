"""A backup of weights that is the weights: what is restored from it was changed along with them."""

from __future__ import annotations

import ast
import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.aliases.loaded import LOADS, Kept, keeping, what_is_loaded
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.graphs.silent import span_of
from adbg.engine.diagnosis.detectors.training.bits import hash_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at
from adbg.engine.frames import forget_stack
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_SHARES = frozenset({"detach", "data"})
_RESTORES = frozenset({"copy_", "set_value", "set_data"})
_LINES = 256
_MOST = 32  # weights whose values are compared, in one iteration


@dataclass(frozen=True, slots=True)
class _Alias:
    """Made of a weight at the moment ``when``, in the same memory. ``digest``: of its values then, if it was taken."""

    weight: weakref.ref[Any]
    when: int
    digest: int | None


@dataclass(frozen=True, slots=True)
class _Changed:
    when: int
    line: SourceLine | None
    how: str


@dataclass(slots=True)
class _Found:
    names: list[str]
    restored: SourceLine | None
    changed: _Changed
    digests: tuple[int | None, int | None]
    name: str


@detector("silent-overwrite")
class Restored(Detector):
    """Weights are kept by ``p.detach()``, ``p.data`` or ``state_dict()`` of torch, changed in place or by a step, and
    written back (``p.copy_(kept)``, ``set_value``, ``p.data = kept``, ``load_state_dict``): what was kept is the
    weight's own memory, so that writing it back does nothing.

    Evidence: the line that made what is kept, the line that changed the weight after it, hashes of its values then and
    as it is restored, and the same memory on both sides.
    Mistaken for: a copy (``clone()``, ``deepcopy``: other memory), weights that share memory and are loaded (not told:
    nothing changed since), what is made of a weight, worked on and written back (not told: it is no backup), ``.data``
    that was given another tensor meanwhile (not told).
    Cost: in sampled iterations a look at each operator's name, and hashes of up to 32 weights that are detached.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._clock = 0
        self._taken = self._last = 0
        self._seen = False
        self._aliases: Marks[_Alias] = Marks()
        self._changed: dict[int, _Changed] = {}  # by address
        self._moved: Marks[int] = Marks()  # weights that were given other memory, when
        self._stepped: _Changed | None = None
        self._steps = 0
        self._listed: dict[tuple[str, int], int] = {}  # where a state dict was asked for last, after how many steps
        self._found: dict[SourceLine, _Found] = {}
        self._told = False

    def applied(self) -> bool:
        return self._seen

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "loaded":
            self._load(event)
        elif event.what == "listed" and event.line is not None:
            at = event.line.file, event.line.line
            if at in self._listed or len(self._listed) < _LINES:
                self._listed[at] = self._steps
        if event.what == "stepped":
            self._clock += 1
            self._stepped = _Changed(self._clock, event.line, f"{type(event.optimizer).__name__}.step()")
            self._steps += 1

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or not call.operands:
            return
        self._clock += 1
        if self.facts.iteration > self._last + 1:  # what happened meanwhile was not seen
            self._aliases, self._changed = Marks(), {}
        self._last = self.facts.iteration
        if call.name in _SHARES:
            if call.results and self._is_weight(call.operands[0]):
                self._share(call)
            return
        if call.name in _RESTORES and len(call.operands) == 2:
            self._restore(call)
        for each in writes(call):
            alias = self._aliases.of(each)
            if alias is not None or self._is_weight(each):
                self._aliases.drop(each)
                what = _Changed(self._clock, line_of(call.lines), call.name)
                self._changed.update(dict.fromkeys(self._where(each), what))
            if call.name == "set_data":
                self._moved.put(each, self._clock, call.name, line_of(call.lines))

    def iteration_end(self) -> None:
        self._taken = 0
        for line, found in self._found.items():
            self._told = True
            self._tell(line, found)
        self._found = {}

    def _is_weight(self, value: Any) -> bool:
        backend = self.facts.backend
        return backend.meta(value).requires_grad and not backend.has_graph(value)

    def _where(self, value: Any) -> frozenset[int]:
        return _where(self.facts.backend, value)

    def _share(self, call: OperatorCall) -> None:
        self._seen = True
        weight, result = call.operands[0], call.results[0]
        if result is weight:
            return
        self._taken += 1
        digest = hash_of(self.facts, weight) if self._taken <= _MOST else None
        self._aliases.put(result, _Alias(weakref.ref(weight), self._clock, digest), call.name, line_of(call.lines))

    def _restore(self, call: OperatorCall) -> None:
        target, source = call.operands
        alias = self._aliases.of(source)
        if alias is None or alias.line is None or target is source:
            return
        weight, where = alias.what.weight(), self._where(source)
        if weight is None or not where or where != self._where(target) or span_of(source) != span_of(target):
            return
        moved = self._moved.of(weight)
        if (moved is not None and moved.what > alias.what.when) or (call.name == "set_data" and target is not weight):
            return
        every = [self._changed[at] for at in where if at in self._changed]
        changed = max(every, key=lambda one: one.when, default=None)
        now = hash_of(self.facts, source) if alias.what.digest is not None else None
        if now is not None and self._stepped is not None and (changed is None or changed.when < self._stepped.when):
            changed = self._stepped
        if changed is None or changed.when < alias.what.when or (now is not None and now == alias.what.digest):
            return
        self._keep(alias, weight, call, changed, now)

    # ---- a state dict, at whatever time

    def _load(self, event: OptimizerEvent) -> None:
        """All that a module is given is its own memory, and a step came before: nothing is loaded."""
        if self._told or self._found or self._stepped is None or not event.given or event.line is None:
            return
        pairs = [(own, value) for own, value in zip(event.tensors, event.given) if value is not None]
        backend = self.facts.backend
        if not pairs or not all(backend.is_tensor(one) and in_one_memory(backend, own, one) for own, one in pairs):
            return
        self._seen = True
        loaded = what_is_loaded(event.line)
        forget_stack()
        kept = self._before_a_step(loaded.kept() if loaded is not None else [])
        kept = kept or self._before_a_step(_kept_at(event.line) if loaded is None or not loaded.kept() else [])
        if kept is None:
            return
        self._told = True
        names = [self.facts.title_of(own) or "a weight" for own, _ in pairs]
        facts, step = self.facts, self._stepped
        facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.9,
                f"{place(event.line)} restores {facts.some(names)} from its own memory, which does nothing: what "
                f"{place(kept)} keeps are the weights themselves, and {step.how} at {place(step.line)} has changed "
                "them since; keep a copy (copy.deepcopy, or clone() of each)",
                iteration=facts.iteration, forward=event.line, cause=facts.cause(kept),
                evidence=[
                    f"{place(kept)} keeps it: {facts.text_of(kept)}",
                    f"{place(event.line)} loads it: {facts.text_of(event.line)}; all {len(pairs)} tensors in it lie in "
                    "the memory of the parameters that they are loaded into",
                ],
                next=[f"b {place(kept)}", f"b {place(event.line)}"],
            )
        )  # fmt: skip

    def _before_a_step(self, kept: list[Kept]) -> SourceLine | None:
        """Of lines that may have asked for what is loaded the one that did last, if a step came since."""
        asked = [
            (when, each.line) for each in kept for at in range(each.line.line, each.last + 1)
            if (when := self._listed.get((each.line.file, at))) is not None
        ]  # fmt: skip
        when, line = max(asked, key=lambda each: each[0], default=(self._steps, None))
        return line if when < self._steps else None

    def _keep(self, alias: Marked[_Alias], weight: Any, call: OperatorCall, changed: _Changed, now: int | None) -> None:
        if alias.line is not None:
            digests = (alias.what.digest, now)
            known = self._found.setdefault(alias.line, _Found([], line_of(call.lines), changed, digests, call.name))
            known.names.append(self.facts.title_of(weight) or "a weight")

    def _tell(self, line: SourceLine, found: _Found) -> None:
        facts, changed = self.facts, found.changed
        names = facts.some(found.names)
        message = (
            f"{place(found.restored)} restores {names} from its own memory, which does nothing: what {place(line)} "
            f"keeps shares the memory, and {changed.how} at {place(changed.line)} has changed it, too; keep a clone()"
        )
        before, now = found.digests
        evidence = [
            f"{place(line)} keeps it: {facts.text_of(line)}",
            f"{found.name} at {place(found.restored)} takes and writes the same memory, of {len(set(found.names))} "
            f"weight{'s' if len(set(found.names)) > 1 else ''}",
        ]
        if before is not None and now is not None:
            evidence.append(f"hash of its values: {before:08x} as it was kept, {now:08x} as it is restored")
        facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.92, message, iteration=facts.iteration, forward=found.restored,
                cause=facts.cause(line), evidence=evidence, next=[f"b {place(line)}", f"b {place(found.restored)}"],
            )
        )  # fmt: skip


def in_one_memory(backend: Backend, one: Any, other: Any) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    where = _where(backend, one)
    return one is other or (bool(where) and where == _where(backend, other) and span_of(one) == span_of(other))


def _where(backend: Backend, value: Any) -> frozenset[int]:
    return frozenset(at for at, _ in backend.storages(value))


def _kept_at(load: SourceLine) -> list[Kept]:
    """The lines of the file that give the attribute, or the variable of another function, that a line loads a
    ``state_dict()``."""
    found: list[Kept] = []
    nodes = nodes_of(load.file)
    for call in nodes:
        here = isinstance(call, ast.Call) and call.lineno <= load.line <= (call.end_lineno or 0)
        if not here or not isinstance(call, ast.Call) or called_name(call) not in LOADS:
            continue
        given = [*call.args, *(each.value for each in call.keywords)][:1]
        name = _last_name(given[0]) if given and isinstance(given[0], (ast.Name, ast.Attribute)) else ""
        for each in nodes if name else ():
            if isinstance(each, ast.Assign) and any(_last_name(target) == name for target in each.targets):
                function = getattr(scope_at(load.file, each.lineno), "name", "<module>")
                kept = keeping(load.file, each, function)
                found += [kept] if kept is not None else []
    return found


def _last_name(expression: ast.expr) -> str:
    return ast.unparse(expression).rpartition(".")[2]
