"""Which attribute of the user's class holds a layer, and the line that made it."""

from __future__ import annotations

import ast
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.diagnosis.source import assigned_names, called_name, inside, nodes_of, parameters_of, scope_at
from adbg.engine.diagnosis.values import Step, attribute, is_users, value_of
from adbg.engine.types import SourceLine


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


def made_in(file: str, path: list[str], is_attribute: bool = True, owner: str = "") -> int:
    """The line of ``self.NAME = …``; of a part of a Sequential there, the line of that part. ``owner``: the class whose
    attribute it is, where others may have one of that name."""
    wanted = f"self.{path[0]}" if is_attribute else path[0]
    classes = [each for each in nodes_of(file) if isinstance(each, ast.ClassDef) and each.name == owner]
    own = [each for part in classes for each in ast.walk(part)]
    for node in (*own, *nodes_of(file)):
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


def outside(backend: Backend, steps: list[Step], indices: Any) -> str:
    """Which of the indices that a table refused is outside of it, and how many rows it has; "" where that cannot be
    read."""
    failed = next((holder for holder in (self_of(frame) for frame, _ in reversed(steps)) if holder is not None), None)
    if "Embedding" not in type(failed).__name__ or backend.meta(indices).dtype[:1] not in ("i", "u"):
        return ""
    table = next((each for each in weights_of(steps) if backend.is_tensor(each)), None)
    read = numbers(backend, indices) if table is not None else None
    rows = (backend.meta(table).shape or (0,))[0] if table is not None else 0
    flat = [int(each) for each in read.flat] if read is not None else []
    wrong = next((each for each in flat if each < 0), max(flat, default=0))
    return f" that holds {wrong} where the table has {rows} rows (0 to {rows - 1})" if not 0 <= wrong < rows else ""


def given_by(line: SourceLine) -> SourceLine:
    """The line that says how large the table made on ``line`` is: where its size is a parameter of the ``__init__`` it
    stands in, the only call of that class. ``line`` itself where it says so."""
    scope = scope_at(line.file, line.line)
    made = next(
        (each for each in nodes_of(line.file) if isinstance(each, ast.Call) and each.lineno == line.line
         and called_name(each).endswith("Embedding")), None,
    )  # fmt: skip
    by_name = [each.value for each in made.keywords if each.arg == "num_embeddings"] if made is not None else []
    size = next(iter([*made.args, *by_name]), None) if made is not None else None
    if not isinstance(size, ast.Name) or getattr(scope, "name", "") != "__init__":
        return line
    holders = [each for each in nodes_of(line.file) if isinstance(each, ast.ClassDef) and scope in each.body]
    given = list(parameters_of(scope)) if isinstance(scope, ast.FunctionDef) else []
    name = size.id
    calls = [
        each for each in nodes_of(line.file)
        if isinstance(each, ast.Call) and holders and called_name(each) == holders[0].name
    ]  # fmt: skip
    below = [
        each for each in nodes_of(line.file) if isinstance(each, ast.ClassDef) and holders
        and holders[0].name in [ast.unparse(base).rpartition(".")[2] for base in each.bases]
    ]  # fmt: skip
    bound = any(name in assigned_names(each) for each in inside(scope)) if scope is not None else True
    if len(calls) != 1 or name not in given or below or bound:
        return line
    if any(isinstance(each, ast.Starred) for each in calls[0].args):
        return line
    by_place = [each.arg for each in scope.args.args[1:]] if isinstance(scope, ast.FunctionDef) else []
    at = by_place.index(name) if name in by_place else len(calls[0].args)
    value = next((each.value for each in calls[0].keywords if each.arg == name), None)
    if value is None and at < len(calls[0].args):
        value = calls[0].args[at]
    if value is None:
        return line
    return SourceLine(line.file, value.lineno, getattr(scope_at(line.file, value.lineno), "name", "<module>"))


def layer_of(steps: list[Step], place: int) -> tuple[SourceLine, str] | None:
    """The line that made the module of the framework's whose forward failed, in the class that holds it."""
    failed = next(
        (holder for holder in (self_of(frame) for frame, _ in reversed(steps[place + 1 :])) if holder is not None),
        None,
    )
    if failed is None or not hasattr(failed, "training"):
        return None
    for frame, _ in reversed(steps[: place + 1]):
        owner = self_of(frame)
        path = path_to(owner, failed) if owner is not None and is_users(frame) else None
        if owner is not None and path is not None:
            file = frame.f_code.co_filename
            found = made_in(file, path, owner=type(owner).__name__)
            if found:
                return SourceLine(file, found, "__init__"), f"self.{'.'.join(path)} ({type(failed).__name__})"
        for name, value in ((n, value_of(frame, ast.Name(n))) for n in frame.f_code.co_names):
            if value is failed and is_users(frame) and (found := made_in(frame.f_code.co_filename, [name], False)):
                return SourceLine(frame.f_code.co_filename, found, "<module>"), name
    return None
