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
    r"\b(flip|fliplr|flipud|hflip|vflip|roll|rot90|rotate|\w*crop|affine|warp|elastic|perspective)\b"
    r"|\[[^\]]*\w+:\w+ \+ "
)
_LAYERS = re.compile(
    r"\bRandom(Horizontal|Vertical)?(Flip|Crop|Rotation|Affine|ResizedCrop|Perspective)\b|ElasticTransf"
)
_SEEDS = re.compile(
    r"\b(manual_seed|seed|set_state|setstate|getstate|get_state|set_rng_state|get_rng_state|fork_rng|get_params|"
    r"ReplayCompose|default_rng|RandomState|Random|Generator)\b|\bis None\b"
)
#: What is to be seen in a picture, place by place.
_SEEN = re.compile(r"mask|label|target|seg|gt|truth|annot|lbl|depth|heat|contour|(^|\b|_)y\b", re.IGNORECASE)
_MOST = 40  # files of the program


@detector("loss-input")
class DrawnApart(Detector):
    """One random transformation is called twice, for a picture and for its mask: each call draws numbers of its own, so
    that a mask is flipped or moved where its picture is not.

    Evidence: the line that calls it twice, what it draws and moves, and a loss that compares pictures pixel by pixel
    with a target that has no gradient.
    Mistaken for: two views of one picture, pictures of two kinds, transformations that move nothing (colours, noise), a
    seed or a generator that is set anew in between, parameters that are drawn once and given to both: not told. Of the
    two one has to be called a mask, a label or a target, and a function has to return both.
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
            self._files = files_of_program()  # at the end the script is __main__ no more

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


def files_of_program() -> list[str]:
    """Of the program, the script first."""
    modules = [sys.modules.get("__main__"), *list(sys.modules.values())]
    found = dict.fromkeys(str(getattr(module, "__file__", None) or "") for module in modules)
    return [file for file in found if file.endswith(".py") and is_programs(file) and os.path.exists(file)][:_MOST]


def called_twice(file: str) -> Iterator[tuple[SourceLine, str, tuple[str, str]]]:
    """Where a function calls one random transformation for a picture and for what is to be seen in it, and returns
    both: the second call's line, what is called, and the two."""
    for function in [each for each in nodes_of(file) if isinstance(each, ast.FunctionDef)]:
        for block in _blocks(function):
            calls: dict[str, list[tuple[ast.Call, str, str]]] = {}
            for statement in block:
                for call, name in _given_names(statement):
                    row = call, ast.unparse(call.args[0]), name
                    calls.setdefault(ast.unparse(call.func), []).append(row)
            returned = [ast.unparse(each) for each in inside(function) if isinstance(each, ast.Return)]
            for called, rows in calls.items():
                pair = _pair(rows, returned)
                if pair is None or not _is_random_move(file, pair[0][0]):
                    continue
                first, second = pair[0][0].lineno, pair[1][0].lineno
                between = [each for each in inside(function) if first <= getattr(each, "lineno", 0) <= second]
                if second - first <= 3 and not any(
                    _SEEDS.search(ast.unparse(each.func)) for each in between if isinstance(each, ast.Call)
                ):
                    yield SourceLine(file, second, function.name), called, (pair[0][1], pair[1][1])


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Statements that run one after another."""
    yield function.body
    for node in inside(function):
        for part in ("body", "orelse"):
            block = getattr(node, part, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _given_names(statement: ast.stmt) -> Iterator[tuple[ast.Call, str]]:
    """Calls with one argument, and the name that gets the result, "" of one that is returned at once."""
    if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
        return
    values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    names = target.elts if isinstance(target, ast.Tuple) else [target] * len(values)
    for value, name in zip(values, names):
        if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
            yield value, ast.unparse(name) if name is not None else ""


def _pair(
    rows: list[tuple[ast.Call, str, str]], returned: list[str]
) -> tuple[tuple[ast.Call, str, str], tuple[ast.Call, str, str]] | None:
    """The two calls: for different things, of which one is a mask or the like, and whose results one return has."""
    if len(rows) != 2 or rows[0][1] == rows[1][1]:
        return None
    one, other = rows
    masks = [bool(_SEEN.search(f"{given} {name}")) for _, given, name in rows]
    together = (not one[2] and not other[2]) or any(
        all(re.search(rf"\b{re.escape(name)}\b", text) for _, _, name in rows)
        for text in returned
        if one[2] and other[2]
    )
    chained = one[2] == other[1] or one[2] == other[2] != ""
    return (one, other) if sum(masks) == 1 and together and not chained else None


def _is_random_move(file: str, call: ast.Call) -> bool:
    """Whether what is called draws numbers and moves pixels: a function of this file, or layers that do."""
    name = called_name(call)
    functions = [each for each in nodes_of(file) if isinstance(each, ast.FunctionDef) and each.name == name]
    if functions:
        body = functions[0].body
        text = "\n".join(ast.unparse(each) for each in body[ast.get_docstring(functions[0]) is not None :])
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
