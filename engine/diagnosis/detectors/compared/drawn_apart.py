"""A picture and what is to be seen in it that are turned, moved or cut at random, each by numbers of its own."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import PAIRED
from adbg.engine.diagnosis.source import called_name, inside, nodes_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_LOSSES = PAIRED | {"cross_entropy", "cross_entropy_with_softmax", "nll_loss", "softmax_with_cross_entropy"}
_SIDE = 8  # of a picture
_DRAWS = re.compile(
    r"\b(random|rand|randint|randrange|randn|uniform|choice|bernoulli|integers)\b\s*\(|\brng\.|\brandom\."
)
_MOVES = re.compile(
    r"\b(flip|fliplr|flipud|hflip|vflip|roll|rot90|rotate|crop|affine|warp|elastic|resized_crop|perspective)\b"
)
_LAYERS = re.compile(
    r"\bRandom(Horizontal|Vertical)?(Flip|Crop|Rotation|Affine|ResizedCrop|Perspective)\b|ElasticTransf"
)
_SEEDS = re.compile(
    r"\b(manual_seed|seed|set_state|setstate|set_rng_state|set_cuda_rng_state|get_params|ReplayCompose)\b"
)
_MOST = 40  # files of the program


@detector("loss-input")
class DrawnApart(Detector):
    """One random transformation is called twice, for a picture and for its mask: each call draws numbers of its own, so
    that a mask is flipped or moved where its picture is not.

    Evidence: the line that calls it twice, what it draws and moves, and a loss that compares pictures pixel by pixel
    with a target that has no gradient.
    Mistaken for: two views of one picture, transformations that move nothing (colours, noise), a seed that is set
    again in between, parameters that are drawn once and given to both: not told.
    Cost: in sampled iterations a look at each operator's name; at the end the program's files are read.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._pixels: SourceLine | None = None
        self._sides: list[int] = []
        self._files: list[str] = []

    def applied(self) -> bool:
        return bool(self._sides)

    def composite(self, call: OperatorCall) -> None:
        self.operator(call)

    def operator(self, call: OperatorCall) -> None:
        if self._sides or plain(call.name) not in _LOSSES or len(call.operands) < 2 or call.error is not None:
            return
        given, target = shape(call.operands[0]), shape(call.operands[1])
        if call.operands[1].requires_grad or len(given) < 3 or len(target) < 3 or given[-2:] != target[-2:]:
            return
        if min(given[-2:]) >= _SIDE:
            self._pixels, self._sides = line_of(call.lines), given[-2:]
            self._files = _files()  # at the end the script is __main__ no more

    def end(self) -> None:
        for file in self._files:
            for line, called, names in called_twice(file):
                self._tell(line, called, names)
                return

    def _tell(self, line: SourceLine, called: str, names: tuple[str, str]) -> None:
        self.facts.tell(
            Finding(
                0, "loss-input", "warning", 0.85,
                f"{place(line)} calls {called} for {names[0]} and again for {names[1]}: each call draws random numbers "
                "of its own, so that the two are turned and moved differently; draw once, and use that for both",
                None, None, None, line, self.facts.cause(line),
                [
                    f"the loss at {place(self._pixels)} compares them pixel by pixel "
                    f"({self._sides[0]} x {self._sides[1]}), and its target has no gradient",
                    f"`{self.facts.text_of(line)}`",
                ],
                [f"list {place(line)}"],
            )
        )  # fmt: skip


def _files() -> list[str]:
    """Of the program, the script first."""
    modules = [sys.modules.get("__main__"), *list(sys.modules.values())]
    found = dict.fromkeys(str(getattr(module, "__file__", None) or "") for module in modules)
    return [file for file in found if file.endswith(".py") and is_programs(file) and os.path.exists(file)][:_MOST]


def called_twice(file: str) -> Iterator[tuple[SourceLine, str, tuple[str, str]]]:
    """Where a function calls one random transformation for two different things: the second call's line, what is
    called, and the two."""
    for function in nodes_of(file):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls: dict[str, list[tuple[ast.Call, str]]] = {}
        for node in inside(function):
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
                for each in ast.walk(node.value):
                    if isinstance(each, ast.Call) and len(each.args) == 1 and not each.keywords:
                        calls.setdefault(ast.unparse(each.func), []).append((each, ast.unparse(each.args[0])))
        seeds = [node.lineno for node in inside(function) if isinstance(node, ast.Call) and _SEEDS.search(
            ast.unparse(node.func))]  # fmt: skip
        for called, rows in calls.items():
            rows.sort(key=lambda row: (row[0].lineno, row[0].col_offset))
            if len(rows) != 2 or rows[0][1] == rows[1][1] or not _is_random_move(file, rows[0][0]):
                continue
            first, second = rows[0][0].lineno, rows[1][0].lineno
            if second - first > 3 or any(first <= at <= second for at in seeds):
                continue
            yield SourceLine(file, second, function.name), called, (rows[0][1], rows[1][1])


def _is_random_move(file: str, call: ast.Call) -> bool:
    """Whether what is called draws numbers and moves pixels: a function of this file, or layers that do."""
    name = called_name(call)
    functions = [each for each in nodes_of(file) if isinstance(each, ast.FunctionDef) and each.name == name]
    if functions:
        text = ast.unparse(functions[0])
        return len(functions) == 1 and bool(_DRAWS.search(text) and _MOVES.search(text) and not _SEEDS.search(text))
    for node in nodes_of(file):
        if isinstance(node, ast.Assign) and any(_last(target) == name for target in node.targets):
            if _LAYERS.search(ast.unparse(node.value)):
                return True
            if isinstance(node.value, ast.Name) and _given(file, node.value.id):
                return True
    return False


def _given(file: str, parameter: str) -> bool:
    """Whether a call gives such layers by that name."""
    made = {
        ast.unparse(target) for each in nodes_of(file) if isinstance(each, ast.Assign)
        and _LAYERS.search(ast.unparse(each.value)) for target in each.targets
    }  # fmt: skip
    for each in nodes_of(file):
        for keyword in each.keywords if isinstance(each, ast.Call) else ():
            text = ast.unparse(keyword.value)
            if keyword.arg == parameter and (text in made or _LAYERS.search(text)):
                return True
    return False


def _last(target: ast.expr) -> str:
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
