"""Where the source seeds the framework's generator in a loop, or in a function that a loop calls."""

from __future__ import annotations

import ast

from adbg.engine.diagnosis.source import called_name, inside, nodes_of, parameters_of, scope_at
from adbg.engine.types import SourceLine

_SEEDS = frozenset({
    "manual_seed", "seed", "seed_all", "seed_everything", "set_seed", "set_rng_state", "set_cuda_rng_state",
})  # fmt: skip
_OTHERS = frozenset({"random", "np", "numpy"})  # generators that are not the framework's
_DEEP = 3  # calls between the loop and the seed
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def seeded_in_loop(file: str) -> tuple[SourceLine, str] | None:
    """(line, its source): the seed itself, or, of a function that does nothing else, its call in the loop. None where
    several do."""
    modules = {
        (name.asname or name.name).partition(".")[0]
        for each in nodes_of(file) if isinstance(each, (ast.Import, ast.ImportFrom)) for name in each.names
    }  # fmt: skip
    found: dict[int, ast.Call] = {}
    for node in nodes_of(file):
        if isinstance(node, ast.Call) and _seeds(node, modules) and not _is_undone(file, node.lineno):
            call = _repeated(file, node, 0)
            if call is not None:
                found[call.lineno] = call
    if len(found) != 1:
        return None
    ((line, call),) = found.items()
    return SourceLine(file, line, _name(file, line)), ast.unparse(call)


def _seeds(call: ast.Call, modules: set[str]) -> bool:
    """The global generator: by a function, or a module's. ``gen.manual_seed(3)``, ``torch.Generator().manual_seed(3)``,
    ``self.rng.manual_seed(3)`` and ``env.seed(3)`` are others."""
    if called_name(call) not in _SEEDS:
        return False
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    while isinstance(value, ast.Attribute):
        value = value.value
    if value is None:
        return isinstance(call.func, ast.Name)
    return isinstance(value, ast.Name) and value.id in modules - _OTHERS


def _is_undone(file: str, line: int) -> bool:
    """Within ``with fork_rng():``."""
    return any(
        isinstance(node, ast.With) and node.lineno <= line <= (node.end_lineno or 0)
        and any("fork_rng" in ast.unparse(each.context_expr) for each in node.items)
        for node in nodes_of(file)
    )  # fmt: skip


def _repeated(file: str, call: ast.Call, depth: int, of: set[str] | None = None) -> ast.Call | None:
    """``of``: the names that the seed is made of; None: those of the call itself."""
    scope = scope_at(file, call.lineno)
    names = set().union(*map(_named, (*call.args, *call.keywords))) if of is None else of
    loops = _loops(scope, call.lineno)
    if loops:
        return None if _turns(loops) & names else call  # with another seed in each round
    if not isinstance(scope, _FUNCTIONS) or depth >= _DEEP:
        return None
    only = depth == 0 and all(_is_seeding(each) for each in scope.body)
    for node in nodes_of(file):
        if isinstance(node, ast.Call) and node is not call and called_name(node) == scope.name:
            found = _repeated(file, node, depth + 1, _given(node, scope, names))
            if found is not None:
                return found if only else call
    return None


def _given(call: ast.Call, function: ast.AST, names: set[str]) -> set[str]:
    """What a call gives for the parameters ``names`` of the function; of ``self`` all that the call names."""
    if names & {"self", "cls"}:
        return _named(call)
    parameters = [each for each in parameters_of(function) if each not in ("self", "cls")]
    given = [value for name, value in zip(parameters, call.args) if name in names]
    given += [each.value for each in call.keywords if each.arg is None or each.arg in names]
    return set().union(*map(_named, given)) | (names - set(parameters)) if given or names else set()


def _loops(scope: ast.AST | None, line: int) -> list[ast.For | ast.AsyncFor | ast.While]:
    return [
        node for node in (inside(scope) if scope is not None else ())
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
    ]  # fmt: skip


def _turns(loops: list[ast.For | ast.AsyncFor | ast.While]) -> set[str]:
    """The variables that change from round to round."""
    changed = [each.target for each in loops if not isinstance(each, ast.While)]
    changed += [
        node.target for each in loops for node in ast.walk(each) if isinstance(node, ast.AugAssign)
    ]  # fmt: skip
    return set().union(*map(_named, changed)) if changed else set()


def _named(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_seeding(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return called_name(statement.value) in _SEEDS
    return isinstance(statement, (ast.Expr, ast.Assign, ast.Pass))  # a docstring, a flag


def _name(file: str, line: int) -> str:
    return getattr(scope_at(file, line), "name", "<module>")
