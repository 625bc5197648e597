"""Which lines of a file write in place what a statement of it takes, by the source alone: where nobody watched."""

from __future__ import annotations

import ast
import linecache
import re

from adbg.engine.diagnosis.source import inside, nodes_of, scope_at
from adbg.engine.types import SourceLine

_WRITES = re.compile(r"\w_\(|[-+*/%@&|^]=(?!=)|\]\s*=(?!=)|inplace\s*=\s*True|\bout\s*=|\.step\(|set_value|copy_")
_SWITCH = re.compile(r"\binplace\s*=\s*True")
_NAMED = frozenset({"set_value", "copy_", "exponential_", "uniform_", "normal_"})
_NEVER = frozenset({"requires_grad_", "retain_grad", "share_memory_", "detach_"})


def only_writer(taken: SourceLine) -> tuple[SourceLine, str] | None:
    """The only line of the file that writes in place what the statement at ``taken`` takes or makes, and its name there
    ("self.bank"). None where there is none, or several. A variable of a function is looked for there alone, an
    attribute of ``self`` in all of the file; constructors write before anybody takes."""
    scope = scope_at(taken.file, taken.line)
    if scope is None:
        return None
    names = _taken(scope, taken.line)
    found: dict[int, str] = {}
    for node in nodes_of(taken.file):
        name = written(node)
        line = int(getattr(node, "lineno", 0))
        if name not in names:
            continue
        where = scope_at(taken.file, line)
        if getattr(where, "name", "") == "__init__" or ("." not in name and where is not scope):
            continue
        found[line] = name
    if len(found) != 1:
        return None
    ((line, name),) = found.items()
    return SourceLine(taken.file, line, getattr(scope_at(taken.file, line), "name", "<module>")), name


def _taken(scope: ast.AST, line: int) -> set[str]:
    """What the statements at that line read and make: ["scores", "feats", "self.bank"]."""
    statements = [
        node for node in inside(scope)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]  # fmt: skip
    nodes = (node for each in statements for node in ast.walk(each))
    return {ast.unparse(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}


def written(node: ast.AST) -> str:
    """What a statement or a call writes in place: "self.bank" of ``self.bank[rows] = new``; "" for anything else."""
    if isinstance(node, ast.AugAssign):
        return ast.unparse(_base(node.target))
    if isinstance(node, ast.Assign):
        stored = [each for each in node.targets if isinstance(each, ast.Subscript)]
        return ast.unparse(_base(stored[0])) if stored else ""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return ""
    name = node.func.attr
    writes = name in _NAMED or (name.endswith("_") and not name.endswith("__"))
    return ast.unparse(_base(node.func.value)) if writes and name not in _NEVER else ""


def _base(node: ast.expr) -> ast.expr:
    """What a view of is written: ``self.bank`` of ``self.bank.data[rows]``."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in ("data", "T")):
        node = node.value
    return node


def switched(line: SourceLine | None) -> SourceLine | None:
    """Where a module was told to work in place (``nn.ReLU(inplace=True)``): the line to change, if one in the file of
    the call that runs it is the only one."""
    if line is None or _WRITES.search(linecache.getline(line.file, line.line).partition("#")[0]):
        return line
    lines = linecache.getlines(line.file)
    found = [at for at, text in enumerate(lines, 1) if _SWITCH.search(text.partition("#")[0])]
    return SourceLine(line.file, found[0], "") if len(found) == 1 else line
