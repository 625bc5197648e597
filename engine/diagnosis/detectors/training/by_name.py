"""Filters on names that say which parameters are trained, as the source has them: the condition, and what its constants
find among the names of a model."""

from __future__ import annotations

import ast
import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at
from adbg.engine.outside import own
from adbg.engine.types import SourceLine

_FLAGS = {"requires_grad": True, "trainable": True, "stop_gradient": False}  # what the flag is of what is trained
_NEAR = 0.8  # of two words that are meant to be the same one
_Loop = ast.For | ast.comprehension


class UnreadableError(Exception):
    """A condition that asks for more than names."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a condition: any of ``constants`` in the name, at its begin, ... ``wanted``: what it finds is to
    be trained. ``listed``: several of one list, of which some may be meant for other models."""

    how: str
    constants: tuple[str, ...]
    wanted: bool
    listed: bool
    line: int

    def finds(self, constant: str, name: str) -> bool:
        if self.how == "in":
            return constant in name
        if self.how == "startswith":
            return name.startswith(constant)
        if self.how == "endswith":
            return name.endswith(constant)
        if self.how == "fnmatch":
            return fnmatch.fnmatch(name, constant)
        if self.how == "is":
            return constant == name or constant in name.split(".")
        try:
            return getattr(re, self.how)(constant, name) is not None
        except own(re.error):
            return True  # of which nothing is said

    def holds(self, name: str) -> bool:
        return any(self.finds(each, name) for each in self.constants)

    def lost(self, names: Sequence[str]) -> list[str]:
        """The constants that find none of the names; of a list only where that is said of all of them."""
        found = [each for each in self.constants if not any(self.finds(each, name) for name in names)]
        return found if not self.listed or len(found) == len(self.constants) else []


@dataclass(frozen=True, slots=True)
class Filter:
    """``does``: "set" (trained where the condition holds, frozen elsewhere), "free" (trained where it holds), "freeze"
    (frozen where it does not hold), "give" (given to an optimizer where it holds). The condition is of what is trained.
    """

    does: str
    line: SourceLine
    condition: ast.expr
    negated: bool
    name: str  # the variable

    def questions(self, tree: ast.AST) -> list[Question]:
        return list(_questions(self.condition, self.name, not self.negated, tree))

    def trains(self, name: str, tree: ast.AST) -> bool:
        return _holds(self.condition, self.name, name, tree) is not self.negated


def filters_in(file: str) -> Iterator[Filter]:
    for node in nodes_of(file):
        if isinstance(node, ast.For):
            names = _named(node)
            if names is not None:
                yield from _of_body(file, node.body, names, None, False)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)) and len(node.generators) == 1:
            names = _named(node.generators[0])
            tests = node.generators[0].ifs
            if (
                names is not None
                and len(tests) == 1
                and _mentions(node.elt, names[1])
                and _mentions(tests[0], names[0])
            ):
                yield Filter("give", _line(file, tests[0].lineno), tests[0], False, names[0])


def _named(loop: _Loop) -> tuple[str, str] | None:
    """The variables of a loop over names and parameters."""
    if "named_parameters(" not in ast.unparse(loop.iter) or not isinstance(loop.target, ast.Tuple):
        return None
    names = [each.id for each in loop.target.elts if isinstance(each, ast.Name)]
    return (names[0], names[1]) if len(names) == 2 else None


def _of_body(
    file: str, body: Sequence[ast.stmt], names: tuple[str, str], condition: ast.expr | None, negated: bool
) -> Iterator[Filter]:
    """``condition``: under which the statements run, as far as it asks for the name."""
    given: dict[str, ast.expr] = {}
    for node in body:
        if isinstance(node, ast.If):
            mine = _mentions(node.test, names[0])
            if mine and len(node.body) == 1 and isinstance(node.body[0], ast.Continue) and condition is None:
                condition, negated = node.test, True
            elif condition is None or not mine:
                outer = (node.test, False) if mine else (condition, negated)
                yield from _of_body(file, node.body, names, *outer)
                yield from _of_body(file, node.orelse, names, node.test if mine else condition, mine or negated)
            continue
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given[node.targets[0].id] = node.value
        flag = _flag(node, names[1])
        if flag is not None:
            yield from _flagged(file, flag, names[0], given, condition, negated)
        elif condition is not None and isinstance(node, ast.Expr) and called_name(node.value) == "append":
            taken = getattr(node.value, "args", ())
            if any(_mentions(each, names[1]) for each in taken):
                yield Filter("give", _line(file, condition.lineno), condition, negated, names[0])


def _flagged(
    file: str, flag: tuple[ast.expr, bool], name: str, given: dict[str, ast.expr], condition: ast.expr | None,
    negated: bool,
) -> Iterator[Filter]:  # fmt: skip
    value, trains = flag
    where = _line(file, value.lineno)
    while isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):
        value, trains = value.operand, not trains
    if isinstance(value, ast.Name):
        value = given.get(value.id, value)
    if isinstance(value, ast.Constant):
        if condition is not None:
            frees = bool(value.value) is trains
            yield Filter("free" if frees else "freeze", _line(file, condition.lineno), condition,
                         negated if frees else not negated, name)  # fmt: skip
    elif condition is None and _mentions(value, name):
        yield Filter("set", where, value, not trains, name)


def _flag(node: ast.stmt, parameter: str) -> tuple[ast.expr, bool] | None:
    """What a statement sets a flag of the parameter to, and whether True has it trained."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute) and target.attr in _FLAGS:
        return (node.value, _FLAGS[target.attr]) if ast.unparse(target.value) == parameter else None
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and ast.unparse(call.func) == f"{parameter}.requires_grad_":
        every = [*call.args, *(each.value for each in call.keywords)]
        return (every[0], True) if every else (ast.copy_location(ast.Constant(True), call), True)
    return None


# ---- conditions


def _questions(test: ast.expr, name: str, wanted: bool, tree: ast.AST) -> Iterator[Question]:
    if isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _questions(each, name, wanted, tree)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _questions(test.operand, name, not wanted, tree)
    else:
        asked, negated = _question(test, name, tree)
        yield Question(asked.how, asked.constants, wanted is not negated, asked.listed, test.lineno)


def _holds(test: ast.expr, variable: str, name: str, tree: ast.AST) -> bool:
    if isinstance(test, ast.BoolOp):
        results = [_holds(each, variable, name, tree) for each in test.values]
        return all(results) if isinstance(test.op, ast.And) else any(results)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not _holds(test.operand, variable, name, tree)
    asked, negated = _question(test, variable, tree)
    return asked.holds(name) is not negated


def _question(test: ast.expr, name: str, tree: ast.AST) -> tuple[Question, bool]:
    """A single question, and whether it is asked for the contrary."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, op, right = test.left, test.ops[0], test.comparators[0]
        negated = isinstance(op, (ast.NotIn, ast.NotEq))
        if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, ast.Name) and right.id == name:
            return _made("in", _constants(left, tree), test), negated
        if isinstance(op, (ast.In, ast.NotIn, ast.Eq, ast.NotEq)) and _mentions(left, name):
            return _made("is", _constants(right, tree), test), negated
    if isinstance(test, ast.Call):
        called, owner = called_name(test), getattr(test.func, "value", None)
        if called in ("startswith", "endswith") and isinstance(owner, ast.Name) and owner.id == name and test.args:
            return _made(called, _constants(test.args[0], tree), test), False
        if called in ("fnmatch", "fnmatchcase") and len(test.args) == 2 and ast.unparse(test.args[0]) == name:
            return _made("fnmatch", _constants(test.args[1], tree), test), False
        if called in ("match", "search", "fullmatch") and len(test.args) == 2 and ast.unparse(test.args[1]) == name:
            return _made(called, _constants(test.args[0], tree), test), False
        if called == "any" and test.args and isinstance(each := test.args[0], (ast.GeneratorExp, ast.ListComp)):
            return _any(each, name, tree), False
    raise UnreadableError


def _any(each: ast.GeneratorExp | ast.ListComp, name: str, tree: ast.AST) -> Question:
    """``any(key in name for key in KEYS)``."""
    loop = each.generators[0]
    if len(each.generators) != 1 or loop.ifs or not isinstance(loop.target, ast.Name):
        raise UnreadableError
    key = loop.target.id
    constants = _constants(loop.iter, tree)
    for how, text in (
        ("in", f"{key} in {name}"),
        ("startswith", f"{name}.startswith({key})"), ("endswith", f"{name}.endswith({key})"),
        ("is", f"{key} == {name}"), ("is", f"{name} == {key}"), ("fnmatch", f"fnmatch.fnmatch({name}, {key})"),
        ("search", f"re.search({key}, {name})"), ("match", f"re.match({key}, {name})"),
    ):  # fmt: skip
        if ast.unparse(each.elt) == text:
            return _made(how, constants, each)
    raise UnreadableError


def _made(how: str, constants: Sequence[str], at: ast.expr) -> Question:
    return Question(how, tuple(constants), True, len(constants) > 1, at.lineno)


def _constants(value: ast.expr, tree: ast.AST) -> list[str]:
    """The texts that an expression is: written out, or those of a variable that is given its value once."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return [value.value]
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return [text for each in value.elts for text in _constants(each, tree)]
    wanted = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    made = [
        node.value for node in ast.walk(tree)
        if wanted and isinstance(node, ast.Assign) and len(node.targets) == 1
        and wanted in (getattr(node.targets[0], "id", ""), getattr(node.targets[0], "attr", ""))
    ]  # fmt: skip
    if len(made) != 1 or not isinstance(made[0], (ast.Constant, ast.List, ast.Tuple, ast.Set)):
        raise UnreadableError
    return _constants(made[0], tree)


def near(constant: str, names: Iterable[str]) -> str:
    """One of the names that has a part which is written nearly so, or ends as a word of it: "side.down" for
    "lora_down". "" for none."""
    wanted = _plain(constant)
    words = {each.lower() for each in re.findall(r"[A-Za-z]{3,}", constant)} - {"weight", "bias"}
    for name in names if len(wanted) > 2 else ():
        parts = name.split(".")
        if wanted in _plain(name) or (len(words) > 1 and parts[-1].lower() in words):
            return name
        plain = [each for each in map(_plain, parts) if len(each) > 2]
        if any(difflib.SequenceMatcher(None, wanted, each).ratio() >= _NEAR for each in plain):
            return name
    return ""


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _line(file: str, line: int) -> SourceLine:
    return SourceLine(file, line, getattr(scope_at(file, line), "name", "<module>"))
