"""Weights that were to be loaded."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence

from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import assigned_names, called_name, inside, nodes_of, scope_at
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_TURNS = frozenset({"t", "transpose", "permute", "swapaxes"})
_TAKES = frozenset({
    "tensor", "to_tensor", "as_tensor", "from_numpy", "array", "asarray", "get", "pop", "numpy", "float", "astype",
    "detach", "cpu", "clone", "copy", "contiguous", "load",
})  # fmt: skip
_LOADS = frozenset({"load_state_dict", "set_state_dict", "set_dict"})
_LIBRARIES = ("np", "numpy", "torch", "paddle", "fw", "jnp", "tf", "F")
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
        tables = _tables(self._found[0].file) if self._found else set()
        for each in event.tensors if self._found else ():
            sizes = self.facts.shape(each)
            title = self.facts.title_of(each)
            layer, _, kind = title.rpartition(".")
            if kind != "weight" or "emb" in title or layer.rpartition(".")[2] in tables:
                continue
            if len(sizes) == 2 and sizes[0] == sizes[1] > 1:
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
    """Each condition on two shapes of which one side transposes what is then written as a weight, and the other does
    not."""
    nodes = nodes_of(file) if is_programs(file) else ()
    called = {called_name(each) for each in nodes}
    elifs = {each.orelse[0] for each in nodes if isinstance(each, ast.If) and len(each.orelse) == 1}
    for node in nodes:
        if not isinstance(node, (ast.If, ast.IfExp)) or node in elifs:
            continue
        scope = scope_at(file, node.lineno)
        if scope is None or (isinstance(scope, ast.FunctionDef) and scope.name not in called):
            continue
        differs = _shapes_differ(node.test, scope)
        if differs is None:
            continue
        one, other = (each if isinstance(each, list) else [each] for each in (node.body, node.orelse))
        turned, left = (one, other) if differs else (other, one)
        if not any(_turns(each) for each in turned) or any(_turns(each) for each in left):
            continue
        values = [each for part in turned for each in _turned_in(part) if _is_stored(each, node.test, scope)]
        if isinstance(node, ast.IfExp):
            written = bool(values) and _value_is_written(file, node, scope)
        else:
            written = not any(isinstance(each, ast.Raise) for each in ast.walk(node)) and any(
                _value_is_written(file, each, scope, node.lineno) for each in values
            )
        if written:
            yield SourceLine(file, node.lineno, getattr(scope, "name", "<module>"))


def _shapes_differ(test: ast.expr, scope: ast.AST) -> bool | None:
    """Whether ``test`` is true where two shapes differ (``value.shape != target.shape``, also where the number of axes
    is asked for beside it), or, False, where they are alike; None where it asks for anything else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _shapes_differ(test.operand, scope)
        return None if inner is None else not inner
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    asked = []
    for each in parts:
        negated = isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not)
        compared = each.operand if isinstance(each, ast.UnaryOp) and negated else each
        if (
            isinstance(compared, ast.Compare) and isinstance(compared.ops[0], (ast.Eq, ast.NotEq))
            and all(_is_shape(side, scope) for side in (compared.left, *compared.comparators))
        ):  # fmt: skip
            asked.append(isinstance(compared.ops[0], ast.NotEq) is not negated)
        elif not _asks_for_two_axes(each):
            return None
    return asked[0] if len(asked) == 1 else None


def _asks_for_two_axes(test: ast.expr) -> bool:
    """``value.ndim == 2``, ``len(value.shape) > 1``: other numbers are not those of linear layers."""
    text = ast.unparse(test)
    known = isinstance(test, ast.Compare) and any(word in text for word in ("ndim", "dim()", "len("))
    return known and text.endswith(("== 2", ">= 2", "> 1"))


def _is_stored(turned: ast.expr, test: ast.expr, scope: ast.AST) -> bool:
    """Whether it is the tensor whose shape is asked for that is turned, and no result of a computation."""
    of = turned.value if isinstance(turned, ast.Attribute) else None
    if isinstance(turned, ast.Call):
        method = isinstance(turned.func, ast.Attribute) and ast.unparse(turned.func.value) not in _LIBRARIES
        of = turned.func.value if method else turned.args[0] if turned.args else None  # type: ignore[attr-defined]
    if of is None:
        return False
    name = ast.unparse(of)
    shapes = {ast.unparse(each) for each in ast.walk(test) if isinstance(each, ast.expr)}
    for node in inside(scope):
        if isinstance(node, ast.Assign) and shapes & set(assigned_names(node)):
            shapes |= {ast.unparse(each) for each in ast.walk(node.value) if isinstance(each, ast.expr)}
    made = [
        called_name(node.value) for node in inside(scope)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and name in _names_given(node)
    ]  # fmt: skip
    return name in shapes and all(each in _TAKES or each in _TURNS for each in made)


def _names_given(node: ast.Assign) -> set[str]:
    return {ast.unparse(each) for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _is_shape(side: ast.expr, scope: ast.AST) -> bool:
    """``list(value.shape)``, or a variable that was given one."""
    if ".shape" in ast.unparse(side):
        return "len(" not in ast.unparse(side)
    if not isinstance(side, ast.Name):
        return False
    for node in inside(scope):
        if isinstance(node, ast.Assign) and side.id in assigned_names(node):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple):
                if not isinstance(value, ast.Tuple) or len(target.elts) != len(value.elts):
                    return False  # ``rows, columns = value.shape``: sizes
                at = next((i for i, each in enumerate(target.elts) if ast.unparse(each) == side.id), None)
                value = value.elts[at] if at is not None else value
            return ".shape" in ast.unparse(value)
    return False


def _turned_in(node: ast.AST) -> list[ast.expr]:
    return [each for each in ast.walk(node) if isinstance(each, ast.expr) and _is_turned(each)]


def _turns(node: ast.AST) -> bool:
    return bool(_turned_in(node))


def _value_is_written(file: str, value: ast.expr, scope: ast.AST, after: int = 0, deep: int = 2) -> bool:
    """Whether ``value`` becomes a weight: it is put into one at once, or by the name that it is given, or it is what
    the function returns, whose call does that. ``after``: the line behind which a name counts; ``deep``: how many
    functions may return it."""
    for node in inside(scope):
        if not isinstance(node, (ast.Assign, ast.Expr, ast.Return)) or node.value is None:
            continue
        if all(each is not value for each in ast.walk(node.value)):
            continue
        if isinstance(node, ast.Return):
            name = getattr(scope, "name", "")
            calls = [each for each in nodes_of(file) if isinstance(each, ast.Call) and called_name(each) == name]
            around = [(each, scope_at(file, each.lineno)) for each in calls]
            return deep > 0 and any(
                at is not None and at is not scope and _value_is_written(file, each, at, deep=deep - 1)
                for each, at in around
            )
        if isinstance(node, ast.Expr):
            return any(called_name(each) in _PUTS and each is not value for each in ast.walk(node.value))
        if isinstance(node.targets[0], ast.Subscript):
            return _is_loaded(file, node.targets[0])
        return _is_written(file, scope, ast.unparse(node.targets[0]), after or node.lineno)
    return False


def _is_loaded(file: str, target: ast.Subscript) -> bool:
    """``state[name] = …``: a dictionary, in a program that loads one, and not by a name that is written there."""
    loads = any(called_name(each) in _LOADS for each in nodes_of(file))
    return loads and isinstance(target.value, ast.Name) and not isinstance(target.slice, ast.Constant)


def _is_written(file: str, scope: ast.AST, name: str, after: int) -> bool:
    """``target.set_value(name)``, ``target.copy_(name)``, ``state[key] = name``."""
    for node in inside(scope):
        if getattr(node, "lineno", 0) <= after:
            continue
        put = node.args[0] if isinstance(node, ast.Call) and called_name(node) in _PUTS and node.args else None
        if put is not None and name in {ast.unparse(each) for each in ast.walk(put) if isinstance(each, ast.expr)}:
            return True
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        kept = isinstance(target, ast.Subscript) and _is_loaded(file, target)
        if kept and any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.value)):  # type: ignore[attr-defined]
            return True
    return False


def _is_turned(value: ast.expr) -> bool:
    if isinstance(value, ast.Attribute):
        return value.attr in ("T", "mT")
    given = value.args if isinstance(value, ast.Call) else []
    axes = [each for arg in given for each in ast.walk(arg) if isinstance(each, ast.Constant)]
    return called_name(value) in _TURNS and len(axes) <= 2  # of two axes


def _tables(file: str) -> set[str]:
    """Attributes that are embeddings, whose weights lie alike in all frameworks."""
    found = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = (
                zip(target.elts, value.elts) if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                else [(target, value)]
            )  # fmt: skip
            found |= {
                each.attr for each, given in pairs
                if isinstance(each, ast.Attribute) and called_name(given) == "Embedding"
            }  # fmt: skip
    return found
