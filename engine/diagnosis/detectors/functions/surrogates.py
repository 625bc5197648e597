"""Custom functions whose backward is another one than the derivative on purpose, as far as that can be told."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Sequence

from adbg.engine.backends.base import SlotCheck
from adbg.engine.diagnosis.detectors.functions.effects import plain_code
from adbg.engine.diagnosis.source import called_name, function_named

STEPS = frozenset({"round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "fake_quantize_per_tensor_affine"})
WORDS = re.compile(
    r"surrogate|straight.?through|(?<![a-z])guided|deconvnet|jacobian.?free|"
    r"(?-i:(?<![A-Za-z])ste(?![a-z])|STE(?![a-zMP])|Ste(?![a-z]))|"  # no step, and no system
    r"(?:pseudo|proxy|approximate[ds]?|biased).{0,3}(?:gradient|derivative)|gradient.{0,3}estimator",
    re.I,
)


def surrogate(function: type, wrong: Sequence[SlotCheck]) -> str:
    """What says so, or "". A mistake in a formula has none of these."""
    if all(check.nonlinear for check in wrong):
        return "its backward is not linear in the gradient that it is given, as each derivative is"
    found = WORDS.search(_text(function))
    if found is not None:
        return f"it says so of itself: {found[0]}"
    if _settles(function):
        return "its forward iterates to a fixed point, which its backward does not"
    return ""


def rounds(function: type) -> str:
    """The first operator of its forward whose own derivative is 0 wherever it has one, or "": what its backward gives
    is another one on purpose, and no finite difference tells which one was meant."""
    tree = _tree(function, "forward")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    return next((name for call in calls if (name := called_name(call)).rstrip("_") in STEPS), "")


def _tree(function: type, method: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    code = plain_code(function, method)
    return function_named(code.co_filename, code.co_firstlineno) if code is not None else None


def _text(function: type) -> str:
    """Its name, what is said of it, and both of its methods with their comments."""
    texts = [function.__name__, vars(function).get("__doc__") or ""]
    for method in ("forward", "backward"):
        code, tree = plain_code(function, method), _tree(function, method)
        if code is not None and tree is not None:
            lines = linecache.getlines(code.co_filename)[tree.lineno - 1 : tree.end_lineno]
            texts += [ast.get_docstring(tree) or "", *[line.partition("#")[2] for line in lines]]
    return "\n".join(texts)


def _settles(function: type) -> bool:
    """A loop of the forward makes something of itself, the same way each time; no loop is in the backward."""
    forward, backward = _tree(function, "forward"), _tree(function, "backward")
    if forward is None or backward is None:
        return False
    if any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(backward)):
        return False
    return any(_is_repeated(node) for node in ast.walk(forward))


def _is_repeated(loop: ast.AST) -> bool:
    if not isinstance(loop, (ast.For, ast.While)):
        return False
    inner = [node for each in loop.body for node in ast.walk(each)]
    used = {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    counters = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)} if isinstance(
        loop, ast.For
    ) else set()  # fmt: skip
    if counters & used:
        return False
    made = {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return bool(made & used)
