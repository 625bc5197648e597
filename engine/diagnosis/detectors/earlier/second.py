"""A backward that runs into a graph which an earlier one has freed."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from adbg.engine.backends.base import BackwardCall
from adbg.engine.diagnosis.detector import detector
from adbg.engine.diagnosis.detectors.earlier.carried import kept_on, makes_of_itself
from adbg.engine.diagnosis.detectors.earlier.handed import taken_from
from adbg.engine.diagnosis.detectors.earlier.holding import holding
from adbg.engine.diagnosis.detectors.earlier.joined import Call, Joining, Link, above, lines_of, place
from adbg.engine.diagnosis.detectors.earlier.parted import APART, CLEARED, TRAINED, parted_at
from adbg.engine.diagnosis.detectors.earlier.together import (
    calls_now,
    first_of,
    is_before_loop,
    is_carried,
    is_only_backward,
    line_in_scope_of,
    parting,
)
from adbg.engine.diagnosis.source import assigned_on, every_assigned_on, inside, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine, ValueState

_LARGEST = 5_000  # nodes of a graph that is searched
_SAVE_NOTHING = ("Transpose", "Scale", "Cast", "Assign")  # nodes that can be run any number of times
_SCRIPT = "adbg diagnose --only second-backward SCRIPT"
_UNWATCHED = f"`{_SCRIPT}` watches every backward from the start, and names the tensor that joins the two graphs"
_FREED = ("second time", "TensorWrappers of", "backward through the graph a second")


@detector("second-backward")
class SecondBackward(Joining):
    """A backward runs into a graph that an earlier backward has freed: which tensor of the earlier iteration joins
    the two graphs (a hidden state that was not detached, a loss that is summed over iterations, a tensor computed
    once before the loop), or that the same loss is run back twice.

    Evidence: the numbers of the nodes on both sides of the link, the lines that made them, the backward that freed
    them.
    Mistaken for: a graph kept on purpose with retain_graph=True raises nothing and is not told. What is carried on, or
    made before the loop, is no loss to be added up; nor are those of a generator and its critic, which different
    optimizers train.
    Cost: a few values per backward.
    """

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) == 1:
            self.remember(running.call).calls = calls_now()

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is None or len(running.chain) > 1:
            return
        call = running.call
        text = call.error_text(error)
        if not any(words in text for words in _FREED):
            return
        earlier = [each for each in self.earlier if each.number < call.number]
        failed = [key for key, _ in call.failed_nodes(error)]
        if earlier:
            self._judge(call, earlier, failed[0] if failed else None, text)
        else:
            self._unwatched(call, failed[0] if failed else None, text)

    def at_error(self, running: Running, error: BaseException) -> None:
        self.backward_end(running, error)

    def _unwatched(self, call: BackwardCall, failed: int | None, text: str) -> None:
        """The backward that freed it ran before diagnosis was on."""
        roots = call.roots()
        if failed is None and not roots:
            return
        before = self._unseen(call)
        if before is not None and self.links(call, before, failed):
            self._judge(call, [before], failed, text)
            return
        key = failed if failed is not None else roots[0]
        at, forward = self.facts.node(call, key)
        where = f", made at {place(forward)}," if forward is not None else ""
        evidence = [] if forward is None else [f"{at.unique_name} was made by `{self.facts.text_of(forward)}`"]
        self.facts.tell(
            Finding(
                0, "second-backward", "note", 0.45,
                f"an earlier backward, which was not watched, has freed the part of the graph that {at.unique_name}"
                f"{where} is in: what joins it to this one is not known",
                node=at, backward=call.number, forward=forward, cause=None,
                evidence=[*evidence, _shortened(text), _UNWATCHED], next=[_SCRIPT, "b error"],
            )
        )  # fmt: skip

    def _unseen(self, call: BackwardCall) -> Call | None:
        """The last backward that freed its graph, which nobody watched, by the age of the nodes alone; only where the
        source has no other place that it may have been called from."""
        mark = self.facts.backend.keeping.used_up_mark()
        now = self._now(call) or self.remember(call)
        now.calls = now.calls or calls_now()
        if mark is None or now.mark is None or not is_only_backward(now.calls):
            return None
        return Call(0, call.location, mark, frozenset(), 0, 0, stepped=True, calls=now.calls)

    def _judge(self, call: BackwardCall, earlier: Sequence[Call], failed: int | None, text: str) -> None:
        facts, last = self.facts, earlier[-1]
        links = self.links(call, last, failed)
        if not links and failed is not None:
            links = self.links(call, last, None)[:1]
        at = facts.node(call, links[0].older if links else failed if failed is not None else call.roots()[0])
        cause, message, evidence = (
            self._linked(call, earlier, links[0]) if links else self._whole(call, earlier, failed)
        )
        evidence.append(_shortened(text))
        seen = 0.95 if earlier[-1].number else 0.85
        facts.tell(
            Finding(
                0, "second-backward", "error", seen if links else 0.92, message, node=at[0], backward=call.number,
                forward=at[1], cause=facts.cause(cause), evidence=evidence,
                next=["b error", f"b {place(cause)}"] if cause is not None else ["b error"],
            )
        )  # fmt: skip

    def _linked(
        self, call: BackwardCall, earlier: Sequence[Call], link: Link
    ) -> tuple[SourceLine | None, str, list[str]]:
        older, newer = call.describe(link.older), call.describe(link.newer)
        by = next((each for each in earlier if self.is_older(call, link.older, each)), earlier[-1])
        line, name = self.joined_at(call, link)
        what = f"'{name}'" if name else f"the result of {older.unique_name}"
        who = f"backward {by.number} ({place(by.location)})"
        when = f"before backward {by.number}"
        if not by.number:
            who = f"an earlier backward ({place(by.location)}), which was not watched,"
            when = "before the last backward that freed its graph"
        if by.number and not self.is_older(call, link.older, by):
            when = f"after backward {by.number}, of what that had freed"
        evidence = [
            f"{newer.unique_name} ({place(newer.forward)}), made since, takes what {older.unique_name} "
            f"({place(older.forward)}) made {when}",
            f"{who} ran that part of the graph and freed what it had saved",
        ]
        if self.partly is not None:
            left = self.facts.some(self.partly.left)
            return line, (
                f"{left} in {what}, which is put together at {place(line)}, still belongs to the graph of an earlier "
                f"iteration, which the backward at {place(by.location)} has freed: other parts are detached there, "
                f"detach {left}, too"
            ), evidence  # fmt: skip
        first = self._together(call, earlier, by, link.older)
        if first is not None or by.location != call.location or not by.stepped:
            found = self._carried(call, link, by, line, name) or self._before_loop(call)
            if found is not None:
                return *found, evidence
        if first is not None:
            return first, self._shared_by(
                f"several losses of one iteration are run back one after another at {place(call.location)}, and the "
                "first of these calls frees the graph that they share", name
            ), evidence  # fmt: skip
        if line is not None and (text := self.facts.text_of(line)).startswith("@"):
            evidence.append(f"`{text}` keeps what '{name}' returned, with its graph")
        if by.location == call.location:
            used = lines_of(call, link.newer)
            taken = taken_from(self.facts.backend, call, link.older, used, line, name)
            if taken is not None:
                use, inner = taken
                return use, (
                    f"'{inner}', which is handed on in {what} of {place(line)}, still belongs to the graph of that "
                    f"iteration, which the backward at {place(call.location)} has freed: use {inner}.detach() at "
                    f"{place(use)}"
                ), evidence  # fmt: skip
            again = next((each for each in used if line is not None and makes_of_itself(each, line, name)), None)
            if again is not None:  # line made the first one: with that detached, the next one would join them
                return again, (
                    f"{what}, which {place(again)} makes of itself in each iteration, still belongs to the graph of an "
                    f"earlier iteration, which the backward at {place(call.location)} has freed: take {name}.detach() "
                    "there"
                ), evidence  # fmt: skip
            within = lines_of(call, link.older)[-1:]
            if within and not name and line is not None and not every_assigned_on(line.file, line.line):
                line = within[0]  # a call that gives nothing back: what it makes is kept inside
            computed = f" (computed at {place(within[0])})" if within and within[0] != line else ""
            return line, (
                f"{what}, made at {place(line)}{computed}, still belongs to the graph of an earlier iteration, which "
                f"the backward at {place(call.location)} has freed: detach it there, or compute it anew in each "
                "iteration"
            ), evidence  # fmt: skip
        return *self._losses(call, by, link.older, line, name, link.newer), evidence

    def _losses(
        self, call: BackwardCall, by: Call, shared: int, line: SourceLine | None, name: str, newer: int | None = None
    ) -> tuple[SourceLine | None, str]:
        """Two losses at two places that share what ``line`` made: where other parameters are trained by the second one,
        as with a generator and its critic, the first is not to reach what the second is for."""
        parted = parted_at(self.facts, call, shared)
        use = self._first_use(line, name, by) if line is not None else None
        what = f"'{name}'" if name else f"what {place(line)} made"
        taken = self._taken_at(call, newer) if newer is not None and parted == TRAINED else None
        if taken is not None:
            return taken, (
                f"{what} is run back through at {place(by.location)} already, by the loss that trains what made it, "
                f"which has stepped since; the backward at {place(call.location)}, which trains others, goes there "
                f"again: detach it where {place(taken)} takes it"
            )  # fmt: skip
        if use is not None and (by.stepped or parted == CLEARED):
            why = "" if by.stepped else ", and the gradients that this gives to what made it are cleared in between"
            return use, (
                f"{what} is run back through at {place(by.location)} already, which frees its graph before the "
                f"backward at {place(call.location)} needs it{why}: use {name}.detach() at {place(use)}"
            )  # fmt: skip
        shares = (
            f"the backwards at {place(by.location)} and {place(call.location)} share the graph of {what}, and "
            "the first one frees it"
        )
        if use is not None and parted == APART:
            return by.location, (
                f"{shares}: use {name}.detach() at {place(use)} where that loss is not to train what made it (that of "
                "a critic); where both are to, add the losses up and run backward once"
            )  # fmt: skip
        return by.location, self._shared_by(shares, name, by.stepped)

    @staticmethod
    def _shared_by(shares: str, name: str, stepped: bool = False) -> str:
        """With what can be done: weights that a step has changed can not be run back through again."""
        kept = "" if stepped else ", or retain_graph=True in all calls but the last"
        detached = f"{name}.detach()" if name else "what is shared, detached,"
        return (
            f"{shares}: add the losses up and run backward once{kept}; or give {detached} to a loss that is not to "
            "train what made it"
        )

    def _carried(
        self, call: BackwardCall, link: Link, by: Call, line: SourceLine | None, name: str
    ) -> tuple[SourceLine | None, str] | None:
        """A state that one iteration hands on from one backward to the next: both made it and took it."""
        made, used = lines_of(call, link.older), lines_of(call, link.newer)
        level = parting(made, used)
        if level is None:
            return None
        before = by.calls[::-1]
        within = by.location == call.location and level < len(before) and before[level][1] == made[level].line
        if within:  # the function that was called twice hands it on: it is detached once, in there
            inner = next((mine for mine, theirs in zip(made[level + 1 :], used[level + 1 :]) if mine == theirs), None)
            names = assigned_on(inner.file, inner.line) if inner is not None else []
            if inner is not None and names:
                names = holding(self.facts.backend, call, link.older, inner, names)
                line, name = kept_on(inner, names) or (inner, names[-1])
        elif not is_carried(name, made[level], used[level]):
            return None
        what = f"'{name}'" if name else f"the result of {call.describe(link.older).unique_name}"
        return line, (
            f"{what}, made at {place(line)}, is carried with its graph from {place(made[level])} on into what "
            f"{place(used[level])} computes, and the backward at {place(by.location)} has freed that graph: go on from "
            f"{name or 'it'}.detach()"
        )  # fmt: skip

    def _before_loop(self, call: BackwardCall) -> tuple[SourceLine | None, str] | None:
        """What was made before the loop and is freed: whatever else the losses share, no later iteration can go
        through that again."""
        now = self._now(call)
        if now is None or call.count() > _LARGEST:
            return None
        old = {
            key for key in call.order()
            if not call.is_accumulate(key) and is_before_loop(lines_of(call, key), now.calls)
        }  # fmt: skip
        leads: set[int] = set()
        for key in old:
            if key not in leads and _is_freed(call, key):
                leads |= above(call, key)
        links = (
            Link(key, edge.to) for key in call.order() if key not in old
            for edge in call.edges(key) if edge.to in old & leads
        )  # fmt: skip
        link = next(links, None)
        if link is None:
            return None
        line, name = self.joined_at(call, link)
        what = f"'{name}'" if name else f"the result of {call.describe(link.older).unique_name}"
        return line, (
            f"{what}, made at {place(line)} before the loop, is in the graph of every loss in it, and the first "
            "backward frees that: detach it there; or, where what made it is to be trained, compute it anew in each "
            "iteration and add the losses up"
        )  # fmt: skip

    def _now(self, call: BackwardCall) -> Call | None:
        return next((each for each in self.earlier if each.number == call.number), None)

    def _together(self, call: BackwardCall, earlier: Sequence[Call], by: Call, older: int) -> SourceLine | None:
        """The first of two calls at the same line of one iteration."""
        now = self._now(call)
        stepped = any(each.stepped for each in earlier if each.number >= by.number)
        if now is None or stepped or by.location != call.location:
            return None
        made = lines_of(call, older)
        return first_of(by.calls, now.calls, made)

    def _taken_at(self, call: BackwardCall, newer: int) -> SourceLine | None:
        """The line that made node ``newer``, in the innermost function that the backward is called from, too."""
        now = self._now(call)
        used = lines_of(call, newer)[::-1]
        return next((each for each in used if now is not None and line_in_scope_of(each, now.calls)), None)

    @staticmethod
    def _first_use(line: SourceLine, name: str, by: Call) -> SourceLine | None:
        """The first line after ``line`` that takes the variable, of those up to the first backward."""
        scope, before = scope_at(line.file, line.line), line_in_scope_of(line, by.calls)
        if not name or scope is None or before is None:
            return None
        uses = sorted(
            node.lineno
            for node in inside(scope)
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == name and line.line < node.lineno <= before.line
        )  # fmt: skip
        return SourceLine(line.file, uses[0], line.function) if uses else None

    def _whole(
        self, call: BackwardCall, earlier: Sequence[Call], failed: int | None
    ) -> tuple[SourceLine | None, str, list[str]]:
        root = call.roots()[0]
        by = next((each for each in earlier if self.is_older(call, root, each)), earlier[-1])
        by = next((each for each in earlier if each.root == call.address(root)), by)
        info = call.describe(root)
        same = by.root == call.address(root)
        evidence = [f"no node of this graph was made since backward {by.number} at {place(by.location)} began"]
        if not same and (found := self._before_loop(call)) is not None:
            return *found, evidence
        if not same:
            first = self._together(call, earlier, by, root)
            shared = lines_of(call, failed) if failed is not None else []
            here = next((each for each in reversed(shared) if line_in_scope_of(each, by.calls)), None)
            names = assigned_on(here.file, here.line) if here is not None else []
            if here is not None and failed is not None:
                names = holding(self.facts.backend, call, failed, here, names)
            if first is None and by.location != call.location and failed is not None:
                return *self._losses(call, by, failed, here, names[-1] if names else ""), evidence
            which = f"the backwards at {place(first or by.location)} and {place(call.location)}"
            if by.location == call.location:
                which = f"the losses that are run back one after another at {place(first or by.location)}"
            shares = f"{which} share a part of the graph, and the first call frees it"
            return first or by.location, self._shared_by(shares, names[-1] if names else ""), evidence
        if by.location == call.location:
            stack = call.forward_stack(root)[0]
            here = call.location
            mine = [
                each for each in stack if here is not None and each.function == here.function and each.file == here.file
            ]
            line = mine[0] if mine else stack[0] if stack else here
            return line, (
                f"the loss made at {place(line)} ({info.unique_name}) is run back again at {place(here)}, but it was "
                "computed only once: compute it anew before each backward"
            ), evidence  # fmt: skip
        return call.location, (
            f"the loss of {info.unique_name} is run back a second time at {place(call.location)}; the backward at "
            f"{place(by.location)} has freed its graph already"
        ), evidence  # fmt: skip


def _shortened(text: str) -> str:
    return textwrap.shorten(text.strip().split("\n", 1)[0], 300, placeholder=" …")


def _is_freed(call: BackwardCall, key: int) -> bool:
    """Whether a node had saved what it needs, and has it no more. Where that is hidden, all but those have that save
    nothing."""
    if call.saved_hidden(key):
        return not call.name(key).startswith(_SAVE_NOTHING)
    return any(each.state is ValueState.FREED for each in call.saved(key))
