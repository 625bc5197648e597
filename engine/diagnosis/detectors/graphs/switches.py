"""Where gradients are switched off, as the source has it: ``no_grad``, a decorator, a checkpoint."""

from __future__ import annotations

import linecache
import re

from adbg.engine.diagnosis.detectors.graphs.calls import line_of
from adbg.engine.diagnosis.detectors.graphs.flow import UNRECORDED, Cut
from adbg.engine.types import SourceLine

_OFF = re.compile(r"no_grad|inference_mode|set_grad_enabled\(\s*False|enable_grad\(\s*False")
_AGAIN = re.compile(r"\b(?:recompute|checkpoint|checkpoint_sequential)\(")
_STOPPED = re.compile(r"stop_gradient\s*=\s*True|requires_grad\s*=\s*False|detach_\(")


def cause_of(cut: Cut) -> SourceLine | None:
    """The line to change: where gradients were switched off, where that can be seen in the source."""
    line = line_of(cut.lines)
    if cut.why == UNRECORDED:
        off = next((found for each in cut.lines if (found := switch(each)) is not None), None)
        return off or checkpointed(cut) or line
    if cut.hidden is not None and line is not None:
        for at in range(line.line, 0, -1) if cut.hidden.file == line.file else ():
            if _STOPPED.search(linecache.getline(line.file, at).partition("#")[0]):
                return SourceLine(line.file, at, line.function)
    return line


def checkpointed(cut: Cut) -> SourceLine | None:
    """The call of a checkpoint that runs a line under no_grad, where no switch can be seen in the source."""
    if any(switch(each) is not None for each in cut.lines):
        return None
    called = (each for each in cut.lines[1:] if _AGAIN.search(linecache.getline(each.file, each.line)))
    return next(called, None)


def switch(line: SourceLine) -> SourceLine | None:
    """The ``with no_grad():`` around a line, or the decorator of its function."""
    text = linecache.getline(line.file, line.line)
    depth = len(text) - len(text.lstrip())
    if _OFF.search(text.partition("#")[0]):
        return line
    for at in range(line.line - 1, 0, -1):
        text = linecache.getline(line.file, at)
        bare = text.strip()
        if not bare:
            continue
        inner = len(text) - len(text.lstrip())
        code = text.partition("#")[0]
        if inner < depth or (inner == depth and bare.startswith("@")):
            if _OFF.search(code):
                return SourceLine(line.file, at, line.function)
            depth = inner
            if bare.startswith(("def ", "async def ")):
                return _decorator(line, at, inner)
        elif inner == depth and re.search(r"set_grad_enabled\(\s*False", code):
            return SourceLine(line.file, at, line.function)
    return None


def _decorator(line: SourceLine, at: int, depth: int) -> SourceLine | None:
    for above in range(at - 1, 0, -1):
        text = linecache.getline(line.file, above)
        if not text.strip().startswith("@") or len(text) - len(text.lstrip()) != depth:
            return None
        if _OFF.search(text.partition("#")[0]):
            return SourceLine(line.file, above, line.function)
    return None
