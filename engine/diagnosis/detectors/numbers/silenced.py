"""Where a program has NumPy keep quiet of divisions by 0, logarithms of 0 and the like: read from its source."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Iterator

from adbg.engine.diagnosis.detectors.earlier.together import calls_now
from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at, tree_of
from adbg.engine.types import SourceLine

_CALLS = frozenset({
    "log", "log2", "log10", "log1p", "sqrt", "power", "divide", "true_divide", "reciprocal", "arccos", "arcsin",
    "arctanh", "exp", "expm1",
})  # fmt: skip
_OVERFLOW = frozenset({"exp", "expm1", "power"})  # of large numbers only
_COPIES = frozenset({
    "from_numpy", "as_tensor", "tensor", "to_tensor", "asarray", "array", "astype", "copy", "float",
    "ascontiguousarray",
})  # fmt: skip


def silenced(nan: bool, negative: bool) -> SourceLine | None:
    """In the files of the functions that run here: the first line that divides, or takes a root or a logarithm, of the
    only block under ``errstate(… "ignore")`` of NumPy's. Where NumPy keeps quiet everywhere (``seterr``, a filter of
    warnings), the only line of all at which it can make NaN (else infinities), or the only logarithm where some are
    ``negative``. None where there are several, or none."""
    files = sorted(_files())
    found = [line for file in files for line in _blocks(file)]
    if found or not _is_quiet(nan):
        return found[0] if len(found) == 1 else None
    every = [each for file in files for each in _makers(file)]
    logarithms = [each for each in every if each[1].startswith("log")]
    lines = {line for line, _ in (logarithms if negative and not nan and len(logarithms) == 1 else every)}
    return lines.pop() if len(lines) == 1 else None


def is_copy(line: SourceLine) -> bool:
    """Whether the statement at a line only gives on what it was given: ``self.rows = rows``, a tensor of that, or what
    is appended."""
    for node in nodes_of(line.file):
        if not isinstance(node, (ast.Assign, ast.Expr)) or not node.lineno <= line.line <= (node.end_lineno or 0):
            continue
        given: list[ast.expr] = [node.value]
        if isinstance(node, ast.Expr):
            given = node.value.args if isinstance(node.value, ast.Call) else []
        inner = [part for each in given for part in ast.walk(each)]
        computed = [each for each in inner if isinstance(each, (ast.Call, ast.BinOp, ast.UnaryOp))]
        return all(called_name(each) in _COPIES for each in computed)
    return False


def leads_to(line: SourceLine, quiet: SourceLine) -> bool:
    """Whether the statement at ``line`` calls the function that ``quiet`` stands in, itself or through one function of
    the same file: ``self.rows = self.normalised(rows).astype("float32")``."""
    tree = tree_of(quiet.file) if line.file == quiet.file else None
    every = list(ast.walk(tree)) if tree is not None else []
    wanted = {
        name
        for each in every
        if isinstance(each, ast.stmt) and each.lineno == line.line
        for name in _names_called(each)
    }
    functions = [each for each in every if isinstance(each, ast.FunctionDef) and each.name in wanted]
    return any(quiet.function in (each.name, *_names_called(each)) for each in functions)


def _names_called(node: ast.AST) -> list[str]:
    return [called_name(each) for each in ast.walk(node) if isinstance(each, ast.Call)]


def _is_quiet(nan: bool) -> bool:
    """Whether NumPy's own words on NaN (else on infinities) are switched off now."""
    numpy = sys.modules.get("numpy")
    state = numpy.geterr() if numpy is not None else {}
    if state.get("invalid" if nan else "divide") == "ignore":
        return True
    for action, message, category, module, _ in warnings.filters:  # the first that fits counts
        if message is None and module is None and issubclass(RuntimeWarning, category):
            return action == "ignore"
    return False


def may_make(node: ast.AST) -> bool:
    """Whether it divides by anything but a constant, takes a root or a logarithm, or the like."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        other = node.right if isinstance(node, ast.BinOp) else node.value
        return isinstance(node.op, ast.Div) and not isinstance(other, ast.Constant)
    return called_name(node) in _CALLS - _OVERFLOW


def _makers(file: str) -> Iterator[tuple[SourceLine, str]]:
    """Lines of a file at which NumPy may make what is not finite, and by what: its functions, and divisions by anything
    but a constant in a function that calls NumPy."""
    tree = tree_of(file)
    nodes = list(ast.walk(tree)) if tree is not None else []
    names = {
        each.asname or each.name for node in nodes if isinstance(node, ast.Import) for each in node.names
        if each.name == "numpy"
    }  # fmt: skip
    calls = [each for each in nodes if isinstance(each, ast.Call) and _owner(each.func) in names]
    scopes = {id(scope_at(file, each.lineno)) for each in calls}
    for each in calls:
        if called_name(each) in _CALLS - _OVERFLOW:
            yield _line(file, each.lineno), called_name(each)
    for node in nodes:
        if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not may_make(node):
            continue
        if id(scope_at(file, node.lineno)) in scopes:
            yield _line(file, node.lineno), "/"


def _owner(function: ast.expr) -> str:
    return getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""


def _line(file: str, number: int) -> SourceLine:
    return SourceLine(file, number, getattr(scope_at(file, number), "name", "<module>"))


def _files() -> set[str]:
    return {os.path.abspath(code.co_filename) for code, _ in calls_now()}


def _blocks(file: str) -> Iterator[SourceLine]:
    for node in nodes_of(file):
        if isinstance(node, ast.With) and any(_ignores(item.context_expr) for item in node.items):
            made = [each for part in node.body for each in ast.walk(part) if _makes(each)]
            bare = [each for each in made if not _is_kept_from_zero(each)]
            line = min((getattr(each, "lineno", 0) for each in bare or made), default=node.body[0].lineno)
            yield _line(file, line)


def _ignores(expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call) or called_name(expression) != "errstate":
        return False
    return any(isinstance(each.value, ast.Constant) and each.value.value == "ignore" for each in expression.keywords)


def _is_kept_from_zero(node: ast.AST) -> bool:
    """Of a division whose divisor is a number, or cannot be 0: ``np.maximum(trees, 1)``, ``total + 1e-6``."""
    by = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None
    if isinstance(by, ast.BinOp) and isinstance(by.op, ast.Add):
        return _is_above_zero(by.left) or _is_above_zero(by.right)
    if isinstance(by, ast.Call) and called_name(by) in ("maximum", "max", "fmax"):
        return any(map(_is_above_zero, by.args))
    if isinstance(by, ast.Call) and called_name(by) == "clip":
        low = by.args[-2:-1] if len(by.args) > 1 else []
        return any(map(_is_above_zero, [*low, *(each.value for each in by.keywords if each.arg in ("min", "a_min"))]))
    return by is not None and _is_above_zero(by)


def _is_above_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.value > 0


def _makes(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Div, ast.Pow))
    return called_name(node) in _CALLS
