"""``stackTrace``, ``scopes``, ``variables``, ``setVariable``. Runs on the parked thread; ``running_stack`` on
"adbg-reader".
"""

from __future__ import annotations

import os
from typing import Any

from adbg.engine.errors import CommandError
from adbg.engine.inspect.context import FrameEntry, StopContext
from adbg.engine.inspect.evaluate import assign, value_at
from adbg.engine.inspect.node import attribute_rows, gradient_slots, saved_slots
from adbg.engine.inspect.value_text import tensor_text, type_name
from adbg.engine.inspect.variables import Child, Holder, References, names_page
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import Scope, Source, StackFrame, Variable
from adbg.engine.python import expressions as python
from adbg.engine.python.user_code import running_frames, source_line
from adbg.engine.types import SlotView

MANY_NAMES = 200  # a scope with more is marked expensive: a client should page it, not open it by itself


# ------------------------------------------------------------------ stackTrace


def stack_trace(stop: StopContext, request: protocol.StackTrace) -> protocol.StackTraceBody:
    """A page of the frames of this stop."""
    frames = stop.frames
    page = _cut(frames, request)
    return protocol.StackTraceBody([_stack_frame(entry) for entry in page], len(frames), stop.forward_note)


def running_stack(request: protocol.StackTrace) -> protocol.StackTraceBody:
    """``stackTrace`` of a thread that is not parked: where it is at this moment; no locals."""
    live, note = running_frames(request.threadId)
    entries = [FrameEntry(i, "live", f.f_code.co_name, source_line(f)) for i, f in enumerate(live, 1)]
    return protocol.StackTraceBody([_stack_frame(entry) for entry in _cut(entries, request)], len(entries), note)


def _cut(frames: list[FrameEntry], request: protocol.StackTrace) -> list[FrameEntry]:
    start = max(0, request.startFrame)
    return frames[start : start + request.levels] if request.levels > 0 else frames[start:]


def _stack_frame(entry: FrameEntry) -> StackFrame:
    line = entry.location
    source = Source(os.path.basename(line.file), line.file) if line is not None else None
    return StackFrame(
        id=entry.id,
        name=entry.name,
        line=line.line if line is not None else 0,
        source=source,
        kind=entry.kind,
        locals=entry.python is not None,
    )


# ------------------------------------------------------------------ scopes


def scopes(stop: StopContext, references: References, request: protocol.Scopes) -> protocol.ScopesBody:
    """Of a node: Gradients, Saved tensors, Attributes; of a live frame: Locals, Globals; of a forward frame: none."""
    entry = stop.frame(request.frameId)
    if entry.graph is not None and entry.key is not None:
        return protocol.ScopesBody(_node_scopes(stop, references, entry))
    if entry.python is None:
        return protocol.ScopesBody([])
    frame = entry.python
    found = [_names_scope(references, "Locals", lambda: frame.f_locals, entry.id)]
    if frame.f_locals is not frame.f_globals:
        found.append(_names_scope(references, "Globals", lambda: frame.f_globals, entry.id))
    return protocol.ScopesBody(found)


def _names_scope(references: References, name: str, names: Any, frame_id: int) -> Scope:
    reference = references.add(
        Holder(
            children=lambda start, count: names_page(names(), start, count),
            total=lambda: len(names()),
            frame_id=frame_id,
        )
    )
    return Scope(name, reference, expensive=name == "Globals" or len(names()) > MANY_NAMES)


def _node_scopes(stop: StopContext, references: References, entry: FrameEntry) -> list[Scope]:
    graph, key = entry.graph, entry.key
    assert graph is not None and key is not None

    def slots() -> list[Variable]:
        outputs, inputs = gradient_slots(stop, graph, key)
        return [_slot_variable(slot) for slot in (*outputs, *inputs)]

    def saved() -> list[Variable]:
        return [_slot_variable(slot, references, stop, entry) for slot in saved_slots(stop, graph, key)]

    def attributes() -> list[Child]:
        return [Child(name, _Text(text)) for name, text in attribute_rows(graph, key).items()]

    def scope(name: str, make: Any, writable: str) -> Scope:
        holder = Holder(
            children=lambda start, count: make()[start : start + count],
            total=lambda: len(make()),
            frame_id=entry.id,
            writable=writable,
        )
        return Scope(name, references.add(holder))

    return [
        scope("Gradients", slots, "gradients" if entry.kind == "node" else "only the current node has its gradients"),
        scope("Saved tensors", saved, "saved tensors are read-only: the framework checks that they are unchanged"),
        scope("Attributes", attributes, "attributes of a node are read-only"),
    ]


class _Text:
    """A text that shows without quotes."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _slot_variable(
    slot: SlotView,
    references: References | None = None,
    stop: StopContext | None = None,
    entry: FrameEntry | None = None,
) -> Variable:
    """A gradient or saved tensor as one line; a saved container can be expanded."""
    reference = 0
    if slot.meta is not None:
        text = tensor_text(slot.meta, slot.norm)
    else:
        text = slot.text.removeprefix(f"{slot.name} = ")
        if references is not None and stop is not None and entry is not None and slot.expression:
            value = value_at(stop, slot.expression, entry.id)
            reference = references.value(value, slot.expression, entry.id)
    if slot.edge:
        text += f"  {'from' if slot.name.startswith('grad_outputs') else 'to'} {slot.edge}"
    return Variable(
        name=slot.name,
        value=text,
        type="tensor" if slot.meta is not None else "",
        variablesReference=reference,
        evaluateName=slot.expression,
        adbg=slot.meta,
    )


# ------------------------------------------------------------------ variables


def variables(references: References, request: protocol.Variables) -> protocol.VariablesBody:
    """A page of what a reference holds, counted from 0."""
    return protocol.VariablesBody(references.page(request.variablesReference, request.start, request.count))


def set_variable(stop: StopContext, references: References, request: protocol.SetVariable) -> protocol.SetVariableBody:
    """Give a variable of a scope or container a value; a gradient is handed to the engine.

    Raises:
        CommandError: it is read-only, unknown, or the value is refused.
    """
    holder = references.holder(request.variablesReference)
    if holder.writable == "gradients":
        target = python.parse_target(request.name)
        if not isinstance(target, python.GradTarget):
            raise CommandError(f"no gradient {request.name!r} at this node", "grad_outputs[i] or grad_inputs[i]")
        stop.gradients.check_edit(target.kind, target.index)
        value = stop.gradients.replace(target.kind, target.index, value_at(stop, request.value, holder.frame_id))
    elif holder.writable == "python":
        expression = references.expression(request.variablesReference, request.name)
        value = value_at(stop, request.value, holder.frame_id)
        assign(stop, python.PythonTarget(expression), value, holder.frame_id)
    else:
        raise CommandError(f"{request.name} cannot be set: {holder.writable}")
    return protocol.SetVariableBody(stop.text(value), type_name(value))
