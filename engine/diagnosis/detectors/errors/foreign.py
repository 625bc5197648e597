"""What a module keeps in another dtype than its parameters: a table that NumPy computed in double precision. What it
returns has that dtype, too, and the next layer refuses it."""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Iterator
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.source import assigned, called_name, nodes_of, scope_at
from adbg.engine.diagnosis.values import Step, attribute, value_of
from adbg.engine.types import SourceLine


def kept_in(backend: Backend, steps: list[Step], line: SourceLine, dtype: str) -> tuple[str, SourceLine] | None:
    """("freqs of TimeEmbedding", the line that gave it to the module) of the only tensor of ``dtype`` that is no
    parameter, in the modules that are called on ``line`` of a function that runs."""
    frame = next((each for each, _ in steps if _has(each, line)), None)
    found: dict[int, tuple[str, SourceLine]] = {}
    for node in nodes_of(line.file):
        if frame is not None and isinstance(node, ast.Call) and node.lineno <= line.line <= (node.end_lineno or 0):
            for holder in _modules(value_of(frame, node.func)):
                for name, value in _buffers(holder):
                    given = given_to(type(holder), name) if backend.meta(value).dtype == dtype else None
                    if given is not None:
                        found[id(value)] = f"{name} of {type(holder).__name__}", given
    return next(iter(found.values())) if len(found) == 1 else None


def _has(frame: types.FrameType, line: SourceLine) -> bool:
    code = frame.f_code
    return os.path.abspath(code.co_filename) == os.path.abspath(line.file) and line.line in {
        number for _, _, number in code.co_lines()
    }


def _modules(holder: Any) -> Iterator[Any]:
    """A module and its parts."""
    for kept in ("_modules", "_sub_layers"):
        parts = attribute(holder, kept)
        if isinstance(parts, dict):
            yield holder
            for part in list(parts.values()):
                yield from _modules(part)


def _buffers(module: Any) -> list[tuple[str, Any]]:
    kept = attribute(module, "_buffers")
    return [(name, value) for name, value in list(kept.items()) if value is not None] if isinstance(kept, dict) else []


def given_to(kind: type, name: str) -> SourceLine | None:
    """Where a class of the user's registers it, else where it assigns it."""
    codes = [each.__code__ for each in list(vars(kind).values()) if isinstance(each, types.FunctionType)]
    file = os.path.abspath(codes[0].co_filename) if codes else ""
    for each in nodes_of(file):
        for node in ast.walk(each) if isinstance(each, ast.ClassDef) and each.name == kind.__name__ else ():
            if not isinstance(node, ast.Call) or called_name(node) != "register_buffer" or not node.args:
                continue
            if getattr(node.args[0], "value", None) == name:
                return SourceLine(file, node.lineno, getattr(scope_at(file, node.lineno), "name", "<module>"))
    return assigned(file, name, kind.__name__)
