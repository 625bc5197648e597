"""Weights of another framework that are taken as they lie: nothing in the program turns them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import called_name, inside, nodes_of, parameters_of
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
_TURNS = frozenset({"t", "transpose", "permute", "swapaxes", "moveaxis", "einsum", "rearrange"})


@detector("not-loaded")
class LoadedUnturned(Detector):
    """Weights of another framework that a function takes over by name (``load_from_torch``) without turning any: a
    linear weight is [out, in] on torch, and [in, out] on Paddle, Keras and Flax. Where all of them are square they fit,
    and no error tells.

    Evidence: the line that writes them, the square weights of the model's linear layers, and that no function of the
    program takes a weight's transpose.
    Mistaken for: what was turned before it was stored (the program's names cannot tell); a name that says what is
    loaded, and not from where.
    Cost: the source is read, and live layers are looked up, once an optimizer steps.
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
        backend = self.facts.backend
        file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        others = _OTHERS.get(backend.name)
        self._found = list(_taken_over(file, others)) if others is not None and is_programs(file) else []
        if len(self._found) != 1:
            return
        layers = of_types(lambda kind: kind.__name__ == "Linear")
        weights = [each for each in (attribute(layer, "weight") for layer in layers) if backend.is_tensor(each)]
        square = [sizes for each in weights if len(sizes := self.facts.shape(each)) == 2 and sizes[0] == sizes[1] > 1]
        if not square:
            return
        line = self._found[0]
        self.facts.tell(
            Finding(
                0, "not-loaded", "warning", 0.8,
                f"{place(line)} takes over weights of another framework as they lie: a linear weight is turned round "
                f"on {_NAMES[backend.name]}, and {len(square)} of the model {'is' if len(square) == 1 else 'are'} "
                f"square ({list(square[0])}), which fits either way; transpose them",
                cause=self.facts.cause(line),
                evidence=["a Linear is [out, in] on torch and [in, out] on Paddle, Keras and Flax",
                          f"the program writes them by `{self.facts.text_of(line)}`, and transposes none"],
                next=["info params"],
            )
        )  # fmt: skip


def _taken_over(file: str, others: re.Pattern[str]) -> Iterator[SourceLine]:
    """Each line that writes a weight by a name in a loop of a function that is called, whose own name, parameters or
    written value say that it comes from elsewhere; none where a function that does not compute turns something."""
    functions = [each for each in nodes_of(file) if isinstance(each, ast.FunctionDef)]
    called = {called_name(each) for each in nodes_of(file)}
    loading = [each for each in functions if each.name in called and any(map(_is_put, inside(each)))]
    taking = [
        each for each in functions if any(called_name(node) == each.name for one in loading for node in inside(one))
    ]
    if any(_turns(node) for each in (*loading, *taking) for node in inside(each)):
        return
    for function in loading:
        says = any(others.search(name) for name in (function.name, *parameters_of(function)))
        for node in inside(function):
            if not isinstance(node, ast.For):
                continue
            for put in ast.walk(node):
                if not _is_put(put) or not isinstance(put, ast.Call):
                    continue
                named = {each.id for each in ast.walk(put.args[0]) if isinstance(each, ast.Name)}
                if says or any(others.search(name) for name in named):
                    yield SourceLine(file, put.lineno, function.name)


def _is_put(node: ast.AST) -> bool:
    return called_name(node) in _PUTS and isinstance(node, ast.Call) and len(node.args) == 1


def _turns(node: ast.AST) -> bool:
    return called_name(node) in _TURNS or (isinstance(node, ast.Attribute) and node.attr in ("T", "mT"))
