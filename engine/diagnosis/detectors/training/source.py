"""What the source says where no event does: statements between two lines, and names that are never called."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeGuard

from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at, tree_of
from adbg.engine.diagnosis.source import inside as nodes_inside
from adbg.engine.types import SourceLine


def place(line: SourceLine | None) -> str:
    """``FILE:LINE`` as a sentence has it."""
    return f"{os.path.basename(line.file)}:{line.line}" if line is not None else "a line that is not known"


def between(
    first: SourceLine | None, last: SourceLine | None, pattern: str, but: Collection[SourceLine | None] = ()
) -> SourceLine | None:
    """The only line that matches ``pattern`` between two lines of one file; else the only one of the file, without
    those that are known to be something else."""
    if first is None or last is None:
        return None
    wanted = re.compile(pattern)
    text = linecache.getlines(first.file)
    known = {line.line for line in but if line is not None and line.file == first.file}
    every = [at for at, line in enumerate(text, 1) if at not in known and wanted.search(line.partition("#")[0])]
    inside = [number for number in every if first.file == last.file and first.line < number < last.line]
    found = inside if inside else every
    if len(found) != 1:
        return None
    return SourceLine(first.file, found[0], _function(first.file, found[0]))


def uncalled(file: str, name: str, of: Collection[str] = ()) -> SourceLine | None:
    """A statement ``anything.name`` without parentheses; of the variables or attributes ``of`` alone, where given."""
    for node in nodes_of(file):
        value = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(value, ast.Attribute) or value.attr != name:
            continue
        if not of or ast.unparse(value.value).rpartition(".")[2] in of:
            return SourceLine(file, value.lineno, _function(file, value.lineno))
    return None


def once_before(line: SourceLine, name: str) -> SourceLine | None:
    """The call of ``name`` (``model.train()``) before the outermost loop around ``line``, where no other of that name
    is called in the loop, nor in what the loop calls: it is made once, of what the line calls. In the function of the
    line, else around the only call of that function."""
    text = linecache.getline(line.file, line.line)
    found = _once(line.file, line.line, name, lambda of: re.search(rf"(?<![\w.]){re.escape(of)}\s*[.(]", text))
    scope = scope_at(line.file, line.line)
    if found is not None or not isinstance(scope, ast.FunctionDef):
        return found
    calls = [each for each in nodes_of(line.file) if isinstance(each, ast.Call) and called_name(each) == scope.name]
    if len(calls) != 1:
        return None
    given = {ast.unparse(each) for each in (*calls[0].args, *(one.value for one in calls[0].keywords))}
    return _once(line.file, calls[0].lineno, name, given.__contains__)


def _once(file: str, line: int, name: str, is_meant: Callable[[str], object]) -> SourceLine | None:
    scope = scope_at(file, line)
    nodes = list(nodes_inside(scope)) if scope is not None else []
    loops = [each for each in nodes if isinstance(each, (ast.For, ast.While)) and _has(each, line)]
    if not loops:
        return None
    loop = min(loops, key=lambda each: each.lineno)
    before = [each for each in nodes if isinstance(each, ast.Call) and called_name(each) == name
              and each.lineno < loop.lineno]  # fmt: skip
    called = {called_name(each) for each in ast.walk(loop)}
    functions = [each for each in nodes_of(file) if isinstance(each, ast.FunctionDef) and each.name in called]
    if len(before) != 1 or any(called_name(each) == name for part in (loop, *functions) for each in ast.walk(part)):
        return None
    of = before[0].func
    if not isinstance(of, ast.Attribute) or not is_meant(ast.unparse(of.value)):
        return None  # another model's
    return SourceLine(file, before[0].lineno, _function(file, before[0].lineno))


def _has(node: ast.stmt, line: int) -> bool:
    return node.lineno < line <= (node.end_lineno or 0)


_FREEZES = re.compile(
    r"requires_grad\s*=\s*False|requires_grad_\(\s*(requires_grad\s*=\s*)?False|stop_gradient\s*=\s*True"
    r"|trainable\s*=\s*False"
)
# Computed: ``p.requires_grad = name in chosen``
_MAY_FREEZE = re.compile(
    r"\.(?:requires_grad|stop_gradient)\s*=(?!=)\s*(?!True\b|False\b)\S|requires_grad_\(\s*(?!True|requires_grad)\w"
)


def freezing(files: Iterable[str], names: Iterable[str]) -> SourceLine | None:
    """The line that freezes tensors of those names ("backbone.0.weight"): the only one that freezes anything, else the
    only one that, with the loop around it, mentions a part of such a name. Where none freezes for certain, the only one
    that computes whether to."""
    parts = {part for name in names for part in name.split(".") if part.isidentifier()} - {"weight", "bias"}
    found, fitting, computed = [], [], []
    for file in files:
        lines = linecache.getlines(file)
        for number, line in enumerate(lines, 1):
            code = line.partition("#")[0]
            if _MAY_FREEZE.search(code):
                computed.append((file, number))
            if _FREEZES.search(code) and not code.lstrip().startswith(("def ", "async def ")):  # a default freezes none
                found.append((file, number))
                if parts & set(re.findall(r"[A-Za-z_]\w*", _with_loop(file, number, line))):
                    fitting.append((file, number))
    chosen = computed if not found else found if len(found) == 1 else fitting
    return SourceLine(*chosen[0], _function(*chosen[0])) if len(chosen) == 1 else None


def _with_loop(file: str, number: int, line: str) -> str:
    """A line and the head of the innermost ``for`` around it."""
    heads = [
        ast.unparse(node.iter) for node in nodes_of(file)
        if isinstance(node, ast.For) and node.lineno <= number <= (node.end_lineno or 0)
    ]  # fmt: skip
    return f"{line} {heads[-1]}" if heads else line


def assigning(near: SourceLine, attribute: str) -> SourceLine | None:
    """The only statement that assigns an attribute of that name something other than False: in the function of a line,
    after it, else in its file."""
    scope = scope_at(near.file, near.line)
    for nodes, first in ((nodes_inside(scope) if scope is not None else (), near.line), (nodes_of(near.file), 0)):
        found = {
            node.lineno
            for node in nodes
            if isinstance(node, ast.Assign) and node.lineno >= first
            and any(isinstance(each, ast.Attribute) and each.attr == attribute for each in node.targets)
            and not (isinstance(node.value, ast.Constant) and not node.value.value)
        }  # fmt: skip
        if len(found) == 1:
            line = found.pop()
            return SourceLine(near.file, line, _function(near.file, line))
    return None


def replacing(files: Iterable[str], paths: Iterable[str], optimizer: str) -> SourceLine | None:
    """The only line that gives the module of parameters ("head.weight", "head.bias") another value after its
    constructor; in a function that knows nothing of the ``optimizer``, the only line that calls it."""
    known = sorted(set(files))
    split = [path.split(".") for path in paths]
    parts = [each[:-1] or each for each in split]
    names = [part for part in reversed(parts[0]) if part.isidentifier()] if parts else []
    for name in names if all(each == parts[0] for each in parts) else ():
        found = [(file, node) for file in known for node in nodes_of(file) if _assigns(node, name)]
        scopes = [scope_at(file, node.lineno) for file, node in found]
        behind = [each for each, scope in zip(found, scopes) if getattr(scope, "name", "") != "__init__"]
        if len(behind) == 1:
            file, node = behind[0]
            line = SourceLine(file, node.lineno, _function(file, node.lineno))
            return _called_in(known, line, optimizer) or line
        if behind:
            return None
    return None


def _assigns(node: ast.AST, name: str) -> TypeGuard[ast.Assign]:
    if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Constant):
        return False
    flat = [each for target in node.targets for each in getattr(target, "elts", [target])]
    return any(isinstance(each, ast.Attribute) and each.attr == name for each in flat)


def _called_in(files: Iterable[str], line: SourceLine, optimizer: str) -> SourceLine | None:
    """The only line that calls the function which ``line`` is in, where that does not name the optimizer."""
    scope = scope_at(line.file, line.line)
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    if any(optimizer in (getattr(each, "id", ""), getattr(each, "attr", "")) for each in ast.walk(scope)):
        return None
    found = {
        (file, node.lineno) for file in files for node in nodes_of(file)
        if isinstance(node, ast.Call) and called_name(node) == scope.name
    }  # fmt: skip
    if len(found) != 1:
        return None
    file, number = found.pop()
    return SourceLine(file, number, _function(file, number))


def dropping(file: str, line: int) -> str | None:
    """The call of a dropout function at a line that says nothing of a mode: "F.dropout(x)". None where it does, and for
    methods of ``self``, which are modules."""
    for node in nodes_of(file):
        if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        name = called_name(node)
        text = ast.unparse(node)
        if not (name.endswith("dropout") or name[:-2].endswith("dropout") or name == "scaled_dot_product_attention"):
            continue
        if text.startswith("self.") or "training" in text or (name.startswith("dropout") and len(node.args) > 2):
            continue
        return text
    return None


def dropped(line: SourceLine) -> Iterator[ast.expr]:
    """What is called at a line by statements that drop the result: ``net(x)``, ``_ = net(x)``."""
    for node in nodes_of(line.file):
        if not isinstance(node, (ast.Expr, ast.Assign)) or not node.lineno <= line.line <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.Assign) and any(getattr(each, "id", "") != "_" for each in node.targets):
            continue
        if isinstance(node.value, ast.Call):
            yield node.value.func


def named(file: str, pattern: str) -> bool:
    """Whether the pattern is anywhere in the code of a file."""
    wanted = re.compile(pattern)
    return any(wanted.search(line.partition("#")[0]) for line in linecache.getlines(file))


def _function(file: str, line: int) -> str:
    """The innermost function around a line, as frames name it."""
    return str(getattr(scope_at(file, line), "name", "<module>"))


def dividing(scheduler: SourceLine | None) -> SourceLine | None:
    """The only integer division (``step // warmup``) of the function of this file that the scheduler made there is
    given."""
    tree = tree_of(scheduler.file) if scheduler is not None else None
    if tree is None or scheduler is None:
        return None
    given: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno <= scheduler.line <= (node.end_lineno or node.lineno):
            values = [*node.args, *(each.value for each in node.keywords)]
            given |= {
                ast.unparse(each).rpartition(".")[2] for each in values if isinstance(each, (ast.Name, ast.Attribute))
            }
    found = {
        inner.lineno
        for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in given
        for inner in ast.walk(node) if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.FloorDiv)
    }  # fmt: skip
    return SourceLine(scheduler.file, found.pop(), "") if len(found) == 1 else None


def switched_off(line: SourceLine, clearing: str) -> tuple[SourceLine, str] | None:
    """Where the function that ``line`` is in clears gradients only if one of its arguments says so, which by default
    it does not: (the line of the function, "step(fresh=False)")."""
    scope = scope_at(line.file, line.line)
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    arguments = [*scope.args.posonlyargs, *scope.args.args]
    given = dict(zip([each.arg for each in arguments[::-1]], scope.args.defaults[::-1]))
    only = zip(scope.args.kwonlyargs, scope.args.kw_defaults)
    given |= {each.arg: value for each, value in only if value is not None}
    off = {name for name, value in given.items() if isinstance(value, ast.Constant) and not value.value}
    for node in nodes_inside(scope):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id in off:
            calls = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
            if any(each.split(".")[-1] == clearing for each in calls):
                name = node.test.id
                shown = f"{scope.name}({name}={ast.unparse(given[name])})"
                return SourceLine(line.file, scope.lineno, scope.name), shown
    return None
