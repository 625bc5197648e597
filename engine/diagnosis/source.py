"""What the source of the user's files says: which names a line gives a value, where a variable was given its own, which
expression an exception came out of. Read as the files are now; no line is better than a wrong one."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator, Sequence

from adbg.engine.outside import own
from adbg.engine.places import parsed
from adbg.engine.types import SourceLine

_LARGEST = 20_000  # lines of a file that is parsed
_RATES = ("max_learning_rate", "max_lr", "learning_rate", "base_lr")  # the largest ones of a schedule
_BLANK = frozenset({"zeros", "zeros_like", "empty", "empty_like", "ones", "ones_like", "full", "full_like"})
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@functools.lru_cache(32)
def tree_of(file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    if not lines or len(lines) > _LARGEST:
        return None
    try:
        tree: ast.Module = parsed("".join(lines))
        return tree
    except own(SyntaxError, ValueError, RecursionError):
        return None


def called_name(node: ast.AST) -> str:
    """The last name of what a call calls ("sqrt" of ``torch.sqrt(x)``); "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else str(getattr(node.func, "id", ""))


@functools.lru_cache(32)
def nodes_of(file: str) -> tuple[ast.AST, ...]:
    """All nodes of a file from the outside in, () where it cannot be read. Walked once: a walk takes
    9 to 21 ms on average (cProfile), and lines are asked about at every operator."""
    tree = tree_of(file)
    return tuple(ast.walk(tree)) if tree is not None else ()


@functools.lru_cache(32)
def _functions_of(file: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    return tuple(node for node in nodes_of(file) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@functools.lru_cache(32)
def _functions_by_line(file: str) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
    """By the lines at which their code objects can begin: of two that share one, the outer."""
    found: dict[int, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in _functions_of(file):
        for line in (node.lineno, *[each.lineno for each in node.decorator_list]):
            found.setdefault(line, node)
    return found


def scope_at(file: str, line: int) -> ast.AST | None:
    """The innermost function that the line is in, else the module."""
    found: ast.AST | None = tree_of(file)
    for node in _functions_of(file):
        if node.lineno <= line <= (node.end_lineno or 0):
            found = node  # walked from the outside in
    return found


def loops_around(file: str, line: int) -> int:
    """How many loops of its function a line stands in, a comprehension on that line among them."""
    scope = scope_at(file, line)
    every = list(ast.walk(scope)) if scope is not None else []
    loops = [each for each in every if isinstance(each, (ast.For, ast.While))]
    made = [each for each in every if isinstance(each, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))]
    return sum(each.lineno < line <= (each.end_lineno or 0) for each in loops) + sum(
        each.lineno <= line <= (each.end_lineno or 0) and _calls(each) for each in made
    )


def _calls(comprehension: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
    values = (
        [comprehension.key, comprehension.value] if isinstance(comprehension, ast.DictComp) else [comprehension.elt]
    )
    return any(isinstance(node, ast.Call) for value in values for node in ast.walk(value))


def line_naming(file: str, name: str) -> SourceLine | None:
    """The only line of a file that calls ``name``, in capitals or not: ``nn.Sigmoid()``."""
    found: set[int] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Call):
            called = called_name(node)
            if called.lower() == name:
                found.add(node.lineno)
    if len(found) != 1:
        return None
    line = found.pop()
    return SourceLine(file, line, getattr(scope_at(file, line), "name", "<module>"))


def layer_line(line: SourceLine, kind: str, among: bool = False) -> SourceLine | None:
    """Where the layer of that class is made which ``line`` calls (``nn.Softmax(dim=-1)`` in a Sequential): the only one
    in the class that the line is in, or, of a line that is in none, outside of all classes. ``among``: none that a
    variable has, which the line calls by its name."""
    calls = [each for each in nodes_of(line.file) if isinstance(each, ast.Call) and called_name(each) == kind]
    around = _class_at(line.file, line.line)
    mine = [each for each in calls if _class_at(line.file, each.lineno) is around]
    named = {
        each.value for each in nodes_of(line.file) if among and isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
    }  # fmt: skip
    if len(mine) != 1 or mine[0] in named:
        return None
    at = mine[0].lineno
    return SourceLine(line.file, at, getattr(scope_at(line.file, at), "name", "<module>"))


def _class_at(file: str, line: int) -> ast.ClassDef | None:
    """The innermost class that the line is in."""
    classes = (each for each in nodes_of(file) if isinstance(each, ast.ClassDef))
    return next(reversed([each for each in classes if each.lineno <= line <= (each.end_lineno or 0)]), None)


def function_named(file: str, first: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function whose code object begins at line ``first`` (that of a decorator, where it has one)."""
    return _functions_by_line(file).get(first)


def function_called(file: str, call: ast.AST) -> ast.FunctionDef | None:
    """The function of a file that a call calls: the only one of its name, by that alone, or a method of ``self``."""
    name = called_name(call)
    known = [each for each in _functions_of(file) if isinstance(each, ast.FunctionDef) and each.name == name]
    function = getattr(call, "func", None)
    owner = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else None
    if len(known) != 1 or owner not in (None, "self", "cls"):
        return None
    method = list(parameters_of(known[0]))[:1] in (["self"], ["cls"])
    return known[0] if owner is not None or not method else None


def inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes in it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        targets = [node.target]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    else:
        return []
    flat: list[ast.expr] = []
    while targets:
        each = targets.pop(0)
        if isinstance(each, (ast.Tuple, ast.List)):
            targets = [*each.elts, *targets]
        else:
            flat.append(each.value if isinstance(each, ast.Starred) else each)
    return flat


def assigned_names(node: ast.AST) -> list[str]:
    """The variables that a statement gives a value, a loop its own: ["name", "p"] of ``for name, p in …``."""
    return [each.id for each in _targets(node) if isinstance(each, ast.Name)]


def _last_line(node: ast.AST) -> int:
    """Of a loop or a ``with``: the line that binds its variable."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return node.iter.end_lineno or node.lineno
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return node.items[-1].context_expr.end_lineno or node.lineno
    return int(getattr(node, "end_lineno", None) or getattr(node, "lineno", None) or 0)


def assigned_on(file: str, line: int) -> list[str]:
    """The names that the statement at that line gives a value: ["out", "self.h"]."""
    scope = scope_at(file, line)
    for node in inside(scope) if scope is not None else ():
        names = [ast.unparse(each) for each in _targets(node)]
        if names and getattr(node, "lineno", 0) <= line <= _last_line(node):
            return names
    return []


def every_assigned_on(file: str, line: int) -> list[str]:
    """The same of all statements at that line."""
    scope = scope_at(file, line)
    nodes = [
        node for node in inside(scope) if getattr(node, "lineno", 0) <= line <= _last_line(node)
    ] if scope is not None else []  # fmt: skip
    return [ast.unparse(each) for node in nodes for each in _targets(node)]


def assigned(file: str, attribute: str, kind: str = "") -> SourceLine | None:
    """Where ``self.attribute = …`` stands, in class ``kind``."""
    for node in nodes_of(file):
        if isinstance(node, ast.ClassDef) and (not kind or node.name == kind):
            for inner in ast.walk(node):
                if any(isinstance(each, ast.Attribute) and each.attr == attribute for each in _targets(inner)):
                    line: int = getattr(inner, "lineno", 0)
                    return SourceLine(file, line, getattr(scope_at(file, line), "name", "<module>"))
    return None


def assigned_before(file: str, line: int, name: str) -> tuple[int, ast.AST] | None:
    """The last line before ``line``, in the same function, that gives ``name`` ("x", "self.h") a value, and its
    statement. In a loop one further down may have come before: only where there is none above."""
    scope = scope_at(file, line)
    if scope is None:
        return None
    found = [
        (node.lineno, node)  # type: ignore[attr-defined]
        for node in inside(scope)
        if any(ast.unparse(each) == name for each in _targets(node))
    ]
    above = [each for each in found if each[0] < line]
    chosen = above or [each for each in found if each[0] > line]
    return max(chosen, key=lambda each: each[0]) if chosen else None


def expression_at(code: types.CodeType, lasti: int) -> ast.expr | None:
    """The expression that the instruction belongs to: the call or the operator that raised. None before Python 3.11."""
    asked = getattr(code, "co_positions", None)
    if lasti < 0 or asked is None:
        return None
    positions = list(asked())
    if lasti // 2 >= len(positions):
        return None
    wanted = positions[lasti // 2]
    for node in nodes_of(code.co_filename):
        if isinstance(node, (ast.expr, ast.AugAssign)) and wanted == (
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
        ):  # fmt: skip
            if isinstance(node, ast.AugAssign):  # `p -= x` takes what `p - x` does
                return ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
            return node
    return None


RATE = ("lr", "learning_rate")
EPS = ("eps", "epsilon")
PARAMETERS = ("params", "parameters", "parameter_list")


def argument_line(line: SourceLine | None, kind: str, names: Sequence[str], first: bool = False) -> SourceLine | None:
    """Of a call of class ``kind`` ("AdamW", "optimizer (AdamW)") that begins on a line and is written over several, the
    line of its argument of one of these names; else ``line``. ``first``: it is the first one where it is not named."""
    kind = kind.rpartition("(")[2].rstrip(")")
    for call in nodes_of(line.file) if line is not None else ():
        if line is None or not isinstance(call, ast.Call) or call.lineno != line.line or called_name(call) != kind:
            continue
        given = next((each.value for each in call.keywords if each.arg in names), None)
        if given is None and first and call.args:
            given = call.args[0]
        return SourceLine(line.file, given.lineno, line.function) if given is not None else line
    return line


def rate_line(line: SourceLine | None, kind: str, names: Sequence[str]) -> SourceLine | None:
    """As ``argument_line``, of a learning rate; where that is a schedule by a variable (Paddle's ``LinearWarmup(…,
    end_lr=3.0)``), the line that says how large it becomes."""
    found = argument_line(line, kind, names)
    calls = [each for each in nodes_of(line.file) if isinstance(each, ast.Call)] if line is not None else []
    made = next((each for each in calls if line is not None and each.lineno == line.line and each.keywords), None)
    given = next((each.value for each in made.keywords if each.arg in names), None) if made is not None else None
    if line is None or not isinstance(given, ast.Name):
        return found
    before = assigned_before(line.file, line.line, given.id)
    value = getattr(before[1], "value", None) if before is not None else None
    sizes = {each.arg: each.value for each in value.keywords} if isinstance(value, ast.Call) else {}
    names = ("end_lr",) if value is not None and called_name(value) == "LinearWarmup" else _RATES
    size = next((sizes[name] for name in names if name in sizes), None)
    if size is None:
        return found
    return SourceLine(line.file, size.lineno, getattr(scope_at(line.file, size.lineno), "name", "<module>"))


def operands_of(expression: ast.expr) -> list[ast.expr]:
    """What a call or an operator takes, the object whose method is called first."""
    if isinstance(expression, ast.Call):
        taken = [each.value if isinstance(each, ast.Starred) else each for each in expression.args]
        taken += [each.value for each in expression.keywords]
        if isinstance(expression.func, ast.Attribute):
            taken.insert(0, expression.func.value)
        return [item for each in taken for item in (each.elts if isinstance(each, (ast.List, ast.Tuple)) else [each])]
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    if isinstance(expression, ast.Compare):
        return [expression.left, *expression.comparators]
    if isinstance(expression, ast.Subscript):
        return [expression.value, expression.slice]
    return []


def returns_of(function: ast.AST) -> list[ast.Return]:
    return sorted(
        (each for each in inside(function) if isinstance(each, ast.Return) and each.value is not None),
        key=lambda each: each.lineno,
    )


def line_of_result(file: str, function: ast.AST, place: int, factor: bool = False) -> int:
    """Where a function makes its ``place``-th result: the last return, or the line that gave the variable which it
    returns there its value, or filled it: ``out[rows] += g`` after ``out = g.new_zeros(n)``. ``factor``: of a product
    of an argument and a variable that the function computes, the line that computes the variable. What was only taken
    from the context is made by no line of it."""
    returns = returns_of(function)
    if not returns:
        return getattr(function, "lineno", 0)
    value = returns[-1].value
    if isinstance(value, (ast.Tuple, ast.List)):
        if place >= len(value.elts):
            return returns[-1].lineno
        value = value.elts[place]
    line = value.lineno if value is not None else returns[-1].lineno
    for _ in range(5):
        other = _factor(function, value) if factor else None
        if other is not None:
            made = assigned_before(file, line, other.id)
            if made is None or made[0] >= line or _is_given(made[1], function):
                break
        elif not isinstance(value, ast.Name):
            break
        else:
            made = assigned_before(file, line, value.id)
            if made is not None and made[0] < line and _is_blank(made[1], function):
                filled = _filled(function, value.id, made[0], line)
                if filled:
                    return filled
        if made is None or made[0] >= line or _is_taken(made[1], function):
            break
        line, statement = made
        value = getattr(statement, "value", None)
    return line


def _is_blank(statement: ast.AST, function: ast.AST) -> bool:
    """Whether it makes a tensor that has yet to be filled, or a copy of an argument."""
    value = getattr(statement, "value", None)
    called = called_name(value) if isinstance(value, ast.Call) else ""
    return called.removeprefix("new_") in _BLANK or (called == "clone" and _is_given(statement, function))


def _filled(function: ast.AST, name: str, after: int, before: int) -> int:
    """The last statement between two lines that writes into what a variable holds; 0 where none does."""
    found = [0]
    for node in inside(function):
        here = getattr(node, "lineno", 0)
        if not after < here < before:
            continue
        into: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            into = [each.value if isinstance(each, ast.Subscript) else each for each in targets
                    if isinstance(each, ast.Subscript) or isinstance(node, ast.AugAssign)]  # fmt: skip
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            into = [node.func.value]
        if any(isinstance(each, ast.Name) and each.id == name for each in into):
            found.append(here)
    return max(found)


def _is_taken(statement: ast.AST, function: ast.AST) -> bool:
    """``x, = ctx.saved_tensors``, ``x = ctx.x``"""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and called_name(value) == "saved_tensor":  # Paddle's is a method
        value = value.func
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and (
        value.value.id in parameters_of(function)[:1]
    )  # fmt: skip


def _factor(function: ast.AST, value: ast.AST | None) -> ast.Name | None:
    """The variable in ``grad * variable``, where grad is an argument."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return None
    given = parameters_of(function)
    for one, other in ((value.left, value.right), (value.right, value.left)):
        if isinstance(one, ast.Name) and one.id in given and isinstance(other, ast.Name) and other.id not in given:
            return other
    return None


def _is_given(statement: ast.AST, function: ast.AST) -> bool:
    """Whether it only gets what an argument holds (``x, = ctx.saved_tensors``), or makes a mask: what is missing beside
    that is missing in the product."""
    value = getattr(statement, "value", None)
    if value is not None and any(isinstance(each, ast.Compare) for each in ast.walk(value)):
        return True
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Call)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return isinstance(value, ast.Name) and value.id in parameters_of(function)


def parameters_of(function: ast.AST) -> Sequence[str]:
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ()
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
