"""Parameters that never get a gradient, or one that is always zero, and the line at which it was lost."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.aliases.no_leaves import (
    NoLeaves,
    line_renewed,
    listed,
    overwritten_at,
    words_renewed,
)
from adbg.engine.diagnosis.detectors.graphs.by_hand import BY_HAND, IDLE, ByHand
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place
from adbg.engine.diagnosis.detectors.graphs.flow import UNRECORDED, Cut, Flow, Known, bits_of, is_shown
from adbg.engine.diagnosis.detectors.graphs.rounded import Rounded
from adbg.engine.diagnosis.detectors.graphs.switched import is_off, tell_off, tell_unwatched
from adbg.engine.diagnosis.detectors.graphs.switches import cause_of, words_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_EARLY = 8  # it is told at that iteration, and at the end
_SEARCHED = 3  # looks for optimizers in any case; then only when one was made or changed (55-100 ms each)


@dataclass(slots=True)
class Held:
    """What an optimizer holds, or where there is none, a leaf that the forward used; as it was at the last look."""

    name: str
    place: int  # its bit
    used: SourceLine | None
    born: SourceLine | None
    maker: Known | None  # of what is no leaf
    owned: int  # id of the tensor; 0 where no optimizer holds it
    named: bool = False  # a module has it


@detector("no-gradient", "rounded-gradient", "non-leaf-gradient")
class NoGradient(Detector):
    """A parameter of an optimizer never gets a gradient, with the line that lost it: detach(), .data, no_grad, numbers
    that left the graph (item, tolist, numpy), a tensor or Parameter made of values, an integer result, no use at all.
    "rounded-gradient": the way to the loss goes through round, floor or sign, whose derivative is 0. Where a sum takes
    the gradient of what is rounded and detaches what it is rounded from (``q + (w - q).detach()``), that is the line.
    "non-leaf-gradient": an optimizer holds, or the script reads .grad of, what an operator made of a parameter.
    Gradients that were switched off and never on again are told by the line of the switch.
    Evidence: the parameters, the call after which their values go on and their gradients do not.
    Mistaken for: a part that is trained later than the program ran (a note where its optimizer never stepped), target
    networks and codebooks that are updated by hand (a note where their values change without a step), a last bias where
    only slopes are trained on (a gradient that is asked for counts where no call cuts the weights off a loss).
    Cost: in sampled iterations a look at each operator's operands, and hashes of up to 16 tensors without a gradient.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._owned: set[int] | None = None  # ids of what optimizers hold, at the end
        self._flow = Flow()
        self._by_hand = ByHand(facts)
        self._rounded = Rounded(facts, self._flow)
        self._no_leaves = NoLeaves(facts, self._flow)
        facts.born, facts.written = self._flow.born, self._flow.written
        self._given = 0  # bits of leaves that got a gradient
        self._asked = 0  # of those that a gradient of theirs was asked for of, as autograd.grad does
        self._lost: dict[int, int] = defaultdict(int)  # by bit of a leaf: the cuts on its way to a loss
        self._direct: dict[int, int] = defaultdict(int)  # of these, those with no count or index after them
        self._seen = False
        self._roots: list[Known | None] = []
        self._told: dict[tuple[Any, ...], tuple[int, int]] = {}  # what was told: (id, bits)
        self._failed = False
        self._off = False  # a backward was called while autograd records nothing
        self._held: dict[int, Held] = {}
        self._searched: list[tuple[str, weakref.ref[Any]]] | None = None  # what optimizers hold; None: look again
        self._optimizers: dict[int, int] = {}  # id -> of the ids of what it holds
        self._stepping: set[int] = set()  # of the ids of what optimizers that stepped hold
        self._moved: set[int] = set()  # these ids
        self._missing: list[weakref.ref[Any]] = []  # what had no gradient in the last iteration that was looked at

    def optimizer(self, event: OptimizerEvent) -> None:
        """One that was made, or holds other tensors than before, is to be found again."""
        self._flow.stepping = event.what == "step"
        if event.optimizer is None or event.what not in ("made", "step"):
            return
        holds = hash(tuple(map(id, event.tensors)))
        if event.what == "made" or self._optimizers.get(id(event.optimizer)) != holds:
            self._optimizers[id(event.optimizer)] = holds
            self._searched = None
        if event.what == "step":
            if holds not in self._stepping:
                self._stepping.add(holds)
                self._moved.update(map(id, event.tensors))
            if self._missing:
                self._given_since()

    def _given_since(self) -> None:
        """A part that is trained each fifth time may get its gradient in no iteration that is looked at."""
        values = [value for ref in self._missing if (value := ref()) is not None]
        for value in values:
            leaf = self._flow.leaf(value)
            if leaf is not None and value.is_leaf and self.facts.backend.gradient_of(value) is not None:
                self._given |= 1 << leaf.place

    def applied(self) -> bool:
        return self._seen

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None:
            return
        self._seen = True
        if call.name == "grad":
            self._no_leaves.read(call)
            return
        if not call.name.startswith("set_") or call.name == "set_value":
            self._flow.note(call)
            self._rounded.straight.note(call)

    # ---- what a backward reaches

    def backward_begin(self, running: Running) -> None:
        if not self._off and len(running.chain) == 1 and is_off(self.facts.backend, running):
            self._off = True
            tell_off(self.facts, running)
        self._flow.stepping = False  # one that failed
        if not self.facts.sampled:
            return
        flow = self._flow
        self._roots = []
        inputs = self._bits(running.call.wanted)
        for root in running.call.root_values():
            known = flow.of(root)
            leaf = flow.leaf(root) if root.is_leaf and root.requires_grad else None
            if leaf is not None:
                self._given |= 1 << leaf.place
            self._roots.append(known)
            if known is None:
                continue
            if running.call.entry == "grad":  # what that gives lands in no .grad
                self._asked |= known.gradients
            else:
                self._given |= known.gradients & inputs
            for bit in bits_of(known.values & ~known.gradients):
                self._lost[bit] |= known.cuts
                self._direct[bit] |= known.cuts & ~known.counted

    def _bits(self, wanted: Sequence[Any]) -> int:
        """Of the leaves that a call can give a gradient: ``backward(inputs=...)`` gives none to others."""
        if not wanted:
            return -1
        found = {leaf.place for each in wanted if (leaf := self._flow.leaf(each)) is not None}
        return sum(1 << at for at in found)

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is not None:
            if "does not require grad" in str(error) or "no grad" in str(error).lower():
                self._no_graph(running, error)
            return
        if not self.facts.sampled or len(running.chain) > 1:
            return
        self._look()
        backend = self.facts.backend
        for leaf in tuple(self._flow.leaves.values()):
            value = leaf.ref()
            gradient = backend.gradient_of(value) if value is not None and value.is_leaf else None
            if gradient is None:
                continue
            self._given |= 1 << leaf.place
            self._rounded.look(leaf.place, gradient, self._roots)
        places = {each.place for each in self._held.values() if not self._given >> each.place & 1}
        missing = [leaf for leaf in self._flow.leaves.values() if leaf.place in places]
        self._missing = [leaf.ref for leaf in missing]
        self._by_hand.look((leaf.place, value) for leaf in missing if (value := leaf.ref()) is not None)

    def at_error(self, running: Running, error: BaseException) -> None:
        self.backward_end(running, error)

    def _look(self) -> None:
        """At what optimizers hold: at the end of the program the tensors are gone."""
        facts, flow = self.facts, self._flow
        if self._searched is None or facts.iteration <= _SEARCHED:
            statistics = facts.statistics()
            found = [(where, value) for where, value in facts.backend.optimized() if id(value) not in statistics]
            self._searched = [(where, weakref.ref(value)) for where, value in found]
        alive = [(where, value) for where, ref in self._searched if (value := ref()) is not None]
        held = [(value, facts.title_of(value) or where) for where, value in alive]
        owned = bool(held)
        if not held:
            leaves = [(leaf.ref(), leaf) for leaf in flow.leaves.values() if leaf.used is not None]
            held = [
                (value, facts.title_of(value) or f"the leaf made at {place(leaf.born)}")
                for value, leaf in leaves
                if value is not None
            ]
        for value, name in held:
            if value.requires_grad:
                leaf = flow.add_leaf(value, None)
                maker = flow.of(value) if not value.is_leaf else None
                self._held[leaf.place] = Held(
                    name, leaf.place, leaf.used, leaf.born, maker, id(value) if owned else 0, facts.is_named(value)
                )  # fmt: skip

    def _no_graph(self, running: Running, error: BaseException) -> None:
        """Backward of something that has no graph at all."""
        self._failed = True
        if self._off:
            return
        flow = self._flow
        roots = running.call.root_values() or ()
        known = next((known for root in roots if (known := flow.of(root)) is not None), None)
        cuts = [self._rounded.straight.instead(flow.cuts[at], at) for at in bits_of(known.cuts)] if known else []
        if not cuts and self.facts.sampled:  # else nobody looked at what it was made of
            cuts = flow.escapes[-1:]
        location = running.call.location
        if not cuts:
            if not self.facts.iteration:
                tell_unwatched(self.facts, running, error)
            return
        cut = cuts[0]
        names = self._no_leaves.names(cut.lost)
        message = f"backward at {place(location)} has no graph to go through: {self._words(cut)}"
        evidence = [f"{cut.name} at {place(line_of(cut.lines))} took what depends on {names}"] if names else []
        evidence.append(f"backward raised: {running.call.error_text(error).splitlines()[0][:160]}")
        evidence += [f"cut again at {place(line_of(more.lines))}: {more.name}" for more in cuts[1:3]]
        cause = self._cause(cut)
        self.facts.tell(
            Finding(0, "no-gradient", "error", 0.95, message, None, running.call.number, None, line_of(cut.lines),
                    self.facts.cause(cause), evidence, listed(cause))
        )  # fmt: skip

    # ---- judging

    def iteration_end(self) -> None:
        if self.facts.iteration == _EARLY:
            self._judge(early=True)
        self._take_back()

    def _take_back(self) -> None:
        for key, (id, bits) in tuple(self._told.items()):
            if self._given & bits or (not key[0] and all(map(self._by_hand.changes, bits_of(bits)))):
                self.facts.take_back(id)
                del self._told[key]

    def end(self) -> None:
        if self.facts.iteration and self._seen and not self._failed:
            self._judge()

    def _judge(self, early: bool = False) -> None:
        if self._off:  # that is why
            return
        groups: dict[tuple[Any, ...], list[Held]] = defaultdict(list)
        kept: dict[tuple[Any, ...], Cut | None] = {}
        trained = {held.born for held in self._held.values() if self._given >> held.place & 1} if early else set()
        for held in self._held.values():
            stepped = held.owned in self._moved
            asked = self._asked >> held.place & 1  # by autograd.grad: a step that uses what that gives changes weights
            if self._given >> held.place & 1 or (asked and (not stepped or self._by_hand.changes(held.place))):
                continue
            if held.maker is not None:
                proof = f"{held.name} of an optimizer is that tensor, and its .grad is None"
                self._no_leaves.tell(held.maker, proof, held.name)
                continue
            idle = held.owned != 0 and not stepped  # it may be trained later
            if idle and (early or not self._is_held(held)):
                continue
            why = IDLE if idle and self._moved else BY_HAND if self._by_hand.changes(held.place) else ""
            cut = self._lost_at(held.place)
            if cut is None and (asked or held.born in trained - {None}):
                continue  # a loss of slopes has none of the last bias; of parts made by one line each has its turn
            if cut is not None:
                key: tuple[Any, ...] = (why, "cut", cut.name, cut.lines[:1])
            else:
                if held.used is None and held.born is None:
                    held.born = self._sibling_born(held)
                key = (why, "unused", held.used or held.born, held.named)
            groups[key].append(held)
            kept[key] = cut
        for key, members in sorted(groups.items(), key=lambda each: bool(each[0][0])):  # of one line the error
            cut = kept[key]
            if cut is not None:
                self._tell_cut(key, cut, members)
            else:
                self._tell_unused(key, members)
        self._rounded.judge((held.place, held.name) for held in self._held.values())

    def _is_held(self, held: Held) -> bool:
        """An optimizer that another one took the place of lies about until Python collects it. Asked at the end alone;
        all of them are gone where ``main()`` has returned."""
        if self._owned is None:
            gc.collect()
            self._owned = {id(value) for _, value in self.facts.backend.optimized()}
        return not self._owned or held.owned in self._owned

    def _sibling_born(self, held: Held) -> SourceLine | None:
        """Where another parameter of the same module was first written."""
        module = held.name.rpartition(".")[0]
        others = (other for other in self._held.values() if module and other.name.rpartition(".")[0] == module)
        return next((other.born for other in others if other.born is not None), None)

    def _lost_at(self, bit: int) -> Cut | None:
        flow, direct = self._flow, self._direct.get(bit, 0)
        # An index of the nearest code is none that training goes through, however it is computed.
        for at in (*bits_of(direct), *bits_of(self._lost.get(bit, 0) & ~direct)):
            if flow.cuts[at].lost >> bit & 1:
                return self._rounded.straight.instead(flow.cuts[at], at, bit)
        lost = next((each for each in reversed(flow.escapes) if each.lost >> bit & 1 and not is_shown(each)), None)
        if lost is None:  # it goes on where no operator tells of it: Variable(loss.data)
            meant = (cut for cut in reversed(flow.cuts) if cut.lost >> bit & 1 and cut.why != UNRECORDED)
            lost = next((cut for cut in meant if not (cut.copies and cut.lost & self._given)), None)
        return lost

    def _tell_cut(self, key: tuple[Any, ...], cut: Cut, members: list[Held]) -> None:
        facts = self.facts
        names = facts.some([held.name for held in members])
        verb = "gets no gradient" if len(members) == 1 else "get no gradient"
        cause = self._cause(cut)
        evidence = [
            f".grad of {names} is None after {facts.iteration} backwards",
            f"{cut.name} at {place(line_of(cut.lines))}: values of {names} go in, no gradient comes back",
        ]
        evidence += [f"called from {place(line)}" for line in cut.lines[1:3]] + [key[0]] * bool(key[0])
        severity, confidence = ("error", 0.92) if not key[0] else ("note", 0.4)
        told = facts.tell(
            Finding(0, "no-gradient", severity, confidence, f"{names} {verb}: {self._words(cut)}", None, None, None,
                    line_of(cut.lines), facts.cause(cause), evidence, listed(cause))
        )  # fmt: skip
        self._note(key, told, members)

    def _tell_unused(self, key: tuple[Any, ...], members: list[Held]) -> None:
        facts = self.facts
        names = facts.some([held.name for held in members])
        first = members[0]
        one = len(members) == 1
        evidence = [f".grad of {names} is None after {facts.iteration} backwards"]
        line = first.used or first.born
        loss = self._flow.last_of(first.place) if first.used is not None else None
        if loss is not None:
            over = overwritten_at(loss.line)
            line = over or loss.line
            message = f"{names} never {'gets' if one else 'get'} a gradient: {loss.name} at {place(loss.line)} "
            message += f"computes a number with {'it' if one else 'them'}, and no backward starts from that"
            message += f"; {place(over)} gives its name another value" if over is not None else ""
            evidence.append(f"{place(loss.line)}: {facts.text_of(loss.line)}")
        elif first.used is not None:
            message = f"{names} never {'gets' if one else 'get'} a gradient: nothing of what {place(line)} makes of "
            message += f"{'it' if one else 'them'} reaches a loss"
            evidence.append(f"used at {place(line)}: {facts.text_of(first.used)}")
        else:
            message = f"{names} never {'gets' if one else 'get'} a gradient: no operator of the forward uses "
            message += "it" if one else "them"
            if line is not None:
                evidence.append(f"made at {place(line)}, in an optimizer, and in no forward of the sampled iterations")
        evidence += [key[0]] * bool(key[0])
        severity, confidence = ("warning", 0.65 if loss is None else 0.8) if not key[0] else ("note", 0.4)
        if first.used is None:  # of a head for another stage of the training
            severity, confidence = "note", 0.45
            evidence.append("whether it is to be trained here decides it")
        node = FoundAt(parameter=first.name) if first.named else None
        stale = {facts.replaced.get(held.owned) for held in members}
        told = facts.tell(
            Finding(0, "no-gradient", severity, confidence, message, node, None, None, line, facts.cause(line),
                    evidence, ["info params"], stale.pop() if len(stale) == 1 else None)
        )  # fmt: skip
        self._note(key, told, members)

    def _note(self, key: tuple[Any, ...], told: int, members: list[Held]) -> None:
        bits = sum(1 << held.place for held in members)
        self._told[key] = told, bits
        leaves = [leaf for leaf in self._flow.leaves.values() if bits >> leaf.place & 1]
        self.facts.about[told] = frozenset(id(value) for leaf in leaves if (value := leaf.ref()) is not None)

    def uncaught(self, error: BaseException) -> None:
        self._no_leaves.uncaught(error)

    # ---- words and lines

    def _cause(self, cut: Cut) -> SourceLine | None:
        held = sum({1 << held.place for held in self._held.values()})
        return line_renewed(cut) or cause_of(cut, self._flow.cuts, held)

    def _words(self, cut: Cut) -> str:
        return words_renewed(self.facts, cut) or words_of(cut, place(self._cause(cut)))
