"""Where gradients are switched off, as the source has it: ``no_grad``, a decorator, a checkpoint."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterable

from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place
from adbg.engine.diagnosis.detectors.graphs.flow import UNRECORDED, Cut
from adbg.engine.diagnosis.source import assigned_names, called_name, inside, nodes_of, returns_of, scope_at
from adbg.engine.types import SourceLine

_OFF = re.compile(r"no_grad|inference_mode|set_grad_enabled\(\s*False|enable_grad\(\s*False")
_FEW = 4  # lines of a call that may be all of them: six are kept at most
_AGAIN = re.compile(r"\b(?:recompute|checkpoint|checkpoint_sequential)\(")
_HOOKED = ("register_forward_hook", "register_forward_post_hook", "register_module_forward_hook")
_STOPPED = re.compile(r"stop_gradient\s*=\s*True|requires_grad\s*=\s*False|detach_\(")


def cause_of(cut: Cut, cuts: Iterable[Cut] = (), trained: int = 0) -> SourceLine | None:
    """The line to change: where gradients were switched off, where that can be seen in the source. Of a ``with
    no_grad():`` around several statements, of which this one alone loses gradients of what is trained (bits), its own:
    the others are meant to be there."""
    line = line_of(cut.lines)
    if cut.why == UNRECORDED:
        for each in cut.lines:
            if (off := switch(each)) is not None:
                return _strayed(each, off, cut, cuts, trained) or off
        return checkpointed(cut) or line
    if line is not None and cut.hidden is None and (given := _given_by_hook(line)) is not None:
        return given
    if cut.hidden is not None and line is not None:
        for at in range(line.line, 0, -1) if cut.hidden.file == line.file else ():
            if _STOPPED.search(linecache.getline(line.file, at).partition("#")[0]):
                return SourceLine(line.file, at, line.function)
    return line


def _given_by_hook(line: SourceLine) -> SourceLine | None:
    """The ``return`` of a forward hook that gives back what it detached to look at: the detached tensor takes the place
    of the module's output."""
    scope = scope_at(line.file, line.line)
    if not isinstance(scope, ast.FunctionDef) or not _is_hook(line.file, scope):
        return None
    names = {each for node in inside(scope) if isinstance(node, ast.Assign)
             and node.lineno <= line.line <= (node.end_lineno or 0) for each in assigned_names(node)}  # fmt: skip
    returned = [each for each in returns_of(scope) if isinstance(each.value, ast.Name) and each.value.id in names]
    return SourceLine(line.file, returned[0].lineno, line.function) if len(returned) == 1 else None


def _is_hook(file: str, function: ast.FunctionDef) -> bool:
    """Whether a call registers the function for forwards, or what a function around it returns."""
    outer = (each for each in nodes_of(file) if isinstance(each, ast.FunctionDef) and function in inside(each))
    names = {function.name, *(each.name for each in outer)}
    registers = (each for each in nodes_of(file) if isinstance(each, ast.Call) and called_name(each) in _HOOKED)
    given = (part for each in registers for one in each.args for part in ast.walk(one))
    return any(getattr(each, "id", getattr(each, "attr", "")) in names for each in given)


def _strayed(at: SourceLine, off: SourceLine, cut: Cut, cuts: Iterable[Cut], trained: int) -> SourceLine | None:
    """The statement at ``at`` of the block that begins at ``off``, where it has nothing to do with the others. Only of
    operators that it calls itself: what a class of the program's calls has one line for all modules of that class."""
    block = next((each for each in nodes_of(off.file) if isinstance(each, ast.With) and each.lineno == off.line), None)
    mine = _holding(block.body, at) if block is not None else None
    if block is None or mine is None or not trained or line_of(cut.lines) != at:
        return None
    others = [each for each in block.body if each is not mine]
    if not any(isinstance(each, ast.Call) for other in others for each in ast.walk(other)):
        return None
    for other in others:
        given = _names(other, ast.Store) & _names(mine, ast.Load) or _names(mine, ast.Store) & _names(other, ast.Load)
        if given:
            return None
    for more in cuts:
        if more is cut or more.why != UNRECORDED or not more.lost & trained:
            continue
        here = [each for each in more.lines if (each.file, each.function) == (at.file, at.function)]
        if any(_holding(block.body, each) not in (None, mine) for each in here) or (
            not here and len(more.lines) > _FEW
        ):
            return None  # another one is lost there, or too deep below it to be seen
    return SourceLine(at.file, mine.lineno, at.function)


def _holding(body: list[ast.stmt], line: SourceLine) -> ast.stmt | None:
    return next((each for each in body if each.lineno <= line.line <= (each.end_lineno or 0)), None)


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    """Variables and attributes (``self.a``) that it reads or writes."""
    found = (each for each in ast.walk(statement) if isinstance(each, (ast.Name, ast.Attribute)))
    return {ast.unparse(each) for each in found if isinstance(each.ctx, context)}


def checkpointed(cut: Cut) -> SourceLine | None:
    """The call of a checkpoint that runs a line under no_grad, where no switch can be seen in the source."""
    if any(switch(each) is not None for each in cut.lines):
        return None
    called = (each for each in cut.lines[1:] if _AGAIN.search(linecache.getline(each.file, each.line)))
    return next(called, None)


def words_of(cut: Cut, at: str) -> str:
    """What was lost at a place, in a clause."""
    if cut.why == UNRECORDED:
        if checkpointed(cut) is not None:
            return (
                f"what {at} checkpoints is given nothing that needs a gradient, so its result has none: with "
                "use_reentrant=False its parameters get theirs"
            )
        off = next((found for each in cut.lines if (found := switch(each)) is not None), None)
        if off is not None and place(off) != at and not at.endswith("an unknown line"):
            return f"{at} computes what they depend on within the no_grad block of {place(off)}: move it out of it"
        return f"{at} computes under no_grad what they depend on"
    if cut.hidden is not None:
        return f"what {place(cut.hidden)} made was told to carry no gradient ({at})"
    if any(line.file.endswith(f"{os.sep}copy.py") and line.function == "deepcopy" for line in cut.lines):
        return f"{at} computes on a deep copy, whose parameters are leaves of their own: gradients stay with them"
    return f"at {at} {cut.why if cut.name == '__array__' else f'{cut.name}: {cut.why}'}"


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
