"""Right gradients in a wrong order: what a custom function's backward returns for one input is the derivative by
another one."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence

from adbg.engine.backends.base import SlotCheck
from adbg.engine.diagnosis.detectors.functions.effects import plain_code
from adbg.engine.diagnosis.source import (
    assigned_before,
    assigned_names,
    called_name,
    function_named,
    inside,
    parameters_of,
    returns_of,
)
from adbg.engine.types import SourceLine

_CLOSE = 1e-3  # of two figures in double; in a type's own precision
_CLOSE_SINGLE = 5e-2
_SAVED = ("saved_tensors", "saved_tensor")
_SAME = frozenset({
    "contiguous", "clone", "detach", "to", "float", "double", "half", "bfloat16", "cuda", "cpu", "type", "view",
    "reshape", "flatten", "cast", "astype", "permute", "transpose", "squeeze", "unsqueeze", "expand",
})  # fmt: skip


def exchanged(checks: Sequence[SlotCheck]) -> dict[int, int]:
    """Of one call: the place whose derivative is returned at a place, of those that were given another one's. The
    directions are the same for inputs of one shape, so the figures of one are found again at the other."""
    wrong = [each for each in checks if each.smooth and each.pairs and not (each.agrees or each.missing)]
    given: dict[int, int] = {}
    for each in wrong:
        same = [other.place for other in wrong if other is not each and _is_of(each, other)]
        if len(same) == 1:
            given[each.place] = same[0]
    while given and set(given) != set(given.values()):  # what is left are circles: each is given, and gives
        given = {place: of for place, of in given.items() if of in given and place in given.values()}
    return given


def _is_of(one: SlotCheck, other: SlotCheck) -> bool:
    """What ``one`` was given is the derivative by ``other``."""
    close = _CLOSE if one.precision == other.precision == "f64" else _CLOSE_SINGLE
    return len(one.pairs) == len(other.pairs) and all(
        abs(analytic - numeric) <= close * max(abs(analytic), abs(numeric)) and analytic != 0
        for (_, analytic), (numeric, _) in zip(one.pairs, other.pairs)
    )


def returned_at(function: type) -> SourceLine | None:
    """Where backward puts its results in their order: its ``return``, or the line of the tuple that it returns."""
    code = plain_code(function, "backward")
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    returns = returns_of(tree) if tree is not None else []
    if code is None or tree is None or not returns:
        return None
    line, value = returns[-1].lineno, returns[-1].value
    if isinstance(value, ast.Name):
        made = assigned_before(code.co_filename, line, value.id)
        if made is not None and made[0] < line and isinstance(getattr(made[1], "value", None), (ast.Tuple, ast.List)):
            line = made[0]
    return SourceLine(os.path.abspath(code.co_filename), line, code.co_name)


def returned_many(function: type, results: Sequence[bool]) -> SourceLine | None:
    """The ``return`` of backward that gave as many results as it did: ``results`` says of each whether it was None. Of
    several, the only one that can have given these; else the line of the function itself."""
    code = plain_code(function, "backward")
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    if code is None or tree is None:
        return None
    fitting = returns = returns_of(tree)
    if len(returns) > 1:
        fits = [_gives(code.co_filename, each, results) for each in returns]
        fitting = [each for each, fit in zip(returns, fits) if fit is not False]
    line = fitting[0].lineno if len(fitting) == 1 else tree.lineno
    return SourceLine(os.path.abspath(code.co_filename), line, code.co_name)


def _gives(file: str, statement: ast.Return, results: Sequence[bool]) -> bool | None:
    """Whether a ``return`` can have given these results; None where its source does not say how many it gives."""
    value: ast.AST | None = statement.value
    if isinstance(value, ast.Name):
        line, made = assigned_before(file, statement.lineno, value.id) or (statement.lineno, None)
        plain = line < statement.lineno and isinstance(made, ast.Assign) and isinstance(made.targets[0], ast.Name)
        value = getattr(made, "value", None) if plain else None
    if isinstance(value, (ast.Tuple, ast.List)):
        every = value.elts
        if any(isinstance(each, ast.Starred) for each in every):
            return None
        # What is not written as None may be one all the same.
        return len(every) == len(results) and all(none or not _is_none(each) for each, none in zip(every, results))
    if isinstance(value, ast.Constant) or (
        isinstance(value, ast.BinOp) and not isinstance(value.op, (ast.Add, ast.Mult))
    ):
        return len(results) == 1  # tuples are only added, and multiplied
    return None


def _is_none(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def unpacked_at(function: type) -> tuple[SourceLine, list[str], list[str]] | None:
    """The line of backward that gives the tensors that forward saved each other's names, those names as forward saves
    them, and as they are taken: ``save_for_backward(x, w)`` and ``w, x = ctx.saved_tensors``."""
    kept = [
        [each.id for each in node.args if isinstance(each, ast.Name)]
        for method in ("forward", "setup_context") for node in _nodes(function, method)
        if isinstance(node, ast.Call) and called_name(node) == "save_for_backward"
    ]  # fmt: skip
    code = plain_code(function, "backward")
    if len(kept) != 1 or code is None:
        return None
    for node in _nodes(function, "backward"):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], (ast.Tuple, ast.List)):
            continue
        value = node.value.func if isinstance(node.value, ast.Call) else node.value
        names = [each.id for each in node.targets[0].elts if isinstance(each, ast.Name)]
        taken = isinstance(value, ast.Attribute) and value.attr in _SAVED
        if taken and names != kept[0] and sorted(names) == sorted(kept[0]) and len({*names}) == len(names) > 1:
            return SourceLine(os.path.abspath(code.co_filename), node.lineno, code.co_name), kept[0], names
    return None


def renamed_at(function: type) -> tuple[SourceLine, str, str] | None:
    """(the line of forward that saves it, its name there, as backward takes it) where forward saves what it computed,
    and backward takes that for an argument: ``z = a * x; save_for_backward(z, a)`` and ``x, a = ctx.saved_tensors``."""
    code = plain_code(function, "forward")
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    saves = [each for each in _nodes(function, "forward") if called_name(each) == "save_for_backward"]
    if code is None or tree is None or len(saves) != 1 or not isinstance(saves[0], ast.Call):
        return None
    arguments, kept = set(parameters_of(tree)[1:]), saves[0].args
    # A derivative is often written by the result, whatever it is called.
    values = [each.value for each in returns_of(tree)]
    results = [part for each in values for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    given = {each.id for each in results if isinstance(each, ast.Name)}
    computed = {
        name for node in inside(tree) if isinstance(node, ast.Assign) and _computes(node.value)
        for name in assigned_names(node)
    }  # fmt: skip
    for node in _nodes(function, "backward"):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], (ast.Tuple, ast.List)):
            continue
        value = node.value.func if isinstance(node.value, ast.Call) else node.value
        taken = node.targets[0].elts
        if not isinstance(value, ast.Attribute) or value.attr not in _SAVED or len(taken) != len(kept):
            continue
        saved = [each.id if isinstance(each, ast.Name) else "" for each in kept]
        for before, now in zip(saved, (each.id if isinstance(each, ast.Name) else "" for each in taken)):
            if before in computed - arguments - given and now in arguments - set(saved):
                return SourceLine(os.path.abspath(code.co_filename), saves[0].lineno, code.co_name), before, now
    return None


def _computes(value: ast.AST) -> bool:
    """Not what only lays it otherwise: ``x.contiguous()``."""
    return isinstance(value, ast.BinOp) or (isinstance(value, ast.Call) and called_name(value) not in _SAME)


def _nodes(function: type, method: str) -> list[ast.AST]:
    code = plain_code(function, method)
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    return list(inside(tree)) if tree is not None else []
