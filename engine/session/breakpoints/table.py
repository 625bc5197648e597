"""The breakpoint table: which events of a backward pass are hits.

Written by the reader thread (``replace``), read by autograd threads in their hooks (``armed``, ``plan``, ``check``):
hooks read one immutable ``_Armed``, swapped as a whole, and take the lock only to count a hit. ``until NODE`` is a
table of its own with one temporary breakpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from adbg.engine.backends.base import Graph, HookPlan
from adbg.engine.names import name_matches
from adbg.engine.protocol.messages import BreakpointRequest, BreakpointState
from adbg.engine.session.breakpoints.breakpoint import Counts, Rule, make_rule
from adbg.engine.session.breakpoints.grammar import Spec, SpecKind, spec_matches
from adbg.engine.session.breakpoints.hit import Evaluate, Hit, HitEvent, condition_holds, stop_reason
from adbg.engine.session.breakpoints.matching import count_matches, plan_for, unmatched_name
from adbg.engine.types import NodeInfo, Phase, SourceLine

__all__ = ["FILTER_IDS", "BreakpointTable", "Evaluate", "Hit", "HitEvent", "plan_for"]

FILTER_IDS = {"error": -1, "nan": -2, "inf": -3, "nonfinite": -4, "backward": -5}

_REMEMBERED_CALLS = 64  # backward calls in which a nan/inf breakpoint has already stopped; more never run at once
_REMEMBERED_LEAVES = 100_000


class _Armed:
    """The enabled breakpoints, sorted by what they look at. Immutable but for ``by_name``, a cache."""

    def __init__(self, rules: Iterable[Rule], rank: int | None = None) -> None:
        live = [(rule, rule.spec) for rule in rules if rule.spec is not None and rule.request.enabled]
        self.rules = tuple(pair for pair in live if rank is None or not pair[1].ranks or rank in pair[1].ranks)
        self.in_some_ranks = rank is None and any(
            spec.ranks for _, spec in self.rules
        )  # which one this is, shows later
        self.named = self._of(SpecKind.NAME)
        self.slow = self._of(SpecKind.LINE, SpecKind.MODULE, SpecKind.PARAMETER)
        self.values = self._of(SpecKind.NAN, SpecKind.INF, SpecKind.NONFINITE)
        self.by_phase = {
            Phase.BEGIN: self._of(SpecKind.BACKWARD),
            Phase.END: self._of(SpecKind.BACKWARD_END),
            Phase.ERROR: self._of(SpecKind.ERROR),
        }
        self.by_index: dict[int, list[tuple[Rule, Spec]]] = {}
        for pair in self._of(SpecKind.INDEX):
            self.by_index.setdefault(pair[1].number, []).append(pair)
        self.by_name: dict[str, tuple[tuple[Rule, Spec], ...]] = {}
        self.in_some_calls = any(spec.backward for _, spec in self.rules)
        self.needs_calls = any(spec.kind is not SpecKind.ERROR for _, spec in self.rules)
        self.plan: HookPlan | None = None

    def _of(self, *kinds: SpecKind) -> tuple[tuple[Rule, Spec], ...]:
        return tuple(pair for pair in self.rules if pair[1].kind in kinds)


class _SeenNames:
    """Framework names met so far, and the patterns that one of them matches with its case: these stay so."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.exact: set[str] = set()
        self.patterns: tuple[str, ...] = ()

    def watch(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(set(patterns))
        for name in tuple(self.names):
            self._compare(name)

    def learn(self, name: str) -> bool:
        """True when ``name`` is new."""
        if name in self.names:
            return False
        self.names.add(name)
        self._compare(name)
        return True

    def _compare(self, name: str) -> None:
        for pattern in self.patterns:
            if name_matches(pattern, name):
                self.exact.add(pattern)

    def fold(self, pattern: str) -> bool:
        return pattern not in self.exact


class BreakpointTable:
    """All breakpoints of one agent, thread-safe."""

    def __init__(self, rank: Callable[[], int | None] = lambda: None) -> None:
        self.rank = rank  # of this process, None while it is not known: a breakpoint on some ranks may then be on it
        self._lock = threading.Lock()
        self._rules: dict[int, Rule] = {}
        self._filters: dict[int, Rule] = {}
        self._spent: dict[int, str] = {}  # temporary breakpoints that were hit: id -> name
        self._seen = _SeenNames()
        self._armed = _Armed(())
        self.set_filters(["error"])

    # ---------------------------------------------------------------- the list

    @property
    def names_seen(self) -> frozenset[str]:
        """Framework names of the nodes that were compared with a name pattern so far."""
        return frozenset(self._seen.names.copy())

    def final(self) -> list[BreakpointState]:
        """At the end of a run: what changed since the last stop (hits of tracepoints, which never stop), and what
        ``unmatched`` says."""
        changed = {state.id: state for state in self.take_changed()}
        changed.update((state.id, state) for state in self.unmatched())
        return list(changed.values())

    def unmatched(self) -> list[BreakpointState]:
        """At the end of a run: breakpoints on a name that no node had, with the closest names in their message."""
        names = sorted(self.names_seen)
        states = []
        with self._lock:
            for rule in self._rules.values():
                spec = rule.spec
                note = unmatched_name(spec, names) if spec and not rule.counts.hits and self._here(spec) else ""
                if note:
                    rule.counts.note = note
                    states.append(rule.state())
        return states

    # ---------------------------------------------------------------- one that takes nothing

    @property
    def uncompared(self) -> bool:
        """Some breakpoint names nodes, and was not compared with those of a whole backward yet."""
        return any(self._compares(rule) for rule in self._rules.values())

    def meet(self, graph: Graph) -> None:
        """Compare with a backward that begins those breakpoints that a walk of the graph is needed for. Once each: the
        walk describes every node."""
        with self._lock:
            rules = [rule for rule in self._rules.values() if self._compares(rule) and not _by_name_alone(rule.spec)]
        counted = count_matches(graph, {rule.request.id: rule.spec for rule in rules if rule.spec is not None})
        with self._lock:
            for rule in rules:
                matches, note = counted[rule.request.id]
                rule.counts.met = rule.counts.met or matches > 0
                rule.counts.note = "" if rule.counts.met else note

    def compared(self) -> list[BreakpointState]:
        """An outermost backward ended: of the breakpoints that were compared with it for the first time, those of which
        no node was at their place."""
        names = sorted(self.names_seen)
        unmet = []
        with self._lock:
            for rule in self._rules.values():
                counts, by_name = rule.counts, _by_name_alone(rule.spec)
                if rule.spec is None or not self._compares(rule) or (by_name and not names):
                    continue
                counts.compared = True
                if by_name and not counts.matches:
                    counts.note = unmatched_name(rule.spec, names)
                    counts.met = not counts.note
                if rule.state().met is False:
                    unmet.append(rule.state())
        return unmet

    def _compares(self, rule: Rule) -> bool:
        """Not one for a single backward: its graph may be long in coming."""
        spec, due = rule.spec, rule.request.enabled and not rule.counts.compared
        return spec is not None and spec.of_node and not spec.backward and due and self._here(spec)

    def _here(self, spec: Spec) -> bool:
        """On this rank. One that is not known yet counts as 0."""
        return not spec.ranks or (self.rank() or 0) in spec.ranks

    # ---------------------------------------------------------------- what is armed

    @property
    def armed(self) -> bool:
        """True while an enabled breakpoint needs backward calls to be reported (``error`` alone does not)."""
        return self._armed.needs_calls

    def replace(self, requests: Sequence[BreakpointRequest]) -> list[BreakpointState]:
        """Replace the whole list; hit counts survive by id as long as the spec's head stays. Bad specs come back
        ``verified`` False and are not armed. A request without id takes that of the same text, else a new one. A
        temporary breakpoint that was hit comes back disabled: it does not arm again under its id."""
        with self._lock:
            rules: dict[int, Rule] = {}
            for request in self._with_ids(requests):
                if self._spent.get(request.id) == request.name:
                    request = replace(request, enabled=False)
                rules[request.id] = make_rule(request, self._rules.get(request.id))
            self._rules = rules
            self._swap()
            states = [rules[id].state() for id in rules]
            for state in states:
                rules[state.id].counts.told = state
            return states

    def _with_ids(self, requests: Sequence[BreakpointRequest]) -> list[BreakpointRequest]:
        taken = {request.id for request in requests if request.id}
        free = {rule.request.name: id for id, rule in self._rules.items() if id not in taken}
        last = max([*taken, *self._rules, *self._spent, 0])
        numbered = []
        for request in requests:
            if not request.id:
                id = free.pop(request.name, 0)
                if not id:
                    last += 1
                    id = last
                request = replace(request, id=id)
            numbered.append(request)
        return numbered

    def set_filters(self, filters: Sequence[str]) -> list[BreakpointState]:
        """setExceptionBreakpoints: entries with the reserved ids FILTER_IDS. ``error`` is on until told otherwise."""
        with self._lock:
            rules: dict[int, Rule] = {}
            states = []
            for name in filters:
                if name not in FILTER_IDS:
                    message = f"unknown filter {name!r} (filters: {', '.join(FILTER_IDS)})"
                    states.append(BreakpointState(id=0, verified=False, message=message, spec=name))
                    continue
                id = FILTER_IDS[name]
                rules[id] = make_rule(BreakpointRequest(name=name, id=id), self._filters.get(id))
                states.append(rules[id].state())
            self._filters = rules
            self._swap()
            return states

    def learn_rank(self) -> None:
        """The rank may be known now."""
        with self._lock:
            self._swap()

    def _swap(self) -> None:
        armed = _Armed((*self._filters.values(), *self._rules.values()), self.rank())
        self._seen.watch(spec.pattern for _, spec in armed.named)
        self._armed = armed

    def states(self) -> list[BreakpointState]:
        """Of the client's list, in its order (filters not included)."""
        with self._lock:
            return [rule.state() for rule in self._rules.values()]

    def take_changed(self) -> list[BreakpointState]:
        """States whose hits, matches or message changed since they were last returned, for ``breakpoint`` events. A
        temporary breakpoint that was hit is not among them: its ``Hit`` said so."""
        changed = []
        with self._lock:
            for rule in self._rules.values():
                state = rule.state()
                if state != rule.counts.told:
                    rule.counts.told = state
                    changed.append(state)
        return changed

    # ---------------------------------------------------------------- before a backward

    def plan(self, backward: int = 0) -> HookPlan:
        """What must be hooked for the enabled breakpoints (in call ``backward``; 0: in any)."""
        if self._armed.in_some_ranks:
            self.learn_rank()
        armed = self._armed
        if armed.in_some_calls and backward:
            return self._plan([spec for _, spec in armed.rules if spec.backward in (0, backward)])
        if armed.plan is None:
            armed.plan = self._plan([spec for _, spec in armed.rules])
        return armed.plan

    def passing(self, alone: bool) -> tuple[Callable[[str], bool] | None, HookPlan | None, bool]:
        """See ``PassedOver.look_for``; ``alone``: nothing but breakpoints asks for nodes."""
        armed, phases = self._armed, self._armed.by_phase
        if not alone or armed.by_index or armed.in_some_calls or phases[Phase.BEGIN] or phases[Phase.END]:
            return None, None, False
        plan, values = self.plan(), bool(armed.values)
        return (None, plan, values) if armed.slow else (plan.name, None, values)

    def _plan(self, specs: Sequence[Spec]) -> HookPlan:
        plan = plan_for(specs)
        inner = plan.name
        if inner is None:
            return plan
        wanted = inner

        def name(framework_name: str) -> bool:
            self._seen.learn(framework_name)
            return wanted(framework_name)

        return replace(plan, name=name)

    def match(self, graph: Graph) -> dict[int, int]:
        """Count the nodes of ``graph`` that each breakpoint takes (by id), kept for ``states``; a spec that takes none
        gets a message with the closest names. Walks the graph: for a stop or a changed list, not for the hot path."""
        with self._lock:
            rules = [rule for rule in self._rules.values() if rule.spec is not None and rule.spec.of_node]
        specs = {rule.request.id: rule.spec for rule in rules if rule.spec is not None}
        counted = count_matches(graph, specs)
        with self._lock:
            for rule in rules:
                rule.counts.matches, rule.counts.note = counted[rule.request.id]
        return {id: number for id, (number, _) in counted.items()}

    def matching_ids(
        self, info: NodeInfo, stack: Callable[[], Sequence[SourceLine]] | Sequence[SourceLine], index: int
    ) -> tuple[int, ...]:
        """Ids of the enabled breakpoints that take this node (to mark its row)."""
        armed = self._armed
        found = [pair[0].request.id for pair in armed.by_index.get(index, ())]
        found += [rule.request.id for rule, spec in self._named(armed, info.name) if self._takes(spec, info, (), index)]
        for rule, spec in armed.slow:
            if spec.kind is SpecKind.LINE and callable(stack):
                stack = stack()
            frames = () if callable(stack) else stack
            if spec_matches(spec, info, frames, index):
                found.append(rule.request.id)
        return tuple(sorted(found))

    # ---------------------------------------------------------------- in a hook

    def check(self, event: HitEvent, evaluate: Evaluate) -> list[Hit]:
        """Hits of ``event``. ``evaluate(text)`` gives the value of a condition at this point; it may raise.

        In gdb's order: place, then condition, then the hit counts, then ``ignore`` and ``every``. nan, inf and
        nonfinite take the first node of a backward whose gradients are so; after that its other origins only, where
        nothing that came in was so already, and in later calls nothing that comes from leaves which such gradients
        reached (the optimizer has made these NaN).
        """
        armed = self._armed
        hits = []
        for rule, spec in self._candidates(armed, event):
            if spec.backward in (0, event.backward) and self._here(spec):
                rule.counts.met = True
                hit = self._count(rule, spec, event, *condition_holds(rule.conditions, evaluate))
                if hit is not None:
                    hits.append(hit)
        return hits

    def _candidates(self, armed: _Armed, event: HitEvent) -> list[tuple[Rule, Spec]]:
        """Breakpoints whose place this is."""
        phase = event.phase
        if phase in armed.by_phase:
            return list(armed.by_phase[phase])
        found = [pair for pair in armed.by_index.get(event.index, ()) if _in_phase(pair[1], phase)]
        if armed.named:
            for pair in self._named(armed, event.node.name):
                if _in_phase(pair[1], phase) and self._takes(pair[1], event.node, (), event.index):
                    found.append(pair)
        for pair in armed.slow:
            if _in_phase(pair[1], phase):
                stack = event.stack if pair[1].kind is SpecKind.LINE else ()
                if spec_matches(pair[1], event.node, stack, event.index):
                    found.append(pair)
        for pair in armed.values:
            if _in_phase(pair[1], phase) and _value_matches(pair[1].kind, event.nonfinite):
                found.append(pair)
        return found

    def _named(self, armed: _Armed, name: str) -> tuple[tuple[Rule, Spec], ...]:
        """Name breakpoints that can take a node of that framework name: one dict lookup, once the name is known."""
        pairs = armed.by_name.get(name)
        if pairs is None:
            self._seen.learn(name)
            pairs = tuple(pair for pair in armed.named if name_matches(pair[1].pattern, name, "", True))
            armed.by_name[name] = pairs
        return pairs

    def _takes(self, spec: Spec, info: NodeInfo, stack: Sequence[SourceLine], index: int) -> bool:
        return spec_matches(spec, info, stack, index, self._seen.fold(spec.pattern))

    def _count(self, rule: Rule, spec: Spec, event: HitEvent, true: bool, error: str) -> Hit | None:
        if not true and not error:
            return None
        request, counts = rule.request, rule.counts
        if spec.of_values and _is_victim(counts, spec.kind, event):
            return None
        reached = event.reached_leaves if spec.of_values else frozenset()
        with self._lock:
            if self._spent.get(request.id) == request.name:
                return None  # another thread took this temporary breakpoint
            if spec.of_values:
                _remember(counts, event.family)
                if len(counts.leaves) < _REMEMBERED_LEAVES:
                    counts.leaves |= reached
            counts.hits += 1
            past = counts.hits - counts.base - rule.ignore
            if not error and (past <= 0 or past % rule.every):
                return None
            if request.temporary:
                self._spent[request.id] = request.name
                self._rules.pop(request.id, None)
                self._swap()
        return Hit(
            request.id, spec.normalised(), stop_reason(spec.kind, event), request.trace, request.temporary, error
        )


def _by_name_alone(spec: Spec | None) -> bool:
    """The framework names that were seen on the way answer it, without a walk."""
    return spec is not None and spec.kind is SpecKind.NAME and "#" not in spec.pattern


def _in_phase(spec: Spec, phase: Phase) -> bool:
    if spec.phase is None:
        return spec.of_values or phase is Phase.BEFORE
    return spec.phase is phase


def _is_victim(counts: Counts, kind: SpecKind, event: HitEvent) -> bool:
    """What a stop of this breakpoint was for, or another origin, reached this node: in this backward, in one around or
    inside it, or by way of a leaf that has become so since."""
    if any(number in counts.stopped_in for number in event.family) and _value_matches(kind, event.inherited):
        return True
    if not counts.leaves or counts.leaves.isdisjoint(event.spoilt_leaves):
        return False
    _remember(counts, event.family)
    return True


def _remember(counts: Counts, calls: Sequence[int]) -> None:
    for number in calls:
        if number not in counts.stopped_in and len(counts.stopped_in) >= _REMEMBERED_CALLS:
            del counts.stopped_in[next(iter(counts.stopped_in))]
        counts.stopped_in[number] = None


def _value_matches(kind: SpecKind, counts: tuple[int, int]) -> bool:
    nan, inf = counts
    return (nan > 0 and kind is not SpecKind.INF) or (inf > 0 and kind is not SpecKind.NAN)
