"""Weights that were to be loaded."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence

from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import called_name, inside, nodes_of, scope_at
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_TURNS = frozenset({"t", "transpose", "permute", "swapaxes"})
_PUTS = frozenset({"set_value", "copy_", "assign"})


@detector("not-loaded")
class NotLoaded(Detector):
    """A state dict of which nothing was loaded, without an error (strict=False, Paddle's set_state_dict): its names are
    not those of the model, mostly for a prefix ("module.") that one side has.

    Evidence: the names on both sides, and the prefix without which they are the same.
    Mistaken for: parts of a model that are loaded on purpose (some names are the same: not told), an empty dict (not
    told).
    Cost: none.
    """

    needs = Need.STEPS

    def __init__(self, facts: object) -> None:
        super().__init__(facts)  # type: ignore[arg-type]
        self._loaded = False

    def applied(self) -> bool:
        return self._loaded

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "loaded":
            return
        self._loaded = True
        if not event.unexpected or not event.tensors or len(event.missing) < len(event.tensors):
            return
        prefix, side = _prefix(event.missing, event.unexpected)
        evidence = [
            f"the model has {event.missing[0]!r}, the dict {event.unexpected[0]!r}",
            f"{len(event.missing)} names of the model are not in the dict, {len(event.unexpected)} there are unknown",
        ]
        if prefix:
            evidence.append(f"without the prefix {prefix!r} of {side} they are the same names")
        why = f": the names of {side} begin with {prefix!r}" if prefix else ": no name is the same"
        self.facts.tell(
            Finding(
                0, "not-loaded", "error", 0.93 if prefix else 0.85,
                f"nothing of the state dict was loaded{why}; the weights are what they were",
                cause=self.facts.cause(event.line), evidence=evidence,
            )
        )  # fmt: skip


def _prefix(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str]:
    """The prefix that one side has more, and which; ("", "") where none makes most names the same."""
    for longer, shorter, side in ((unexpected, missing, "the dict"), (missing, unexpected, "the model")):
        names = set(shorter)
        for name in longer[:3]:
            for at, letter in enumerate(name):
                if letter == "." and name[at + 1 :] in names:
                    prefix = name[: at + 1]
                    same = sum(each.startswith(prefix) and each[at + 1 :] in names for each in longer)
                    if 2 * same >= min(len(longer), len(shorter)):
                        return prefix, side
    return "", ""


@detector("not-loaded")
class LoadedAsTheyLie(Detector):
    """Weights of another framework that are transposed only where their shape is another than the model's: a square one
    fits either way, and is taken as it lies (a Linear is [out, in] on torch, [in, out] on Paddle).

    Evidence: the condition, and the square weights of the optimizer's that nothing of it turns.
    Mistaken for: a condition that asks anything beside shapes, or weights without a square one (not told).
    Cost: the source is read, once an optimizer steps.
    """

    needs = Need.STEPS

    def __init__(self, facts: object) -> None:
        super().__init__(facts)  # type: ignore[arg-type]
        self._looked = False
        self._found: list[SourceLine] = []

    def applied(self) -> bool:
        return bool(self._found)

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "step" or self._looked:
            return
        self._looked = True
        self._found = list(_turned_by_shape(getattr(sys.modules.get("__main__"), "__file__", None) or ""))
        square = []
        for each in event.tensors if self._found else ():
            sizes = self.facts.shape(each)
            title = self.facts.title_of(each)
            if len(sizes) == 2 and sizes[0] == sizes[1] > 1 and title.endswith(".weight") and "emb" not in title:
                square.append(f"{title} {list(sizes)}")
        if len(self._found) != 1 or not square:
            return
        line = self._found[0]
        self.facts.tell(
            Finding(
                0, "not-loaded", "warning", 0.85,
                f"{place(line)} transposes weights where their shape differs: {self.facts.some(square)} "
                f"{'is' if len(square) == 1 else 'are'} square, so what was stored is taken as it lies; turn every "
                "weight of a linear layer",
                cause=self.facts.cause(line),
                evidence=[f"the condition is `{self.facts.text_of(line)}`",
                          "a Linear is [out, in] on torch and [in, out] on Paddle, TensorFlow and JAX"],
                next=["info params"],
            )
        )  # fmt: skip


def _turned_by_shape(file: str) -> Iterator[SourceLine]:
    """Each condition on two shapes that does nothing but transpose what is then written as a weight."""
    nodes = nodes_of(file) if is_programs(file) else ()
    elifs = {each.orelse[0] for each in nodes if isinstance(each, ast.If) and len(each.orelse) == 1}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            done, test = node, node.value.test
            value: ast.expr = node.value.body
        elif isinstance(node, ast.If) and node not in elifs and len(node.body) == 1 and not node.orelse:
            inner = node.body[0]
            if not isinstance(inner, ast.Assign):
                continue
            done, test, value = inner, node.test, inner.value
        else:
            continue
        scope, name = scope_at(file, node.lineno), ast.unparse(done.targets[0])
        called = {called_name(each) for each in nodes}
        if isinstance(scope, ast.FunctionDef) and scope.name not in called:
            continue
        if scope is not None and _is_turned(value) and _asks_shapes(test) and _is_written(scope, name, node.lineno):
            yield SourceLine(file, node.lineno, getattr(scope, "name", "<module>"))


def _is_written(scope: ast.AST, name: str, after: int) -> bool:
    """``target.set_value(name)``, ``target.copy_(name)``, ``state[key] = name``."""
    for node in inside(scope):
        if getattr(node, "lineno", 0) <= after:
            continue
        put = node.args[0] if isinstance(node, ast.Call) and called_name(node) in _PUTS and node.args else None
        if put is not None and name in {ast.unparse(each) for each in ast.walk(put) if isinstance(each, ast.expr)}:
            return True
        kept = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
        if kept and any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.value)):  # type: ignore[attr-defined]
            return True
    return False


def _asks_shapes(test: ast.expr) -> bool:
    """``value.shape != target.shape``, also where the number of axes is asked for beside it."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    differs = [
        each for each in parts if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.NotEq)
        and all(".shape" in ast.unparse(side) for side in (each.left, *each.comparators))
    ]  # fmt: skip
    others = [ast.unparse(each) for each in parts if each not in differs]
    return len(differs) == 1 and all("ndim" in each or "dim()" in each or "len(" in each for each in others)


def _is_turned(value: ast.expr) -> bool:
    return (isinstance(value, ast.Attribute) and value.attr in ("T", "mT")) or called_name(value) in _TURNS
