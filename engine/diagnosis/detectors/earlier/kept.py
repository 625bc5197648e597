"""Graphs that variables of the program keep from iteration to iteration."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.earlier.records import Record
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.inspect.memory.growth import LOOKS, MOST_NODES, Held, Look, grows, is_bounded, owners_first, size_of
from adbg.engine.inspect.memory.owners import Group, groups_of, owner_of_group, reach_of
from adbg.engine.protocol.messages import Finding, Owner
from adbg.engine.python.user_code import user_frame
from adbg.engine.session.running_call import Running

_FIRST = (2, 4, 6)
_MANY = 16  # tensors with graphs, of a variable that is emptied
_FEW = 4  # of the tensors of a variable, which are looked into
_NEAR = 64  # nodes of such a sum that are looked at
_BELOW = 12  # nodes of what is computed of another variable
_LARGEST = 5_000  # nodes of a backward whose addresses are remembered
_ROOM = 1_000  # items: a replay memory, which is filled for most of a run
_SURE = 24  # iterations over which what grows is no window of the usual sizes


@detector("graph-kept")
class GraphKept(Detector):
    """A variable keeps the graphs of earlier iterations, so that memory grows: ``losses.append(loss)``, ``total +=
    loss``, a dictionary of outputs that nobody empties, a replay memory of whole records (the line is that which hands
    one on with its graph).

    Evidence: how many tensors with a graph the variable held at three looks, their bytes, the line that puts them
    there.
    Mistaken for: a list that is filled anew for each backward, the steps of an episode, of which there may be more and
    more (nothing stays from look to look); a window of fixed size (a deque with room for less than 1,000) or a list
    that is emptied, which do not keep their pace; until 24 iterations are over it is a warning. It stays one where a
    list of 16 or more is emptied whose graphs a backward had gone through already: nothing more could be had of them.
    What a later backward goes through is taken back.
    Cost: 1-100 ms at iterations 2, 4, 6, and then at each half as many again.
    """

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._looks: list[Look] = []
        self._held = Held()
        self._mark: int | None = None
        self._next = _FIRST[0]
        self._told: dict[str, tuple[int, int]] = {}  # by variable, (id, iteration at first)
        self._ran: set[int] = set()  # addresses of the nodes of the backward at hand and of the one before
        self._spent: set[str] = set()  # variables with a graph among these
        self._used: set[str] = set()  # of these, sums and the like that went on growing
        self._emptied: set[str] = set()

    def backward_begin(self, running: Running) -> None:
        """Only where something was told: what keeps its nodes keeps their addresses, too."""
        if len(running.chain) > 1 or not self._told.keys() - self._spent or self.facts.iteration < self._next - 1:
            return
        call = running.call
        if call.count() <= _LARGEST:
            self._ran.update(map(call.address, call.order()))

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is not None or len(running.chain) > 1:
            return
        iteration = self.facts.iteration
        if self._mark is None:
            self._mark = self.facts.backend.made_so_far()
        if iteration >= self._next:
            self._next = next((each for each in _FIRST if each > iteration), iteration * 3 // 2)
            self._look(iteration)
            self._ran.clear()

    def _look(self, iteration: int) -> None:
        backend = self.facts.backend
        reach = reach_of([backend], user_frame(sys._getframe())).walk()
        groups: dict[str, Group] = {}
        try:
            groups = self._held.renamed(groups_of(reach, [*reach.tensors.values(), *reach.nodes.values()]))
            sizes = {}
            for name, group in groups.items():
                first = next(iter(group.members.values()))
                known = backend.is_tensor(first) or backend.node_address(first) is not None
                sizes[name] = size_of(group, backend if known else None, self._mark)
            sizes = self._held.compared(groups, sizes)
            self._looks = [*self._looks[1 - LOOKS :], Look(iteration, sizes)]
            self._mark = backend.made_so_far()
            found = {
                name: groups[name]
                for name in groups
                if (by := grows(self._looks, name)) and not is_bounded(groups[name].way, _ROOM)
                and (by == "nodes" or sizes[name].graphs > self._looks[0].sizes[name].graphs)
            }  # fmt: skip
            self._used |= {name for name in self._spent & found.keys() if grows(self._looks, name) == "nodes"}
            self._spent |= {name for name in self._told if name in groups and self._ran_through(groups[name])}
            for name in owners_first(found):
                if name in self._emptied:
                    continue
                owner, record = owner_of_group(found[name], backend), Record(reach, found[name], backend)
                self._grew(name, owner, grows(self._looks, name) == "nodes", record)
            self._fold({name: found[name] for name in found if name in self._told})
            for name in set(self._told) - set(found) - self._emptied:
                if name in groups and self._is_beyond(groups[name]):
                    continue
                now, before = sizes.get(name), self._looks[-2].sizes.get(name)
                most = max((look.sizes[name].graphs for look in self._looks if name in look.sizes), default=0)
                fewer = now is None or (before is not None and now.tensors < before.tensors)
                if fewer and most >= _MANY and name in self._spent:
                    self._was_emptied(name, f"tensors with their graphs until it is emptied, {most} and more of them")
                elif name in self._used and (now is None or (before is not None and now.older < before.older)):
                    until = f"the graphs of all iterations until it begins anew, {self._looks[-2].iteration} and more"
                    self._was_emptied(name, until)
                elif now is None or before is None or (now.tensors <= before.tensors and now.older <= before.older):
                    self.facts.take_back(self._told.pop(name)[0])
        finally:
            groups.clear()
            reach.release()

    def _fold(self, groups: dict[str, Group]) -> None:
        """What is computed of another one that is kept, and of which that is not, follows from it: ``codebook = sums /
        counts``, where ``sums`` carries the graphs on."""
        only = {name: next(iter(each.members.values())) for name, each in groups.items() if len(each.members) == 1}
        nodes = {name: self._node(value) for name, value in only.items()}
        below = {name: self._below(value) for name, value in only.items()} if len(only) > 1 else {}
        for name in below:
            for other, node in nodes.items():
                if other != name and node in below[name] and nodes[name] not in below.get(other, ()):
                    known = self.facts.findings.get(self._told[name][0])
                    if known is not None and known.victim_of is None and nodes[name] != node:
                        self.facts.tell(replace(known, victim_of=self._told[other][0]))
                    break

    def _node(self, value: Any) -> int | None:
        return self.facts.backend.node_address(getattr(value, "grad_fn", None))

    def _below(self, value: Any) -> set[int]:
        """Addresses of nodes near it: what it was computed of last."""
        graph = self.facts.backend.graph_of([value]) if self.facts.backend.has_graph(value) else None
        return set(map(graph.address, graph.order()[1:_BELOW])) if graph is not None else set()

    def _ran_through(self, group: Group) -> bool:
        """Whether the backward at hand, or the one before, went through the graph of a tensor of a variable: of one of
        the last that it was given, which may be met first."""
        backend = self.facts.backend
        members = list(group.members.values()) if self._ran else []
        for value in [*members[:_FEW], *members[-_FEW:]]:
            node = getattr(value, "grad_fn", None) if backend.is_tensor(value) else value
            if node is not None and backend.node_address(node) in self._ran:
                return True
            if len(group.members) <= _FEW and backend.is_tensor(value) and self._leads_there(value):
                return True
        return False

    def _leads_there(self, value: Any) -> bool:
        """Whether what backward went through is just below a tensor: a sum of losses."""
        graph = self.facts.backend.graph_of([value]) if self.facts.backend.has_graph(value) else None
        if graph is None or graph.count() > _LARGEST:
            return False
        return any(graph.address(key) in self._ran for key in graph.order()[:_NEAR] if not graph.is_accumulate(key))

    def _is_beyond(self, group: Group) -> bool:
        """A sum whose graph has more nodes than are looked at: the older ones are out of sight, and not gone."""
        tensors = [each for each in group.members.values() if self.facts.backend.is_tensor(each)]
        graph = self.facts.backend.graph_of(tensors) if 0 < len(tensors) <= _FEW else None
        return graph is not None and graph.count() > MOST_NODES

    def _was_emptied(self, name: str, what: str) -> None:
        self._emptied.add(name)
        known = self.facts.findings.get(self._told[name][0])
        why = "backward had gone through these graphs already: they are of no more use"
        if known is None or why in known.evidence:  # of another variable that the same line fills
            return
        self.facts.tell(
            replace(
                known, severity="warning", confidence=0.8,
                message=f"{known.message.partition(' keeps ')[0]} keeps {what}: memory grows until then; keep "
                "loss.item() or a detached tensor",
                evidence=[*known.evidence, why],
            )
        )  # fmt: skip

    def _grew(self, name: str, owner: Owner, nodes: bool, record: Record) -> None:
        facts = self.facts
        iteration = facts.iteration
        grown = next((each for each in facts.findings.values() if each.kind == "graph-grows"), None)
        id, since = self._told.get(name, (0, self._looks[0].iteration))
        line = owner.filled or record.written or owner.where
        if line is None and grown is not None:
            return
        counts = [(look.iteration, look.sizes[name]) for look in self._looks]
        held = ", ".join(f"{size.older if nodes else size.graphs} (iteration {when})" for when, size in counts)
        sure = iteration - since >= _SURE
        what = "the graphs of all earlier iterations" if nodes else f"{counts[-1][1].graphs} tensors with their graphs"
        gained, over = counts[-1][1].graphs - counts[0][1].graphs, counts[-1][0] - counts[0][0]
        pace = "one more each iteration" if nodes or gained >= over // 2 else f"{gained} more in {over} iterations"
        message = f"{record.path} keeps {what}, {pace}: memory grows; keep loss.item() or a detached tensor"
        evidence = [
            f"{'nodes of earlier iterations' if nodes else 'tensors with a graph'} that {record.path} holds: {held}",
            f"bytes of the tensors themselves: {counts[0][1].bytes} then, {counts[-1][1].bytes} now",
        ]
        if owner.filled_text:
            evidence.append(f"put there by: {owner.filled_text}")
        handed = record.handed_at(owner.filled) if owner.filled is not None else None
        if handed is None and owner.filled is not None:
            handed = record.keyed_at(owner.filled)
        if handed is not None and owner.filled is not None:
            line = handed.line
            evidence.append(f"which {place(owner.filled)} is handed at {place(line)}: {handed.text}")
        id = facts.tell(
            Finding(
                id, "graph-kept", "error" if sure else "warning", 0.93 if sure else 0.86, message,
                cause=facts.cause(line),
                evidence=evidence, next=["why alive", "info memory"],
                # Memory is lost from then on, but nothing is wrong yet: what makes results wrong comes first.
                iteration=iteration if sure else since, victim_of=grown.id if grown is not None and nodes else None,
            )
        )  # fmt: skip
        self._told[name] = (id, since)
