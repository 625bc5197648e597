"""Whether a method keeps what it was given, or what it has made itself. Read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from adbg.engine.places import source_tree

CUTS = frozenset(("detach", "detach_", "item", "numpy", "tolist"))  #: they give no graph on


def makes_itself(files: Sequence[str], method: str, attribute: str) -> bool:
    """Whether each method of that name which gives ``self.attribute`` a value computes that of no parameter of its own:
    what a module gives for one (``self.model(x)``) it has made. False where there is no such method."""
    found = [value for file in files for value in _given(file, method, attribute)]
    return bool(found) and not any(found)


def _given(file: str, method: str, attribute: str) -> Iterator[bool]:
    """For each line there that gives it a value: whether a parameter goes into that, not detached."""
    tree = source_tree(file)
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef) or function.name != method:
            continue
        taken = {each.arg for each in (*function.args.args[1:], *function.args.kwonlyargs)}
        for node in ast.walk(function):
            if not isinstance(node, (ast.Assign, ast.AugAssign)):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute) and target.attr == attribute:
                    yield bool(_names(node.value) & taken)
            if isinstance(node, ast.Assign) and _names(node.value) & taken:
                taken |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _names(value: ast.expr) -> set[str]:
    """The variables that an expression takes with their graphs: ``rows`` of ``0.9 * self.mean + torch.mean(rows)``, and
    nothing of ``self.net(x)`` and ``rows.detach()``."""
    if isinstance(value, ast.Name):
        return {value.id}
    if isinstance(value, ast.Call):
        called = value.func
        if isinstance(called, ast.Attribute) and called.attr in CUTS:
            return set()
        if _is_own(called):
            return set()
        inner: list[ast.expr] = [*value.args, *(each.value for each in value.keywords)]
        if isinstance(called, ast.Attribute):
            inner.append(called.value)
    else:
        inner = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
    return set().union(*map(_names, inner))


def _is_own(called: ast.expr) -> bool:
    """``self.net`` of ``self.net(x)``."""
    while isinstance(called, (ast.Attribute, ast.Subscript)):
        called = called.value
    return isinstance(called, ast.Name) and called.id == "self"
