"""Under which condition on its data a rank comes to a collective that another rank passed by: a loss that is averaged
over all ranks where a batch has objects, a buffer that is gathered where it is full. Read from the file as it is now; a
file that cannot be read says nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from adbg.engine.hang.conditioned import calls_of, function_at
from adbg.engine.places import source_tree
from adbg.engine.types import SourceLine

_DEEP = 3  # calls between the condition and the collective
_LEAVES = (ast.Return, ast.Continue)
# Of the job, not of its data: all ranks answer alike.
_OF_THE_JOB = re.compile(
    r"__name__|world_?size|n_?procs|num_(?:processes|gpus|ranks)|is_initialized|is_available|distributed|\bddp\b"
    r"|\b(?:cfg|conf|config|args|opts?|options|hparams|flags|settings|debug|verbose)\b|\.training\b|\buse_",
    re.IGNORECASE,
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_BLOCKS = ("body", "orelse", "finalbody")


@dataclass(frozen=True, slots=True)
class Branch:
    """``call``: the line that leads to the collective; ``test``: the line of the condition, ``text``: what has to hold
    there, ``not (...)`` where that is what is written in another branch, or in one that leaves. ``counts``: it asks for
    each so manieth round."""

    call: SourceLine
    test: SourceLine
    text: str
    counts: bool = False

    def is_behind(self, place: SourceLine | None) -> bool:
        """Whether a line comes after it in its function."""
        here = (self.call.file, self.call.function)
        return place is not None and (place.file, place.function) == here and place.line > self.call.line

    def is_round(self, place: SourceLine | None) -> bool:
        """Whether a line is in a loop around it, in its function: one comes there again in the next round."""
        here = (self.call.file, self.call.function)
        tree = source_tree(self.call.file) if place is not None and (place.file, place.function) == here else None
        return place is not None and any(
            isinstance(node, (ast.For, ast.AsyncFor, ast.While))
            and all(node.lineno <= line <= _end(node) for line in (place.line, self.call.line))
            for node in (ast.walk(function_at(tree, self.call.line) or tree) if tree is not None else ())
        )


def branch_of(place: SourceLine) -> Branch | None:
    """None where it is called under no condition, in every branch of one, or from several places."""
    tree = source_tree(place.file)
    return _above(tree, place.file, place.line, 0) if tree is not None else None


def _above(tree: ast.Module, file: str, line: int, depth: int) -> Branch | None:
    function = function_at(tree, line)
    name = function.name if function is not None else "<module>"
    found = list(_tests((function or tree).body, line))
    for test, text in found if len(found) == 1 else ():  # which of several parts the ranks is not known
        counts = any(isinstance(each, ast.Mod) for each in ast.walk(test))
        return Branch(SourceLine(file, line, name), SourceLine(file, test.lineno, name), text, counts)
    if function is None or found or depth >= _DEEP:
        return None
    above = set(calls_of(tree, function))
    return _above(tree, file, above.pop(), depth + 1) if len(above) == 1 else None


def _tests(block: list[ast.stmt], line: int) -> Iterator[tuple[ast.expr, str]]:
    """The conditions that a line stands under, innermost first."""
    here = next((each for each in block if each.lineno <= line <= _end(each)), None)
    if here is None:
        return
    if not isinstance(here, _SCOPES):
        for name in _BLOCKS:
            yield from _tests(_statements(here, name), line)
        for handler in getattr(here, "handlers", ()):
            yield from _tests(handler.body, line)
        yield from _of(here, line, block[block.index(here) + 1 :])
    called = _called(here, line)
    for before in block[: block.index(here)]:
        leaves = isinstance(before, ast.If) and not before.orelse and isinstance(before.body[-1], _LEAVES)
        if isinstance(before, ast.If) and leaves and not called & _names(before.body) and _is_of_data(before.test):
            yield before.test, _not(before.test)


def _not(test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)
    return f"not ({ast.unparse(test)})"


def _is_of_data(test: ast.expr) -> bool:
    return _OF_THE_JOB.search(ast.unparse(test)) is None


def _of(statement: ast.stmt, line: int, behind: list[ast.stmt]) -> Iterator[tuple[ast.expr, str]]:
    """Of a statement that has the line: it, or an expression in it, is that condition. ``behind``: the statements that
    come after it, where its branch does not leave."""
    if isinstance(statement, ast.If):
        called = _called(statement, line)
        within = any(each.lineno <= line <= _end(each) for each in statement.body)
        others = statement.orelse if within else statement.body
        if within and isinstance(statement.body[-1], _LEAVES):
            others = [*others, *behind]
        chained = not within and len(statement.orelse) == 1 and isinstance(statement.orelse[0], ast.If)
        if not _is_of_data(statement.test) or chained:  # the innermost test of a chain of ``elif`` says it
            return
        if line >= statement.body[0].lineno and not called & _names(others):
            yield statement.test, ast.unparse(statement.test) if within else _not(statement.test)
    for node in ast.walk(statement) if not isinstance(statement, ast.If) else ():
        if isinstance(node, ast.IfExp) and node.lineno <= line <= _end(node):
            for part, other, text in (
                (node.body, node.orelse, ast.unparse(node.test)),
                (node.orelse, node.body, _not(node.test)),
            ):
                if _names([part]) and not _names([part]) & _names([other]) and part.lineno <= line <= _end(part):
                    yield node.test, text
                    break


def _called(statement: ast.stmt, line: int) -> set[str]:
    """The names of what is called on a line."""
    return {
        name for node in ast.walk(statement)
        if isinstance(node, ast.Call) and node.lineno <= line <= _end(node) and (name := _name(node))
    }  # fmt: skip


def _names(nodes: list[ast.stmt] | list[ast.expr]) -> set[str]:
    return {name for each in nodes for node in ast.walk(each) if isinstance(node, ast.Call) and (name := _name(node))}


def _name(call: ast.Call) -> str:
    called = call.func
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _statements(node: ast.stmt, name: str) -> list[ast.stmt]:
    found = getattr(node, name, None)
    return found if isinstance(found, list) and all(isinstance(each, ast.stmt) for each in found) else []


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno
