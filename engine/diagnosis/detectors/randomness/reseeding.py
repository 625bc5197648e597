"""Where the source seeds the framework's generator in a loop, or in a function that a loop calls."""

from __future__ import annotations

import ast

from adbg.engine.diagnosis.source import called_name, inside, nodes_of, scope_at
from adbg.engine.types import SourceLine

_SEEDS = frozenset({
    "manual_seed", "seed", "seed_all", "seed_everything", "set_seed", "set_rng_state", "set_cuda_rng_state",
})  # fmt: skip
_OTHERS = frozenset({"random", "np", "numpy"})  # generators that are not the framework's
_DEEP = 3  # calls between the loop and the seed
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def seeded_in_loop(file: str) -> tuple[SourceLine, str] | None:
    """(line, its source): the seed itself, or, of a function that does nothing else, its call in the loop."""
    for node in nodes_of(file):
        if isinstance(node, ast.Call) and _seeds(node):
            found = _repeated(file, node, 0)
            if found is not None:
                return SourceLine(file, found.lineno, _name(file, found.lineno)), ast.unparse(found)
    return None


def _seeds(call: ast.Call) -> bool:
    if called_name(call) not in _SEEDS:
        return False
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    if value is None:
        return True
    root = value
    while isinstance(root, ast.Attribute):
        root = root.value
    # `gen.manual_seed(3)` and `torch.Generator().manual_seed(3)` are no global ones.
    return isinstance(root, ast.Name) and root.id not in _OTHERS and not _is_generator(root.id)


def _is_generator(name: str) -> bool:
    return any(word in name.lower() for word in ("gen", "rng")) or len(name) == 1


def _repeated(file: str, call: ast.Call, depth: int) -> ast.Call | None:
    scope = scope_at(file, call.lineno)
    if _in_loop(scope, call.lineno):
        return call
    if not isinstance(scope, _FUNCTIONS) or depth >= _DEEP:
        return None
    only = depth == 0 and all(_is_seeding(each) for each in scope.body)
    for node in nodes_of(file):
        if isinstance(node, ast.Call) and node is not call and called_name(node) == scope.name:
            found = _repeated(file, node, depth + 1)
            if found is not None:
                return found if only else call
    return None


def _in_loop(scope: ast.AST | None, line: int) -> bool:
    return any(
        isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
        for node in (inside(scope) if scope is not None else ())
    )


def _is_seeding(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return called_name(statement.value) in _SEEDS
    return isinstance(statement, (ast.Expr, ast.Assign, ast.Pass))  # a docstring, a flag


def _name(file: str, line: int) -> str:
    return getattr(scope_at(file, line), "name", "<module>")
