"""What an optimizer holds and that takes no gradient."""

from __future__ import annotations

import ast
import os
from dataclasses import replace
from typing import Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.by_name import Filter, UnreadableError, filters_in, near
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector
from adbg.engine.diagnosis.detectors.training.source import freezing, place
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.ledger import Held, Ledger, Optimizer
from adbg.engine.diagnosis.source import tree_of
from adbg.engine.diagnosis.variables import made_at
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine


@detector("frozen-in-optimizer")
class Frozen(LoopDetector):
    """A tensor that an optimizer holds and that takes no gradient (requires_grad=False, stop_gradient=True): the line
    that froze it, or that made it without.

    Evidence: it took none at any step, and had none left of before: torch steps whatever has a .grad.
    Mistaken for: a network that is frozen between its backward and its step (not told on torch, which steps it), layers
    that are frozen on purpose, given to the optimizer with the rest: parameters of a module are told as a note. Plain
    tensors beside others that do take gradients may be meant to be fixed: a warning that says so.
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._made: dict[int, SourceLine] = {}  # id of a tensor that came frozen -> where its variable got it
        self._statistics: set[Held] = set()

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "made":
            for at in tuple(event.frozen)[:8]:
                line = made_at(event.tensors[at], event.line)
                if line is not None:
                    self._made[id(event.tensors[at])] = line
        elif event.what == "stepped" and event.frozen and optimizer is not None and optimizer.steps == 2:
            self._look(optimizer)  # its model may be gone at the end

    def _look(self, optimizer: Optimizer) -> None:
        found = self.facts.statistics()
        self._statistics |= {held for held in optimizer.held if id(held.ref()) in found}

    def end(self) -> None:
        for optimizer in self.ledger.optimizers.values():
            frozen = [held for held in optimizer.held if held.frozen and held.frozen == optimizer.steps]
            if frozen:
                self._look(optimizer)  # of a part that ran late
            frozen = [held for held in frozen if held not in self._statistics]
            if optimizer.steps >= 2 and frozen:
                self._tell(optimizer, frozen)

    def _tell(self, optimizer: Optimizer, frozen: list[Held]) -> None:
        plain = [held for held in frozen if not held.named]
        shown = plain or frozen
        names = self.facts.some([held.name for held in shown])
        flag = "stop_gradient=True" if self.facts.backend.name == "paddle" else "requires_grad=False"
        if plain:
            # Who made the others take gradients knows how: random features are fixed on purpose.
            some = any(not held.named and not held.frozen for held in optimizer.held)
            severity, confidence = ("warning", 0.6) if some else ("error", 0.9)
            text = f"{names} (no parameter of a module) have {flag}: {optimizer.kind} never changes them"
            text += ", which is right if they are meant to be fixed" if some else ""
        elif len(frozen) == len(optimizer.held):
            severity, confidence = "error", 0.9
            text = f"all that {optimizer.kind} holds has {flag}: it never changes anything"
        else:
            severity, confidence = "note", 0.3
            text = f"{optimizer.kind} holds {names} with {flag}: they stay as they are, which is right if frozen"
        born = next((self._made[id(held.ref())] for held in plain if id(held.ref()) in self._made), None)
        names_of = [optimizer.variable.name, *(held.name for held in shown)]
        cause = (freezing(files_of(self.ledger, optimizer), names_of) if not born else None) or born or optimizer.made
        evidence = [f"{held.name} {held.shape}: {flag} at all {held.frozen} steps" for held in shown[:4]]
        evidence.append(f"the optimizer was made in {place(optimizer.made)}")
        told = self.facts.tell(
            Finding(
                0, "frozen-in-optimizer", severity, confidence, text, cause=self.facts.cause(cause), evidence=evidence,
                next=["b backward-end"],
            )
        )  # fmt: skip
        for found in list(self.facts.findings.values()) if severity == "error" else ():
            if found.kind == "zero-grad" and optimizer.kind in found.message:  # neither clears nor steps what is frozen
                self.facts.tell(replace(found, victim_of=told))


@detector("frozen-in-optimizer", "not-optimized")
class FilteredByName(LoopDetector):
    """Parameters are frozen, or left out of the optimizer, by a filter on their names, and what the filter asks for is
    in no name of the model: what was to be trained is not.

    Evidence: the texts in the condition, the names of the model, that these are frozen (or not held) as the condition
    says, and what is written nearly like the text: a name, the class of a module or an attribute of it.
    Mistaken for: filters of which each text is in some name, lists for several models of which some are (not told),
    groups for weight decay, which leave nothing out (not told). Where nothing is written like the text it is a note.
    Cost: the source of the model and of the loop, at the second step of an optimizer.
    """

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what != "stepped" or optimizer is None or optimizer.steps != 2:
            return
        filters = [each for file in files_of(self.ledger, optimizer) for each in filters_in(file)]
        held = {id(tensor) for tensor in event.tensors}
        for seen in list(self.ledger.modules.values()) if filters else ():
            root = seen.ref()
            with suppress(Exception):  # a property of the user's that raises
                weights = dict(root.named_parameters()) if root is not None else {}
                if held & set(map(id, weights.values())):
                    self._judge_all(filters, root, weights, held)

    def _judge_all(self, filters: list[Filter], root: Any, weights: dict[str, Any], held: set[int]) -> None:
        fixed = self.facts.statistics()
        weights = {name: each for name, each in weights.items() if id(each) not in fixed}
        free = {name for name, each in weights.items() if self.facts.backend.meta(each).requires_grad}
        given = {name for name, each in weights.items() if id(each) in held}
        for each in filters:
            tree = tree_of(each.line.file)
            with suppress(UnreadableError):
                if tree is not None:
                    self._judge(each, tree, root, list(weights), given if each.does == "give" else free)

    def _judge(self, found: Filter, tree: ast.AST, root: Any, names: list[str], trained: set[str]) -> None:
        """``trained``: the names of what takes gradients, or is held."""
        meant = {name for name in names if found.trains(name, tree)}
        rest = [name for name in names if name not in trained]
        as_it_says = {
            "set": meant == trained, "give": meant == trained, "free": meant <= trained,
            "freeze": not (set(names) - meant) & trained,
        }[found.does]  # fmt: skip
        if not rest or not as_it_says:
            return
        paths = [name.split(".", at)[-1] for name in names for at in range(name.count(".") + 1)]  # of a part, too
        for question in found.questions(tree):
            for constant in question.lost(paths) if question.wanted else ():
                self._tell(found, constant, question.line, self._written_so(constant, root, rest), names, rest, trained)

    @staticmethod
    def _written_so(constant: str, root: Any, rest: list[str]) -> str:
        """What is written nearly like the text, of what is not trained."""
        name = near(constant, rest)
        if name:
            return f"{name} is written nearly so"
        every = root.named_modules() if hasattr(root, "named_modules") else root.named_sublayers(include_self=True)
        for path, part in every:
            inside = [name for name in rest if path and name.startswith(f"{path}.")]
            kind = type(part).__name__
            if inside and near(constant, [kind]):
                return f"{path} is a {kind}, whose parameters are {Facts.some(inside)}"
            keys = [key for key in vars(part) if not key.startswith("_") and key != "training"] if inside else []
            like = next((key for key in keys if near(constant, [key])), "")
            if like:
                return f"{path}, a {kind}, has {like}, and its parameters are {Facts.some(inside)}"
        return ""

    def _tell(
        self, found: Filter, constant: str, line: int, like: str, names: list[str], rest: list[str], trained: set[str]
    ) -> None:
        gives = found.does == "give"
        what = "given to the optimizer" if gives else "trained"
        so = "left out" if gives else "frozen"
        evidence = [
            f"the names of the model: {self.facts.some(names, 8)}",
            f"{len(trained)} of {len(names)} are {what}, as the condition says: `{ast.unparse(found.condition)}`",
        ]
        at = replace(found.line, line=line)
        self.facts.tell(
            Finding(
                0, "not-optimized" if gives else "frozen-in-optimizer", "error" if like else "note",
                0.85 if like else 0.45,
                f"no parameter has {constant!r} in its name as the filter in {place(at)} asks for it: "
                f"{Facts.some(rest)} {'is' if len(rest) == 1 else 'are'} {so}{'; ' * bool(like)}{like}",
                cause=self.facts.cause(at), evidence=evidence, next=["b backward-end"],
            )
        )  # fmt: skip


def files_of(ledger: Ledger, optimizer: Optimizer) -> list[str]:
    """Those in which something may have been frozen: of the loop, and of the classes of the models."""
    lines = (optimizer.made, optimizer.step_line, ledger.backward_line)
    found = dict.fromkeys(line.file for line in lines if line is not None)
    for seen in ledger.modules.values():
        with suppress(Exception):
            file = os.path.abspath(vars(type(seen.ref()))["__init__"].__code__.co_filename)
            if not is_library(file):
                found[file] = None
    return list(found)
