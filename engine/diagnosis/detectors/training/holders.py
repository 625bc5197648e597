"""Which tensors the optimizers hold, and whether they are those that are trained."""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.leaves import Leaf, in_container, made_of, tensors_of
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, norms
from adbg.engine.diagnosis.detectors.training.source import place, replacing, uncalled
from adbg.engine.diagnosis.ledger import Held, Optimizer
from adbg.engine.diagnosis.source import PARAMETERS, argument_line
from adbg.engine.diagnosis.variables import variable_of
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_EARLY = 6  # iterations of the loop after which it is told; taken back where the end shows otherwise
_MOST_NODES = 20_000  # a larger graph is not searched for leaves


@detector("no-step", "no-backward")
class NoStep(LoopDetector):
    """An optimizer that never steps, though backward gives its parameters gradients in every iteration; or one that
    steps though no backward was ever called.

    Evidence: how many backwards there were, and that the weights are what they were at the first; how many steps there
    were, and that none of what the optimizer holds had a gradient at any.
    Mistaken for: a program that updates its weights by hand, or only wants gradients: told only where an optimizer was
    made for the very parameters and nothing else changed them. A gradient scaler that left all steps out, for their
    gradients were not finite. Gradients that are assigned (evolution strategies).
    Cost: one norm of each weight at the first backward and at the end.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._first: dict[int, float] = {}  # id of a tensor -> norm of the weight
        self._failed = False
        self._empty: dict[int, int] = {}  # steps at which nothing that an optimizer holds had a gradient

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "step" and optimizer is not None and not self.facts.iteration:
            bare = all(held.at_step is None for held in optimizer.held)
            self._empty[optimizer.key] = self._empty.get(optimizer.key, 0) + 1 if bare else -(1 << 40)

    def begins(self, running: Running) -> None:
        if self.ledger.backwards == 1:
            for optimizer in self.ledger.optimizers.values():
                for held in optimizer.held:
                    if (tensor := held.ref()) is not None:
                        self._first[id(tensor)] = self.facts.backend.norm(tensor)

    def uncaught(self, error: BaseException) -> None:
        self._failed = True

    def end(self) -> None:
        if self._failed:
            return
        if not self.facts.iteration:
            self._tell_no_backward()
        if self.ledger.backwards < 3:
            return
        stepped = {id(held.ref()) for each in self.ledger.optimizers.values() if each.steps for held in each.held}
        for optimizer in self.ledger.optimizers.values():
            given = [held for held in optimizer.held if held.total >= 3 and held.ref() is not None]
            if not all(math.isfinite(held.ended or 0.0) for held in given):
                continue  # a gradient scaler leaves its steps out
            ids = {id(held.ref()) for held in given}
            if not optimizer.steps and given and not ids & stepped and not self._changed(given):
                self._tell(optimizer, given)

    def _tell_no_backward(self) -> None:
        for key, steps in self._empty.items():
            optimizer = self.ledger.optimizers.get(key)
            if steps < 3 or optimizer is None or optimizer.step_line is None:
                continue
            forgotten = uncalled(optimizer.step_line.file, "backward")
            why = "it is named but not called: its parentheses are missing" if forgotten else "backward() is missing"
            names = self.facts.some([held.name for held in optimizer.held])
            self.facts.tell(
                Finding(
                    0, "no-backward", "error", 0.92 if forgotten else 0.85,
                    f"{optimizer.kind} steps and no backward was ever called ({why}): {names} are not trained",
                    cause=self.facts.cause(forgotten or optimizer.step_line),
                    evidence=[f"{steps} steps in {place(optimizer.step_line)}, none of its "
                              f"{len(optimizer.held)} tensors had a gradient at any"],
                )
            )  # fmt: skip

    def _changed(self, given: list[Held]) -> bool:
        norm = self.facts.backend.norm
        return any(norm(held.ref()) != self._first.get(id(held.ref()), norm(held.ref())) for held in given)

    def _tell(self, optimizer: Optimizer, given: list[Held]) -> None:
        line = self.ledger.backward_line
        forgotten = uncalled(line.file, "step") if line is not None else None
        names = self.facts.some([held.name for held in given])
        if forgotten is not None:
            text = f"{optimizer.kind} never steps: step is named but not called (its parentheses are missing)"
        else:
            text = f"{optimizer.kind} never steps: step() is not called after backward"
        evidence = [f"{self.ledger.backwards} backwards gave gradients to {names}, and none of them changed"]
        scheduled = sum(moment.what == "scheduled" for moment in self.ledger.moments)
        if scheduled:
            evidence.append(f"a learning-rate scheduler stepped at least {scheduled} times")
        if optimizer.made is not None:
            evidence.append(f"the optimizer was made in {place(optimizer.made)}")
        self.facts.tell(
            Finding(
                0, "no-step", "error", 0.92, f"{text}; {names} are not trained",
                cause=self.facts.cause(forgotten or line), evidence=evidence, next=["b backward-end"],
            )
        )  # fmt: skip


@detector("not-optimized", "stale-parameters")
class NotOptimized(LoopDetector):
    """Parameters that get a gradient in every iteration and that no optimizer holds: they were forgotten, replaced
    after the optimizer was made, or lie in a plain list that the module does not know of.

    Evidence: their gradients in several iterations, while the optimizer steps others of the same backward.
    Told after six iterations, and taken back where an optimizer holds them later.
    Mistaken for: a part that is frozen by not giving it to the optimizer (where all of it lies upstream of what is
    optimized it is a note), inputs whose gradient is wanted, weights that are updated by hand (both not told).
    Cost: the leaves of the graph, in sampled iterations.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._leaves: dict[int, Leaf] = {}
        self._found: list[Finding] = []  # what would be told if the program ended now
        self._told: dict[str, int] = {}  # kind -> id of what was told early
        self._old: frozenset[int] = frozenset()  # ids of stale tensors of that
        self._shown: list[Leaf] = []  # whom it is about
        self._stale_held: list[Held] = []  # and what the optimizer holds in its place
        self._until = 4  # iteration up to which every backward is looked at

    def begins(self, running: Running) -> None:
        for leaf in self._leaves.values():
            if (tensor := leaf.ref()) is not None and self.ledger.close and leaf.norms:
                gradient = self.facts.backend.gradient_of(tensor)
                leaf.cleared = leaf.cleared or gradient is None or not self.facts.backend.norm(gradient)

    def ends(self, running: Running) -> None:
        call = running.call
        iteration = self.facts.iteration
        changed = self.ledger.close and iteration <= self.ledger.until
        sampled = self.facts.sampled or changed or iteration <= self._until
        if not sampled or call.truncated or call.count() > _MOST_NODES:
            return
        owned = {id(held.ref()) for each in self.ledger.optimizers.values() for held in each.held}
        stepping = {id(held.ref()) for each in self.ledger.optimizers.values() if each.steps for held in each.held}
        order = list(tensors_of(call))
        places = [at for at, tensor in enumerate(order) if id(tensor) in owned]
        for at, tensor in enumerate(order):
            if id(tensor) not in owned:
                leaf = self._leaf(tensor, call.location)
                if leaf is not None:
                    leaf.seen.add(iteration)
                    leaf.norms.append(self.facts.backend.norm(self.facts.backend.gradient_of(tensor)))
                    del leaf.norms[:-6]
                    leaf.last = bool(places) and at > places[-1]
                    leaf.with_steps = leaf.with_steps or any(id(order[each]) in stepping for each in places)

    def _leaf(self, tensor: Any, line: SourceLine | None) -> Leaf | None:
        known = self._leaves.get(id(tensor))
        if known is None or known.ref() is not tensor:
            if len(self._leaves) >= 1000:
                return None
            norm = self.facts.backend.norm(tensor)
            name, shape = self.facts.name_of(tensor), self.facts.shape(tensor)
            title = self.ledger.title(tensor, name) if name else ""
            # The model may be another one from here on (fine-tuning after a pre-training): three looks are wanted.
            self._until = max(self._until, self.facts.iteration + 2)
            self.ledger.follow(2)  # it may be gone, or replaced again, by the next one that is sampled
            called = "" if name else variable_of(tensor, line).name
            trained = "Param" in type(tensor).__name__
            known = Leaf(weakref.ref(tensor), title, shape, norm, trained, path=name, called=called)
            self._leaves[id(tensor)] = known
        return known

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        """An optimizer steps, and nothing that it holds has a gradient: it should hold the leaves that have."""
        if event.what != "stepped" or optimizer is None or not self.ledger.close:
            return
        if not any(held.at_step for held in optimizer.held):
            for leaf in self._leaves.values():
                leaf.with_steps = leaf.with_steps or self.facts.iteration in leaf.seen

    # ---- judging

    def iteration_end(self) -> None:
        """Judge while the tensors live: as ``main()`` returns they die, and the end of the program knows no holder."""
        if not self.ledger.close or self.facts.iteration < 3 or not self._alive():
            return
        self._judge()
        for kind in self._told.keys() - {finding.kind for finding in self._found}:
            self.facts.take_back(self._told.pop(kind))
        certain = any(finding.severity != "note" for finding in self._found)
        if self.facts.rounds.count >= _EARLY and certain and not self._told:
            others = {id(tensor) for _, tensor in self.facts.backend.optimized()}  # also by one that never stepped yet
            if not any(id(leaf.ref()) in others for leaf in self._shown):
                self._tell_all(early=True)

    def end(self) -> None:
        if self._alive():
            self._judge()
        self._tell_all()
        for kind in self._told.keys() - {finding.kind for finding in self._found}:
            self.facts.take_back(self._told[kind])

    def _alive(self) -> bool:
        shown = [*(leaf.ref for leaf in self._shown), *(held.ref for held in self._stale_held)]
        return all(ref() is not None for ref in shown)

    def _tell_all(self, early: bool = False) -> None:
        """What was told is told again with what the run showed since. A note waits for the end."""
        for finding in self._found:
            known = self.facts.findings.get(self._told.get(finding.kind, 0))
            if known is not None:
                finding = replace(finding, id=known.id, iteration=known.iteration)
            if early and finding.severity == "note":
                continue
            if finding.kind == "not-optimized" and not early:
                finding = replace(finding, victim_of=self._frozen())
            told = self._told[finding.kind] = self.facts.tell(finding)
            if finding.kind == "stale-parameters":
                self._fold(told)

    def _frozen(self) -> int | None:
        """The finding that all that an optimizer holds is frozen: a flag set the wrong way round freezes what is held,
        and has what is not held take gradients."""
        for each in self.facts.findings.values():
            if each.kind == "frozen-in-optimizer" and each.severity == "error":
                return each.id
        return None

    def _judge(self) -> None:
        self._found.clear()
        self._old, self._shown, self._stale_held = frozenset(), [], []
        stepping = [each for each in self.ledger.optimizers.values() if each.steps >= 2]
        if not stepping:
            return
        owned = {id(held.ref()) for each in self.ledger.optimizers.values() for held in each.held}
        found = [leaf for leaf in self._leaves.values() if self._holds(leaf, owned)]
        if not found:
            return
        optimizer = max(stepping, key=lambda each: each.steps)
        # One of an earlier stage, which held the old ones too, has not stepped since these are there.
        later = [each for each in stepping if each.stepped > min(map(min, (leaf.seen for leaf in found)))]
        stale = [held for each in later for held in self._stale(each, found)]
        if stale:
            self._shown, self._stale_held = found, stale
            self._tell_stale(later, stale, found)
            return
        known = self._known()
        loose = [leaf for leaf in found if (id(leaf.ref()) not in known if known else not leaf.name)]
        shown = loose or found
        if known and not any(leaf.trained for leaf in shown):
            return  # inputs whose gradient is wanted
        if not any(leaf.with_steps for leaf in shown) and not loose:
            return
        self._shown = shown
        self._tell(optimizer, shown, bool(loose))

    def _known(self) -> set[int]:
        """Ids of the parameters of the modules that ran outermost."""
        found: set[int] = set()
        for seen in self.ledger.modules.values():
            root = seen.ref()
            with suppress(Exception):  # a property of the user's that raises
                found.update(map(id, root.parameters() if root is not None else ()))
        return found

    def _holds(self, leaf: Leaf, owned: set[int]) -> bool:
        tensor = leaf.ref()
        if tensor is None or len(leaf.seen) < 3 or id(tensor) in owned or not any(leaf.norms):
            return False
        if self.facts.backend.norm(tensor) != leaf.weight:
            return False  # somebody updates it
        return not (not leaf.name and leaf.cleared)

    def _stale(self, optimizer: Optimizer, found: list[Leaf]) -> list[Held]:
        """What it holds, never got a gradient, and is in no module any more."""
        names = {id(value) for _, value in self.facts.backend.parameters()}
        shapes = {leaf.shape for leaf in found}
        loose = [
            held for held in optimizer.held
            if (not held.total or not held.at_step) and not held.frozen and id(held.ref()) not in names
            and (tensor := held.ref()) is not None and not self.facts.backend.has_graph(tensor)  # non-leaf-gradient
        ]  # fmt: skip
        # A layer is often replaced by one with another number of outputs; then all of them have to be found again.
        if sorted(len(held.shape) for held in loose) == sorted(len(leaf.shape) for leaf in found):
            return loose
        return [held for held in loose if held.shape in shapes]

    def _tell_stale(self, optimizers: list[Optimizer], stale: list[Held], found: list[Leaf]) -> None:
        optimizer = next(each for each in optimizers if any(held in each.held for held in stale))
        shapes = {held.shape for held in stale}
        leaves = found if len(found) == len(stale) else [leaf for leaf in found if leaf.shape in shapes]
        names = self.facts.some([leaf.words for leaf in leaves])
        kind = optimizer.kind
        old = [held.name if held.name.startswith(kind) else f"{held.name} of {kind}" for held in stale[:3]]
        evidence = [f"{each} got no gradient in these iterations" for each in old]
        evidence += [
            f"{leaf.words} got one in {len(leaf.seen)} iterations (norm {norms(leaf.norms)}), and "
            "no optimizer holds it" for leaf in leaves[:3]
        ]  # fmt: skip
        self._old = frozenset(id(held.ref()) for held in stale)
        line, when, advice = optimizer.made, "was made", ""
        paths = [leaf.path for leaf in leaves]
        replaced = replacing(self._files(optimizer, leaves), paths, optimizer.variable.short)
        late = replaced is not None and replaced.function != "__init__"  # else it ran before the optimizer was made
        if late and replaced is not None and line is not None and replaced.function != line.function:
            line, advice = replaced, f"; make it after {place(replaced)}, which replaced them"
        if all(held.total for held in stale):  # no other order helps: the optimizer was right until then
            when = "had trained the ones before"
            if replaced is not None:
                line, advice = replaced, f"; give it the new ones, or make it anew, after {place(replaced)}"
        self._found.append(
            Finding(
                0, "stale-parameters", "error", 0.93,
                f"{names} were replaced after {optimizer.kind} {when}: it steps the old ones, which nothing uses"
                f"{advice}",
                cause=self.facts.cause(line), evidence=evidence, next=_show(leaves),
            )
        )  # fmt: skip

    def _files(self, optimizer: Optimizer, leaves: list[Leaf]) -> set[str]:
        """Where to look for what replaced them: those of the optimizer and of the modules that hold them."""
        found = {line.file for line in (optimizer.made, optimizer.step_line) if line is not None}
        for leaf in leaves:
            whole = self.ledger.owner(leaf.ref())
            made = getattr(type(whole.ref()), "__init__", None) if whole is not None else None
            code = getattr(made, "__code__", None)
            if code is not None and not is_library(code.co_filename):
                found.add(os.path.abspath(code.co_filename))
        return found

    def _fold(self, told: int) -> None:
        """The old ones get no gradient: a consequence, also where it is told later."""
        self.facts.replaced = dict.fromkeys(self._old, told)
        for each in list(self.facts.findings.values()):
            if each.kind == "no-gradient" and (about := self.facts.about.get(each.id)) and about <= self._old:
                self.facts.tell(replace(each, victim_of=told))

    def _tell(self, optimizer: Optimizer, found: list[Leaf], loose: bool) -> None:
        names = self.facts.some([leaf.words for leaf in found])
        evidence = [
            f"{leaf.words}: gradient of norm {norms(leaf.norms)} in the iterations looked at, weights "
            "unchanged" for leaf in found[:3]
        ]  # fmt: skip
        evidence.append(f"{optimizer.kind} stepped {optimizer.steps} times and holds {len(optimizer.held)} tensors")
        line, why = self._given_at(optimizer), ""
        confidence, severity = 0.9, "error"
        if loose:
            listed = in_container(self.ledger, found)
            if listed is not None:
                names = f"{len(found)} parameters in {listed[0]}"
                line, why = listed[1], f": {listed[0]} is a plain container, which the module does not look into"
            elif (derived := made_of(self.ledger, self.facts.backend, found[0])) is not None:
                line, why = (
                    derived[1],
                    (
                        f": {derived[0]} is what was made of the parameter there, and the module does not know the "
                        "parameter itself"
                    ),
                )
        elif (twin := self._twin()) is not None:
            line, confidence = self._given_at(twin) or line, 0.85
            why = f"; two optimizers hold the same {len(twin.held)} tensors: one of them was meant for these"
        elif all(leaf.last for leaf in found) or self._evaluated(found) or not any(h.named for h in optimizer.held):
            confidence, severity = 0.45, "note"
            why = "; if they are meant to be frozen, tell it by requires_grad/stop_gradient, which also saves time"
        get, them = ("gets", "it") if len(found) == 1 else ("get", "them")
        self._found.append(
            Finding(
                0, "not-optimized", severity, confidence,
                f"{names} {get} gradients in every iteration, and no optimizer holds {them}{why}",
                cause=self.facts.cause(line), evidence=evidence, next=_show(found),
            )
        )  # fmt: skip

    def _given_at(self, optimizer: Optimizer) -> SourceLine | None:
        """Where it was given parameters; torch's take them first."""
        first = self.facts.backend.name == "torch"
        return argument_line(optimizer.made, optimizer.kind, PARAMETERS, first=first)

    def _twin(self) -> Optimizer | None:
        """An optimizer that holds just what another holds, both of which step."""
        known: set[frozenset[int]] = set()
        for optimizer in self.ledger.optimizers.values():
            ids = frozenset(id(held.ref()) for held in optimizer.held)
            if optimizer.steps >= 2 and ids in known:
                return optimizer
            if optimizer.steps >= 2:
                known.add(ids)
        return None

    def _evaluated(self, found: list[Leaf]) -> bool:
        """Whether all of them belong to modules in evaluation mode that hold nothing optimized: a fixed network that a
        loss is made with."""
        fixed = {key for seen in self.ledger.modules.values() if not seen.training for key in seen.parameters}
        return all(id(leaf.ref()) in fixed for leaf in found)


def _show(leaves: list[Leaf]) -> list[str]:
    first = next((leaf.path for leaf in leaves if leaf.path), "")
    return ["b backward-end", *([f"b param:{first} after"] if first else [])]
