"""The user's expressions and statements, evaluated where the program is stopped.

Runs on the parked thread (conditions: in the autograd hook). No exception of user code gets out: all become
CommandError of one line, and ``exit()`` inside an expression ends it, never the run. Only Ctrl-C gets out (at a stop it
ends the answer) and what the program's own signal handlers raise.
"""

from __future__ import annotations

import ast
import difflib
import functools
import symtable
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adbg.engine.errors import AdbgError, CommandError, UnknownName
from adbg.engine.outside import own
from adbg.engine.places import parsed
from adbg.engine.python.locals import write_locals
from adbg.engine.python.namespaces import GRADIENT_NAMES, Namespace, NormHelper, node_namespace
from adbg.engine.python.over import OverFrame
from adbg.engine.python.thread_stdout import thread_stdout

__all__ = [
    "GradTarget",
    "Namespace",
    "PythonTarget",
    "assign",
    "assign_item",
    "evaluate",
    "execute",
    "names_used",
    "node_namespace",
    "parse_target",
]

_FILE = "<adbg>"  # file name of code compiled here
_VALUE = "__adbg_value__"
_RESERVED = (*GRADIENT_NAMES, "saved")
_SELECT_LIVE = "`where` shows the frames, `frame N` selects one that runs"
_MAX_MESSAGE = 400  # characters of an exception's text


def evaluate(expression: str, namespace: Namespace) -> Any:
    """The value of an expression. Raises CommandError ("name 'nope' is not defined", "TypeError: ...")."""
    code, used = _expression(expression)
    with namespace.mode():
        try:
            value = eval(code, namespace.globals_for(used))
            return float(value) if isinstance(value, NormHelper) else value
        except (AdbgError, KeyboardInterrupt):
            raise
        except own(BaseException) as error:
            raise _explained(error, expression, namespace) from None


@functools.lru_cache(maxsize=512)
def _expression(text: str) -> tuple[types.CodeType, tuple[str, ...]]:
    """Code and the names that it mentions. Cached: a condition is compiled once, not at every hit."""
    text = text.strip()
    if not text:
        raise CommandError("nothing to evaluate", "example: p norm(grad_outputs[0])")
    try:
        tree = parsed(text, _FILE, "eval")
        code = _compile(tree, "eval")
    except SyntaxError as error:
        hint = "statements run with '!', a gradient is changed with 'set'" if _is_statement(text) else ""
        raise CommandError(_syntax_text(error), hint) from None
    except own(ValueError, RecursionError, MemoryError) as error:
        raise CommandError(f"not an expression: {error}") from None
    return code, _names_in(tree)


def names_used(expression: str) -> tuple[str, ...]:
    """Names that an expression mentions. Raises CommandError."""
    return _expression(expression)[1]


def _names_in(tree: ast.AST) -> tuple[str, ...]:
    return tuple({node.id: None for node in ast.walk(tree) if isinstance(node, ast.Name)})


def _compile(tree: Any, mode: str) -> types.CodeType:
    code: types.CodeType = compile(tree, _FILE, mode, dont_inherit=True)
    return code


def _is_statement(text: str) -> bool:
    try:
        parsed(text, _FILE, "exec")
    except own(SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _syntax_text(error: SyntaxError) -> str:
    line = f" in line {error.lineno}" if error.lineno and error.lineno > 1 else ""
    near = (error.text or "").strip()
    return f"{error.msg or 'invalid syntax'}{line}" + (f": {near[:80]}" if near else "")


def _explained(error: BaseException, source: str, namespace: Namespace) -> CommandError:
    """One line: what was raised, and where, unless it was in the one line typed."""
    place, typed = _place(error, source)
    if isinstance(error, NameError) and typed and not place:
        if getattr(error, "name", "") in ("nan", "inf"):
            return UnknownName(str(error), f"math.{error.name}, or float('{error.name}') where math is not imported")
        if namespace.over is not None:
            return UnknownName(*namespace.over.refusal(getattr(error, "name", "") or str(error)))
        name, known = getattr(error, "name", "") or "", namespace.own_names()
        if name in known:  # by exec(), into the dict of the frame that it was given
            return UnknownName(str(error), "what was typed gave it a value while it ran: use it in the next command")
        line = namespace.forward()
        made = OverFrame(line) if line is not None else None
        if made is not None and made.had(name):
            return UnknownName(*made.refusal(name))
        close = difflib.get_close_matches(name, known, 2, 0.7)
        return UnknownName(str(error), f"closest: {', '.join(close)}" if close else "")
    name = type(error).__name__
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except own(Exception):
        lines = []
    text = f"{name}: {lines[0][:_MAX_MESSAGE]}" if lines else name
    if isinstance(error, SystemExit):
        return CommandError(name, "`kill` ends the program, `quit` leaves adbg")
    return CommandError(text + place)


def _place(error: BaseException, source: str) -> tuple[str, bool]:
    """(" (at ...)" or "", whether it was raised by the text itself)."""
    trace = error.__traceback__
    typed_line, last = 0, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            typed_line = trace.tb_lineno
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "adbg" or typed_line == 0:
            last = trace
        trace = trace.tb_next
    lines = source.strip().splitlines()
    typed = f" (line {typed_line}: {lines[typed_line - 1].strip()[:80]})" if len(lines) >= typed_line > 0 else ""
    if last is None or last.tb_frame.f_code.co_filename == _FILE:
        return (typed if len(lines) > 1 else ""), True
    code = last.tb_frame.f_code
    where = f" (at {code.co_filename.rpartition('/')[2]}:{last.tb_lineno} in {code.co_name})"
    return where + (typed if len(lines) > 1 else ""), False


# ------------------------------------------------------------------ statements


def execute(statements: str, namespace: Namespace) -> str:
    """Run statements in the frame; returns what this thread printed, the last expression echoed as at a Python prompt.

    Assignments reach the frame's locals (its globals in a module, or with ``global``). A function defined here sees the
    names of this place with the values that they have now. Raises CommandError, with an attribute ``printed``.
    """
    tree = _statements(statements)
    assigned = _assigned(statements)
    for name in assigned:
        if name in _RESERVED and name in namespace.names:
            raise CommandError(f"{name} is not assigned by a statement", f"use: set {name}[0] = EXPR")
    if assigned and namespace.over is not None:
        raise CommandError(f"{min(assigned)} is not assigned in {namespace.over}: that call is over", _SELECT_LIVE)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    else:
        last = None
    with thread_stdout() as captured:
        try:
            value = _run(tree, last, statements, namespace, assigned)
            if value is not None:
                captured.write(namespace.text(value) + "\n")
        except CommandError as error:
            error.printed = captured.text  # type: ignore[attr-defined]
            raise
        return captured.text


def _statements(text: str) -> ast.Module:
    try:
        tree: ast.Module = parsed(text, _FILE, "exec")
        _compile(tree, "exec")
        return tree
    except SyntaxError as error:
        raise CommandError(_syntax_text(error)) from None
    except own(ValueError, RecursionError, MemoryError) as error:
        raise CommandError(f"not a statement: {error}") from None


def _assigned(text: str) -> frozenset[str]:
    """Names bound at the top level of the statements, without those declared ``global``."""
    symbols = symtable.symtable(text, _FILE, "exec")
    bound = {s.get_name() for s in symbols.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    declared = {name for node in _top_level(parsed(text)) if isinstance(node, ast.Global) for name in node.names}
    return frozenset(bound - declared)


def _top_level(tree: ast.AST) -> list[ast.AST]:
    """All nodes that run in the module's own scope."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        found.append(child)
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            found += _top_level(child)
    return found


def _run(
    tree: ast.Module,
    last: ast.Expr | None,
    source: str,
    namespace: Namespace,
    assigned: frozenset[str],
    extra: Mapping[str, Any] | None = None,
) -> Any:
    names = namespace.everything()
    names.update(extra or {})
    before = dict(names)
    value = None
    with namespace.mode():
        try:
            exec(_compile(tree, "exec"), names)
            if last is not None:
                value = eval(_compile(ast.Expression(last.value), "eval"), names)
        except (AdbgError, KeyboardInterrupt):
            raise
        except own(BaseException) as error:
            raise _explained(error, source, namespace) from None
        finally:
            _keep(before, names, assigned, namespace)
    return float(value) if isinstance(value, NormHelper) else value


def _keep(before: dict[str, Any], after: dict[str, Any], assigned: frozenset[str], namespace: Namespace) -> None:
    """Carry what the statements bound back into the frame, also when a later statement raised."""
    frame = namespace.frame
    if frame is None:
        return
    missing = object()
    changed = {name: value for name, value in after.items() if before.get(name, missing) is not value}
    changed.pop("__builtins__", None)
    changed.pop("__warningregistry__", None)
    gone = [name for name in before if name not in after]
    local_names = {name: value for name, value in changed.items() if name in assigned}
    frame.f_globals.update({name: value for name, value in changed.items() if name not in local_names})
    in_frame = frame.f_locals
    deleted = [name for name in gone if name in in_frame]
    for name in gone:
        if name not in in_frame:
            frame.f_globals.pop(name, None)
    if local_names or deleted:
        write_locals(frame, local_names, deleted)


# ------------------------------------------------------------------ set TARGET = VALUE


@dataclass(frozen=True, slots=True)
class GradTarget:
    """``grad_outputs[0]``; ``item`` is a further subscript ("[0, :4]"), "" for the whole gradient."""

    kind: str  # "grad_outputs" or "grad_inputs"
    index: int
    item: str = ""


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """A name, attribute or item in Python."""

    text: str


def parse_target(text: str, items: bool = False) -> GradTarget | PythonTarget:
    """What ``set TARGET = ...`` means. ``items``: the caller can edit a part of a gradient; else that is refused.

    Raises CommandError: no target, a gradient without its slot, a saved tensor.
    """
    text = text.strip()
    try:
        tree = parsed(text, _FILE, "eval").body
    except own(SyntaxError, ValueError, RecursionError, MemoryError):
        raise CommandError(
            f"{text!r} is nothing that can be set", "example: set grad_outputs[0] = grad_outputs[0] * 2"
        ) from None
    if not isinstance(tree, (ast.Name, ast.Attribute, ast.Subscript)):
        raise CommandError(f"{text!r} is nothing that can be set", "several at once: ! a, b = 1, 2")
    chain: list[ast.expr] = [tree]
    while isinstance(chain[-1], (ast.Attribute, ast.Subscript)):
        chain.append(chain[-1].value)
    base = chain[-1]
    if not isinstance(base, ast.Name) or base.id not in (*_RESERVED, "index", "node"):
        return PythonTarget(text)
    if base.id in GRADIENT_NAMES:
        return _grad_target(text, base.id, list(reversed(chain))[1:], items)
    if base.id == "saved":
        raise CommandError(
            "saved tensors are read-only: the framework checks that they are unchanged",
            "edit grad_outputs[i] before the node or grad_inputs[i] after it",
        )
    return PythonTarget(text)


def _grad_target(text: str, kind: str, path: list[ast.expr], items: bool) -> GradTarget:
    if not path:
        raise CommandError(f"{kind} has one entry per slot: name one", f"example: set {kind}[0] = {kind}[0] * 2")
    slot = path[0]
    try:
        index = ast.literal_eval(slot.slice) if isinstance(slot, ast.Subscript) else None
    except own(ValueError):
        index = None
    if not isinstance(index, int) or isinstance(index, bool):
        raise CommandError(f"{text!r}: the slot of {kind} must be a number", f"example: set {kind}[0] = {kind}[0] * 2")
    if not all(isinstance(step, ast.Subscript) for step in path):
        raise CommandError(f"{text!r} is not a part of a gradient", f"example: set {kind}[0] = {kind}[0] * 2")
    item = text.encode()[slot.end_col_offset :].decode().strip()
    if item and not items:
        raise CommandError(
            f"{text!r}: a gradient is set as a whole", f"example: set {kind}[{index}] = {kind}[{index}] * 2"
        )
    return GradTarget(kind, index, item)


def assign(target: PythonTarget, value: Any, namespace: Namespace) -> None:
    """Give ``target`` a value; a name that the frame has as a local is changed there. Raises CommandError."""
    source = f"{target.text} = {_VALUE}"
    tree = _statements(source)
    name = tree.body[0].targets[0] if isinstance(tree.body[0], ast.Assign) else None
    assigned = frozenset({name.id}) if isinstance(name, ast.Name) else frozenset()
    if assigned and namespace.frame is None:
        over = f"{namespace.over} is over" if namespace.over is not None else "no Python frame is selected"
        raise CommandError(f"cannot set {target.text!r}: {over}", _SELECT_LIVE)
    _run(tree, None, source, namespace, assigned, {_VALUE: value})


def assign_item(value: Any, item: str, new: Any, namespace: Namespace) -> None:
    """``value[item] = new`` for GradTarget.item, in place on ``value`` (the caller's clone). Raises CommandError."""
    source = f"__adbg_target__{item} = {_VALUE}"
    _run(_statements(source), None, source, namespace, frozenset(), {"__adbg_target__": value, _VALUE: new})
