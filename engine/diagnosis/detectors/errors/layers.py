"""Which attribute of the user's class holds a layer, and the line that made it."""

from __future__ import annotations

import ast
from typing import Any

from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.diagnosis.values import Step, attribute, value_of


def self_of(frame: Any) -> Any:
    names = frame.f_code.co_varnames[:1]
    return value_of(frame, ast.Name("self")) if names == ("self",) else None


def weights_of(steps: list[Step]) -> list[Any]:
    """What the framework's module whose forward failed has as such, tensors or not: its operator may have been given a
    view of one."""
    failed = next((holder for holder in (self_of(frame) for frame, _ in reversed(steps)) if holder is not None), None)
    return [attribute(failed, name) for name in ("weight", "bias")] if failed is not None else []


def path_to(owner: Any, wanted: Any, depth: int = 3) -> list[str] | None:
    """By which attributes ``owner`` leads to a module."""
    for kept in ("_modules", "_sub_layers"):
        parts = attribute(owner, kept)
        if not isinstance(parts, dict):
            continue
        for name, part in parts.items():
            if part is wanted:
                return [name]
            below = path_to(part, wanted, depth - 1) if depth else None
            if below is not None:
                return [name, *below]
    return None


def made_in(file: str, path: list[str], is_attribute: bool = True) -> int:
    """The line of ``self.NAME = …``; of a part of a Sequential there, the line of that part."""
    wanted = f"self.{path[0]}" if is_attribute else path[0]
    for node in nodes_of(file):
        if not isinstance(node, ast.Assign) or wanted not in [ast.unparse(each) for each in node.targets]:
            continue
        value, line = node.value, node.lineno
        for step in path[1:]:
            parts = value.args if isinstance(value, ast.Call) else []
            if len(parts) == 1 and isinstance(parts[0], (ast.List, ast.Tuple)):
                parts = parts[0].elts
            if not step.isdigit() or int(step) >= len(parts) or any(isinstance(p, ast.Starred) for p in parts):
                break
            value = parts[int(step)]
            line = value.lineno
        return line
    return 0
