"""Tensors that a node saved and that were overwritten before its backward ran."""

from __future__ import annotations

import math
import re
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import FunctionCall
from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.earlier.together import calls_now
from adbg.engine.diagnosis.detectors.functions.derivatives import argument_name, result_line
from adbg.engine.diagnosis.detectors.graphs.calls import place, plain, shape, writes
from adbg.engine.diagnosis.detectors.graphs.silent import Silent, idle_operands, span_of
from adbg.engine.diagnosis.detectors.graphs.untracked import Untracked
from adbg.engine.diagnosis.detectors.schedules.between import StepsBetween
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.writers import only_writer, switched
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine, ValueState

_MOST = 20_000
_NEW = 8  # modules that run for the first time in an iteration that is not looked at
# The two frameworks' words for it are the one place where the versions are told of a tensor that cannot be seen.
_NOW = re.compile(r"is at version (\d+); expected version (\d+)|Its version is (\d+) but the expected version is (\d+)")
Addresses = frozenset[int]


@dataclass(slots=True)
class Use:
    """A node-making call: what it took, and what it made."""

    when: int
    name: str
    line: SourceLine | None
    takes: tuple[tuple[Addresses, int | None, Any], ...]  # where each operand lies, its version, a weak reference
    makes: tuple[tuple[Addresses, int | None, Any], ...]
    iteration: int
    node: int = 0  # address of the node, where the framework hides what nodes saved
    idle: frozenset[int] = frozenset()  # places of operands that no gradient is computed of, if saved or not


@dataclass(slots=True)
class Write:
    """Something was overwritten."""

    when: int
    name: str
    line: SourceLine | None
    where: Addresses
    before: int | None
    after: int | None
    shape: list[int]
    leaf: str  # of a parameter: its name
    iteration: int
    named: bool  # by its name it writes: what a normalisation does to its statistics is its own business
    mark: int | None  # nodes made so far
    span: tuple[int, int]


@detector("in-place", "silent-overwrite")
class InPlace(Detector):
    """A tensor that an operator saved for its backward was overwritten before that backward ran, so that backward
    raised "modified by an inplace operation": the line that wrote, through which view, and the line that saved it.
    "silent-overwrite": it was overwritten where no version moves (.data, an array of numpy, an optimizer of Paddle):
    backward then computes wrong gradients without a word. Or what an operator made is changed so before another one
    takes it: gradients flow as if it had not been (a warning).
    Evidence: the versions of the tensor before and after each write, the node that needed the old value, its line.
    Mistaken for: nothing known, backward itself has raised; of the silent kind, a write that changes no value. What
    only the gradient of another operand would need, which takes none (the weight of a first layer), may be written to.
    Cost: in sampled iterations a look at each operator's operands, and so in others from where a module runs for the
    first time that has parameters (a critic after a warm-up), up to 8 times; else nothing until backward raises.
    """

    needs = Need.MODULES | Need.FUNCTIONS
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._clock = 0
        self._uses: deque[Use] = deque(maxlen=_MOST)
        self._writes: deque[Write] = deque(maxlen=_MOST)
        self._seen = False
        self._silent = Silent(facts)
        self._untracked = Untracked(facts)
        self._hides = not facts.backend.capabilities.saved_tensors
        self._met: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost modules that ran
        self._left = _NEW

    def applied(self) -> bool:
        return self._seen or self.facts.iteration > 0

    # ---- the ledger

    def module_begin(self, call: ModuleCall) -> None:
        with suppress(TypeError):  # a class of the program's that has no weak references, or no hash
            if call.outermost and call.grad_mode and call.module not in self._met:
                self._met.add(call.module)
                own = any(True for _ in call.module.parameters())  # a loss is made anew in each iteration
                if own and not self.facts.sampled and self._left:
                    self._left -= 1
                    self.needs |= Need.OPERATORS
                    self.facts.other_needs = True

    def operator(self, call: OperatorCall) -> None:
        self._seen = True
        if call.error is not None:
            return
        self._clock += 1
        backend = self.facts.backend
        written = {id(each) for each in writes(call)}
        line = call.lines[0] if call.lines else None
        done: set[int] = set()
        for operand, before in zip(call.operands, call.versions, strict=False):
            if id(operand) in done:
                continue
            done.add(id(operand))
            after = backend.version_of(operand)
            if (before is not None and after is not None and after > before) or id(operand) in written:
                self._write(call, operand, before, after, line, id(operand) in written)
        made = [each for each in call.results if id(each) not in done and backend.has_graph(each)]
        changed = [each for each in call.results if id(each) in written and backend.has_graph(each)]
        if made or changed:
            takes = tuple(
                self._seen_of(each, version) for each, version in zip(call.operands, call.versions, strict=False)
            )
            makes = tuple(self._seen_of(each, backend.version_of(each)) for each in (*made, *changed))
            node = self._node((*made, *changed)[0]) if self._hides else 0
            idle = idle_operands(call)
            use = Use(self._clock, call.name, line, takes, makes, self.facts.iteration, node, idle)
            self._uses.append(use)
            self._note_values(call, line, (*made, *changed), use)
            if not self._hides:
                for value, (where, _, _) in zip(call.operands, takes, strict=True):
                    self._silent.took(value, where, line)
        shared = self._silent.shares(call)
        if shared is not None:
            self._silent.note(call, self._where(shared), shared, weakref.ref(shared))

    def function(self, call: FunctionCall) -> None:
        """Paddle counts it as a write where forward gives back what it was given; no operator tells of that."""
        if call.phase != "forward" or call.error is not None or self.facts.backend.name != "paddle":
            return
        results = call.results if isinstance(call.results, (tuple, list)) else (call.results,)
        for at, (value, before) in enumerate(zip(call.arguments, call.versions, strict=False)):
            returned = next((number for number, each in enumerate(results) if each is value), None)
            after = self.facts.backend.version_of(value) if before is not None and returned is not None else None
            if before is None or after is None or after != before + 1:
                continue  # with more than that its forward has written there itself
            where = self._where(value)
            if any(write.where & where and (write.after or 0) >= after for write in self._writes):
                continue  # an operator of its forward wrote there
            self._clock += 1
            name = f"{call.function.__name__} (its forward returns {argument_name(call.function, at)} itself)"
            line = result_line(call.function, returned or 0, "forward") or call.line
            self._writes.append(
                Write(self._clock, name, line, where, before, after, shape(value), "", self.facts.iteration, False,
                      self.facts.backend.made_so_far(), span_of(value))
            )  # fmt: skip

    def _note_values(self, call: OperatorCall, line: SourceLine | None, results: tuple[Any, ...], use: Use) -> None:
        if call.in_backward:
            return
        untracked = self._untracked
        if untracked.waiting:
            for value, (where, _, _) in zip(call.operands, use.takes, strict=False):
                untracked.took(results[0], line, value, where)
        for value, (where, _, _) in zip(results, use.makes, strict=True):
            untracked.made(call, line, value, where)

    def _node(self, value: Any) -> int:
        return self.facts.backend.node_address(value.grad_fn) or 0

    def _seen_of(self, value: Any, version: int | None) -> tuple[Addresses, int | None, Any]:
        return self._where(value), version, weakref.ref(value)

    def _where(self, value: Any) -> Addresses:
        return frozenset(address for address, _ in self.facts.backend.storages(value))

    def _write(
        self,
        call: OperatorCall,
        value: Any,
        before: int | None,
        after: int | None,
        line: SourceLine | None,
        named: bool,
    ) -> None:
        where = self._where(value)
        if named:
            self._untracked.wrote(call, line, value, where)
        leaf = self.facts.title_of(value) or "a parameter" if value.is_leaf and value.requires_grad else ""
        # An operator's own node is made after its write, and saves what that made.
        own = named and call.grad_mode and not value.is_leaf and self.facts.backend.has_graph(value)
        mark = self.facts.backend.made_so_far()
        mark = mark - 1 if mark is not None and own else mark
        self._writes.append(
            Write(self._clock, call.name, line, where, before, after, shape(value), leaf,
                  self.facts.iteration, named, mark, span_of(value))
        )  # fmt: skip

    # ---- the symptoms

    def backward_begin(self, running: Running) -> None:
        if not self.facts.sampled or len(running.chain) > 1:
            return
        since = self.facts.iteration - 2
        uses = [use for use in self._uses if use.iteration >= since]
        writes = [write for write in self._writes if write.named and write.iteration >= since]
        if uses and writes:
            self._silent.by_writes(running, uses, writes)
        if self._silent:
            self._silent.by_arrays(running, uses)
        if self._untracked.waiting:
            self._untracked.report(running, self._silent.told)

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if len(running.chain) == 1:
            self._silent.ends(error)
            self.needs &= ~Need.OPERATORS
        if error is None:
            return
        told = _NOW.search(str(error))
        if told is None:
            return
        now, expected = (int(part) for part in told.groups() if part is not None)
        suspects = running.call.failed_nodes(error)
        with_versions = [key for key, _ in suspects]
        if running.call.saved_hidden(with_versions[0]) if with_versions else True:
            self._by_ledger(running, with_versions, now, expected)
        else:
            self._by_saved(running, with_versions[0])

    def at_error(self, running: Running, error: BaseException) -> None:
        self.backward_end(running, error)

    def _by_saved(self, running: Running, key: int) -> None:
        """The framework shows the saved tensor: whose memory it is says who wrote there."""
        call = running.call
        saved = next((each for each in call.saved(key) if each.state is ValueState.CORRUPTED), None)
        if saved is None:
            return
        where = self._where(saved.value) if saved.value is not None else frozenset()
        expected, now = saved.saved_at, saved.version
        write = self._culprit(where, expected, now)
        self._report(
            running, key, saved.name, shape(saved.value), expected, now, write, where, saved.note, None, saved.writer
        )

    def _by_ledger(self, running: Running, keys: list[int], now: int, expected: int) -> None:
        """It does not: the operators that took or made something of that version which was overwritten later."""
        found: list[tuple[int, Use, Write, Addresses]] = []
        for use in reversed(self._uses):
            for where, version, _ in (*use.takes, *use.makes):
                if version != expected or not where:
                    continue
                write = self._culprit(where, expected, now)
                if write is not None and write.when > use.when:
                    found.append((use.when, use, write, where))
        key = keys[0] if len(keys) == 1 else None
        lines = {each: running.call.describe(each) for each in keys}
        for each, info in lines.items():
            fitting = [hit for hit in found if info.forward is not None and hit[1].line is not None
                       and (hit[1].line.file, hit[1].line.line) == (info.forward.file, info.forward.line)]  # fmt: skip
            if fitting:
                key, found = each, fitting
                break
        else:
            named = [hit for hit in found if keys and plain(hit[1].name).replace("_", "")
                     in running.call.name(keys[0]).lower().replace("_", "")]  # fmt: skip
            found = named or found
        if not found:
            if key is not None:
                self._report(running, key, "", None, expected, now, None, frozenset(), "")
            return
        _, use, write, where = found[0]
        self._report(running, key, "", None, expected, now, write, where, "", use)

    def _culprit(self, where: Addresses, expected: int | None, now: int | None) -> Write | None:
        """The first write since it was saved: the last one in the ledger that moved that version."""
        if expected is None:
            return None
        for write in reversed(self._writes):
            if not write.where & where or write.before is None or write.after is None:
                continue
            if write.before <= expected < write.after:
                return write
        return None

    def _report(
        self, running: Running, key: int | None, name: str, size: list[int] | None, expected: int | None,
        now: int | None, write: Write | None, where: Addresses, note: str, use: Use | None = None,
        writer: SourceLine | None = None,
    ) -> None:  # fmt: skip
        facts = self.facts
        node, forward = facts.node(running.call, key) if key is not None else (None, None)
        if use is not None and forward is None:
            forward = use.line
        what = f"{size} " if size is not None else ""
        needs = node.unique_name if node is not None and node.unique_name else (use.name if use is not None else "")
        evidence = []
        if needs:
            which = f"saved {what}{name or 'a tensor'}".replace("  ", " ")
            evidence.append(f"{needs} {which} at version {expected}; it is at version {now} when its backward runs")
        if forward is not None:
            evidence.append(f"saved at {place(forward)}: {facts.text_of(forward)}")
        steps = facts.shared.get(StepsBetween)
        step = steps.of(where) if steps is not None else None
        if write is None:
            if note:
                evidence.append(note)
            message = f"a tensor that {needs or 'a node'} saved was overwritten before its backward ran"
            what, sure = "a tensor", 0.9 if writer is not None else 0.7
            if writer is None and step is not None:
                writer, sure = step[0].apart_from(calls_now()), 0.9
                what = facts.title_of(step[1]) or "a parameter"
                evidence.append(f"an optimizer stepped at {place(step[0].line)}: after the last backward is its place")
            only = only_writer(forward) if writer is None and forward is not None else None
            if only is not None:
                (writer, what), sure = only, 0.8
                evidence.append(f"no other line of {place(writer).partition(':')[0]} writes {what} in place")
            if writer is not None:
                message = f"{place(writer)} overwrites {what}, which {needs} needs as it was"
            cause, follow, advice = facts.cause(writer), _next(node), []
            if (writer is None or only is not None) and not self._uses:  # it was not watched as it ran
                follow = ["restart", *follow]
                advice = [
                    "`restart`: diagnosis then watches the operators of the forward, and names the line that wrote"
                ]
                evidence += advice
            facts.tell(
                Finding(0, "in-place", "error", sure, message, node, running.call.number, None, forward, cause,
                        evidence, follow, advice=advice)
            )  # fmt: skip
            return
        for each in self._history(where, expected):
            changed = f"version {each.before} -> {each.after}"
            text = f": {facts.text_of(each.line)}" if each.line is not None else ""
            evidence.append(f"{each.name} at {place(each.line)} wrote it, {changed}{text}")
        if size is not None and write.shape != size:
            larger = math.prod(write.shape) > math.prod(size)
            evidence.append(f"written through {'what it is a view of' if larger else 'a view of it'}, {write.shape}")
        thing = write.leaf or "a tensor"
        carried = self._carried(write, forward)
        if carried is not None:
            self._report_carried(running, node, forward, write, carried, evidence)
            return
        victim = f", which {needs} needs as it was" if needs else ", which backward needs as it was"
        saved = f" (saved at {place(forward)})" if forward is not None else ""
        message = f"{write.name} at {place(write.line)} overwrites {thing}{victim}{saved}"
        if write.leaf:
            evidence.append(
                f"{write.leaf} is a parameter: an optimizer's step belongs after the last backward that uses it"
            )
        stepped = step is not None and write.leaf and step[0].line == write.line
        came = step[0].apart_from(calls_now()) if step is not None and stepped else None
        facts.tell(
            Finding(0, "in-place", "error", 0.97, message, node, running.call.number, None, forward,
                    facts.cause(switched(came or write.line)), evidence, _next(node))
        )  # fmt: skip

    def _carried(self, write: Write, forward: SourceLine | None) -> tuple[Use, Use] | None:
        """Where the line that saved it has run again since the write, the graph at hand spans two rounds of a loop:
        what overwrote was the step of the last round, as it should, and what joins the rounds is the bug. The call that
        took a tensor of the round before, and the one that had made it."""
        if forward is None or not write.leaf:
            return None
        later = [use for use in self._uses if use.when > write.when]
        if not any(
            use.line is not None and (use.line.file, use.line.line) == (forward.file, forward.line) for use in later
        ):
            return None
        made: dict[int, tuple[Any, Use]] = {}
        for use in self._uses:
            if use.when < write.when:
                for _, _, ref in use.makes:
                    value = ref()
                    if value is not None:
                        made[id(value)] = ref, use
        for use in later:
            for _, _, ref in use.takes:
                value = ref()
                known = made.get(id(value)) if value is not None else None
                if known is not None and known[0]() is value:
                    return use, known[1]
        return None

    def _report_carried(
        self, running: Running, node: FoundAt | None, forward: SourceLine | None, write: Write,
        carried: tuple[Use, Use], evidence: list[str],
    ) -> None:  # fmt: skip
        facts = self.facts
        taker, maker = carried
        evidence.append(f"{maker.name} at {place(maker.line)} made the tensor, before the step at {place(write.line)}")
        evidence.append(f"{taker.name} at {place(taker.line)} took it, after that step: detach() it in between")
        message = (
            f"a tensor of the iteration before is used again at {place(taker.line)} without detach(): its graph needs "
            f"{write.leaf} as it was before {place(write.line)} changed it"
        )
        facts.tell(
            Finding(0, "in-place", "error", 0.9, message, node, running.call.number, None, forward,
                    facts.cause(taker.line), evidence, _next(node))
        )  # fmt: skip

    def _history(self, where: Addresses, expected: int | None) -> list[Write]:
        """Writes since it was saved, the first ones."""
        since = [each for each in self._writes if each.where & where and each.after is not None
                 and expected is not None and each.after > expected]  # fmt: skip
        with suppress(ValueError):
            culprit = self._culprit(where, expected, None)
            if culprit is not None:
                since = since[since.index(culprit) :]
        return since[:3]


def _next(node: FoundAt | None) -> list[str]:
    name = node.unique_name if node is not None else None
    return [f"b {name}", "info node"] if name else ["info graph"]
