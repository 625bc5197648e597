"""Weights of another framework that are taken as they lie: nothing in the program turns them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import called_name, inside, nodes_of, parameters_of, tree_of
from adbg.engine.diagnosis.values import attribute
from adbg.engine.live_objects import of_types
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

#: By framework: those whose linear weights lie the other way round, by their names in identifiers.
_OTHERS = {
    "paddle": re.compile(r"(?:^|_)(?:py)?torch(?:$|_)", re.I),
    "torch": re.compile(r"(?:^|_)(?:paddle|keras|tensorflow|flax)(?:$|_)", re.I),
}
_NAMES = {"paddle": "torch", "torch": "Paddle, Keras and Flax"}
_PUTS = frozenset({"set_value", "copy_", "assign"})
_LOADS = frozenset({"load_state_dict", "set_state_dict", "set_dict"})
_FROM_ARRAYS = frozenset({"to_tensor", "from_numpy", "as_tensor", "tensor"})
_WORD = re.compile(r"\w+")
_TAKES = re.compile(r"load|import|convert|port|from|restore|transfer|take|read", re.I)
_RANDOM = re.compile(r"^(?:randn?|random|normal_?|uniform_?|standard_normal|xavier|kaiming|trunc_normal_?)", re.I)
_TURNS = frozenset({"t", "transpose", "permute", "swapaxes", "moveaxis"})
_PRODUCTS = frozenset({"matmul", "dot", "mm", "einsum", "linear", "inner"})


@detector("not-loaded")
class LoadedUnturned(Detector):
    """Weights of another framework that a function takes over by name (``load_from_torch``) without turning any: a
    linear weight is [out, in] on torch, and [in, out] on Paddle, Keras and Flax. Where all of them are square they fit,
    and no error tells.

    Evidence: the line that writes them, square weights of linear layers, and that the program takes no
    transpose but in products.
    Mistaken for: what was turned before it was stored (the program's names, which say where it comes from, cannot
    tell), values that are computed or drawn (not told). A note where only a docstring names the other framework.
    Cost: the source is read, and live layers are looked up, once an optimizer steps.
    """

    needs = Need.STEPS

    def __init__(self, facts: object) -> None:
        super().__init__(facts)  # type: ignore[arg-type]
        self._looked = False
        self._found: list[_Put] = []

    def applied(self) -> bool:
        return bool(self._found)

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "step" or self._looked:
            return
        self._looked = True
        backend = self.facts.backend
        file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        others = _OTHERS.get(backend.name)
        self._found = _taken_over(file, others) if others is not None and is_programs(file) else []
        if len({each.line.function for each in self._found}) != 1:
            return
        layers = of_types(lambda kind: kind.__name__ == "Linear")
        weights = [each for each in (attribute(layer, "weight") for layer in layers) if backend.is_tensor(each)]
        square = [sizes for each in weights if len(sizes := self.facts.shape(each)) == 2 and sizes[0] == sizes[1] > 1]
        if not square:
            return
        line, named = self._found[0].line, self._found[0].named
        self.facts.tell(
            Finding(
                0, "not-loaded", "warning" if named else "note", 0.8 if named else 0.45,
                f"{place(line)} takes over weights of another framework as they lie: a linear weight is turned round "
                f"on {_NAMES[backend.name]}, and {len(square)} of the model {'is' if len(square) == 1 else 'are'} "
                f"square ({list(square[0])}), which fits either way; transpose them",
                cause=self.facts.cause(line),
                evidence=["a Linear is [out, in] on torch and [in, out] on Paddle, Keras and Flax",
                          f"they are written by `{self.facts.text_of(line)}`, and nothing in the program turns one"],
                next=["info params"],
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Put:
    """A line that writes a weight by a name in a loop. ``named``: what is written is called after another framework, or
    the function is; else the words of the file alone say so."""

    line: SourceLine
    named: bool


def _taken_over(file: str, others: re.Pattern[str]) -> list[_Put]:
    """In functions that are called, of values that are given to them or made tensors of: none that they compute or
    draw; [] where the program turns weights anywhere."""
    functions = [each for each in nodes_of(file) if isinstance(each, ast.FunctionDef)]
    called = {called_name(each) for each in nodes_of(file)}
    puts = {each: list(_puts_in(each)) for each in functions if each.name in called}
    loading = [each for each, found in puts.items() if found and not any(map(_draws, inside(each)))]
    if _turns(nodes_of(file)):
        return []
    tree = tree_of(file)
    texts = [ast.get_docstring(each) or "" for each in (*([tree] if tree is not None else ()), *functions)]
    told = any(others.search(word) for text in texts for word in _WORD.findall(text))
    found = []
    for function in loading:
        loads = others.search(function.name) is not None and _TAKES.search(function.name) is not None
        loads = loads or any(others.search(name) for name in parameters_of(function))
        for line, value in puts[function]:
            named = loads or any(others.search(each.id) for each in ast.walk(value) if isinstance(each, ast.Name))
            arrays = any(called_name(each) in _FROM_ARRAYS for each in ast.walk(value))
            if named or (told and arrays):
                found.append(_Put(SourceLine(file, line, function.name), named))
    return found


def _puts_in(function: ast.FunctionDef) -> Iterator[tuple[int, ast.expr]]:
    """(line, value) of what a loop of it writes into weights: ``weight.set_value(value)``, or ``state[name] = value``
    where it loads that dictionary. Not what it computes: an average."""
    loaded = {
        each.id for node in inside(function)
        if isinstance(node, ast.Call) and called_name(node) in _LOADS
        for part in node.args for each in ast.walk(part) if isinstance(each, ast.Name)
    }  # fmt: skip
    found: dict[int, ast.expr] = {}
    for loop in inside(function):
        for node in ast.walk(loop) if isinstance(loop, ast.For) else ():
            value = None
            if isinstance(node, ast.Call) and called_name(node) in _PUTS and len(node.args) in (1, 2):
                value = node.args[0]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                base = node.targets[0].value
                value = node.value if isinstance(base, ast.Name) and base.id in loaded else None
            if value is not None and not any(isinstance(each, ast.BinOp) for each in ast.walk(value)):
                found[value.lineno] = value
    yield from found.items()


def _draws(node: ast.AST) -> bool:
    return _RANDOM.search(called_name(node)) is not None


def _turns(nodes: Sequence[ast.AST]) -> bool:
    """Whether something turns a matrix, but for what is multiplied by it at once (``x @ weight.T``)."""
    multiplied: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            multiplied |= {id(node.left), id(node.right)}
        elif isinstance(node, ast.Call) and called_name(node) in _PRODUCTS:
            multiplied |= {id(each) for each in node.args}
    return any(_is_turn(node) for node in nodes if id(node) not in multiplied)


def _is_turn(node: ast.AST) -> bool:
    """``w.T``, ``w.t()``, ``np.transpose(w)``, ``w.transpose([1, 0])``, and ``np.transpose`` by another name; not of
    other axes than the first two."""
    if isinstance(node, ast.Attribute):
        library = isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy", "torch", "paddle")
        return node.attr in ("T", "mT") or (node.attr == "transpose" and library)
    if not isinstance(node, ast.Call) or called_name(node) not in _TURNS:
        return False
    axes = [each.value for part in node.args for each in ast.walk(part) if isinstance(each, ast.Constant)]
    return not axes or sorted(map(str, axes)) == ["0", "1"]
