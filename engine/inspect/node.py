"""``adbg/node``: one node in full. Runs on the parked thread. Only the current node has its gradients; of the
others this says what was seen, and why the rest is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from adbg.engine.backends.base import BackwardCall, Graph, SavedValue
from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.graph.index import GraphIndex, index_of
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.find import find_key
from adbg.engine.inspect.graph import position_in, state_of
from adbg.engine.inspect.value_text import is_tensor, norm_of
from adbg.engine.protocol import messages as protocol
from adbg.engine.session.kept import MISSING
from adbg.engine.types import Contribution, SlotView, TensorMeta, ValueState, remark_of

GRADIENT_NORM = 1 << 24  # elements: 2.4 ms at 586 us per 4M; larger gradients show no norm unasked
_NEIGHBOURS = 3


def node_body(stop: StopContext, request: protocol.Node) -> protocol.NodeBody:
    """The node that ``request`` names, by default the current one.

    Raises:
        CommandError: no such node, or several of that name.
    """
    graph, state = stop.graph()
    index = index_of(graph)
    if request.name:
        key = find_key(stop, graph, request.name)
    elif request.index or stop.point.key is None:  # at no node: the first to run, at the end the last that ran
        key = index.key_at(request.index or min(max(position_in(stop, graph, state, index), 1), index.total))
    else:
        key = stop.point.key
    at = index.position.get(key, 0)
    ran = state.ran.get(key) if state is not None else None
    here = position_in(stop, graph, state, index)
    now = state_of(at, here, ran is not None)
    outputs, inputs = gradient_slots(stop, graph, key, now == "todo")
    forward, forward_note = graph.forward_stack(key)
    parts, parts_note = contributions(stop, graph, key)
    us = ran.us if ran is not None else None
    return protocol.NodeBody(
        node=graph.describe(key),
        state=now,
        index=at,
        grad_outputs=outputs,
        grad_inputs=inputs,
        saved=saved_slots(stop, graph, key),
        attributes=attribute_rows(graph, key),
        consumers=list(dict.fromkeys(index.position[k] for k, _ in index.consumers(graph, key))),
        producers=list(dict.fromkeys(index.position[e.to] for e in graph.edges(key) if e.to in index.position)),
        contributions=parts,
        contributions_note=parts_note,
        forward=list(forward),
        forward_note=forward_note,
        us=stop.point.stop.elapsed_us if us is None and key == stop.point.key else us,
    )


# ------------------------------------------------------------------ gradients


def gradient_slots(
    stop: StopContext, graph: Graph, key: int, todo: bool = False
) -> tuple[list[SlotView], list[SlotView]]:
    """(grad_outputs, grad_inputs) of a node, as far as they are known: live at the current node, copies where the
    program stopped before. grad_inputs are empty before the node ran (``todo``)."""
    point = stop.point
    outputs: list[SlotView]
    current = graph is point.graph and key == point.key
    ran = next((s.ran.get(key) for s in point.calls if s.call is graph), None)
    if current and point.grad_outputs is not None:
        outputs = [
            _live_slot(stop, f"grad_outputs[{i}]", value, source_of(graph, key, i))
            for i, value in enumerate(point.grad_outputs)
        ]
    elif (kept := stop.kept(graph, key, "grad_outputs")) is not None:
        outputs = [_kept_slot(stop, "grad_outputs", i, kept[i], source_of(graph, key, i)) for i in range(len(kept))]
    else:
        ahead = ValueState.NOT_YET if todo or stop.is_ahead(graph, key) else ValueState.NOT_KEPT
        state = ValueState.NOT_HOOKED if current else ahead
        outputs = [
            SlotView(
                name=f"grad_outputs[{i}]",
                expression="",
                meta=replace(meta, state=state),
                edge=source_of(graph, key, i),
                norm=ran.norm if ran is not None and i == 0 else None,
            )
            for i, meta in enumerate(graph.input_meta(key))
        ]
    if current and point.grad_inputs is not None:
        inputs = [
            _live_slot(stop, f"grad_inputs[{i}]", value, target_of(graph, key, i))
            for i, value in enumerate(point.grad_inputs)
        ]
    elif not current and (kept := stop.kept(graph, key, "grad_inputs")) is not None:
        inputs = [_kept_slot(stop, "grad_inputs", i, kept[i], target_of(graph, key, i)) for i in range(len(kept))]
    else:
        missing = remark_of(ValueState.NOT_KEPT)
        inputs = [
            SlotView(f"grad_inputs[{i}]", "", None, target_of(graph, key, i), text=f"{text} ({missing})")
            for i, text in enumerate(ran.grad_inputs if ran is not None else ())
        ]
    return outputs, inputs


def _live_slot(stop: StopContext, expression: str, value: object, edge: str) -> SlotView:
    meta = tensor_meta(stop, value)
    norm = norm_of(stop.backend, value, meta, GRADIENT_NORM) if meta.shape is not None else None
    return SlotView(expression, expression, meta, edge, norm)


def _kept_slot(stop: StopContext, kind: str, index: int, value: object, edge: str) -> SlotView:
    expression = f"{kind}[{index}]"
    if value is MISSING:
        return SlotView(expression, "", TensorMeta(None, state=ValueState.NOT_KEPT), edge)
    slot = _live_slot(stop, expression, value, edge)
    if value is None or slot.meta is None:
        return slot
    return replace(slot, meta=replace(slot.meta, state=ValueState.KEPT))


def tensor_meta(stop: StopContext, value: object) -> TensorMeta:
    """Meta of a gradient; of None: undefined."""
    return stop.backend.meta(value) if value is not None else TensorMeta(None, state=ValueState.UNDEFINED)


def source_of(graph: Graph, key: int, slot: int) -> str:
    """Who feeds slot ``slot`` of a node: "#112 ViewBackward0", several joined by " + ", or "root"."""
    index = index_of(graph)
    feeding = [consumer for consumer, to_slot in index.consumers(graph, key) if to_slot == slot]
    labels = [index.label(graph, consumer) for consumer in feeding[:_NEIGHBOURS]]
    if key in graph.roots():
        labels.insert(0, "root")
    more = f" + {len(feeding) - _NEIGHBOURS} more" if len(feeding) > _NEIGHBOURS else ""
    return " + ".join(labels) + more


def target_of(graph: Graph, key: int, slot: int) -> str:
    """Whom output ``slot`` of a node feeds: "#114 MmBackward0", or that it needs no gradient."""
    for edge in graph.edges(key):
        if edge.slot == slot:
            return index_of(graph).label(graph, edge.to) if edge.to is not None else "needs no gradient"
    return ""


def contributions(stop: StopContext, graph: Graph, key: int) -> tuple[list[Contribution], str]:
    """The parts of the summed gradients that flow into a node, where more than one consumer feeds a slot, and why
    some are missing.
    """
    index = index_of(graph)
    fed: dict[int, int] = {}
    for _, slot in index.consumers(graph, key):
        fed[slot] = fed.get(slot, 0) + 1
    summed = {slot for slot, count in fed.items() if count > 1}
    if not summed:
        return [], ""
    if not isinstance(graph, BackwardCall):
        return [], "no backward runs: nothing has been summed yet"
    if not stop.backend.capabilities.contributions:
        return [], f"{stop.backend.name} {stop.backend.version} does not show the parts of a sum"
    parts, note = graph.contributions(key)
    found = []
    for part in parts:
        if part.slot in summed:
            meta = tensor_meta(stop, part.value)
            norm = norm_of(stop.backend, part.value, meta, GRADIENT_NORM)
            found.append(Contribution(part.slot, index.label(graph, part.from_key), meta, norm))
    hidden = _hidden_parts(graph, index, key, summed)
    if hidden:
        known = {(part.slot, part.from_key) for part in parts}
        found += [each for source, each in hidden if (each.slot, source) not in known]
        if len(found) == sum(fed[slot] for slot in summed):
            note = ""  # each is told of, known or not
    if not found and not note:
        note = "the parts of this sum were not kept: nothing asked for them before they were added"
    return found, note


def _hidden_parts(
    graph: BackwardCall, index: GraphIndex, key: int, summed: Collection[int]
) -> list[tuple[int, Contribution]]:
    """(consumer, part) of those whose gradients the framework does not show: they are in the sum all the same."""
    meta = TensorMeta(None, state=ValueState.HIDDEN)
    return [
        (consumer, Contribution(slot, index.label(graph, consumer), meta, None))
        for consumer, slot in index.consumers(graph, key)
        if slot in summed and graph.ends_unseen(consumer)
    ]


# ------------------------------------------------------------------ what the forward pass left


def saved_slots(stop: StopContext, graph: Graph, key: int) -> list[SlotView]:
    """Saved tensors and values by name. One that must not be read (checkpoint, offload) or is freed says so."""
    try:
        values: Sequence[SavedValue] = graph.saved(key)
    except AdbgError as error:
        return [SlotView("saved", "", None, text=str(error))]
    if any(value.state is ValueState.FREED for value in values) and _ran_now(stop, graph, key):
        freed = ValueState.FREED
        values = [replace(value, state=ValueState.FREED_NOW) if value.state is freed else value for value in values]
    return [_saved_slot(stop, saved) for saved in values]


def _ran_now(stop: StopContext, graph: Graph, key: int) -> bool:
    """The node has run in the backward at hand: what it saved was there until then."""
    state = next((state for state in stop.point.calls if state.call is graph), None)
    if state is None:
        return False
    index = index_of(graph)
    return index.position.get(key, 0) < position_in(stop, graph, state, index)


def _saved_slot(stop: StopContext, saved: SavedValue) -> SlotView:
    expression = f"saved[{saved.name!r}]"
    if is_tensor(stop.point.backend, saved.value):
        meta = stop.backend.meta(saved.value)
        norm = norm_of(stop.backend, saved.value, meta)
        return SlotView(saved.name, expression, _as_saved(meta, saved), norm=norm)
    if saved.value is None and saved.remark:
        return SlotView(saved.name, expression, _as_saved(TensorMeta(None), saved))
    if saved.value is None:
        return SlotView(saved.name, expression, None, text="None (not needed)")
    return SlotView(
        saved.name,
        expression,
        None,
        text=f"{saved.name} = {stop.text(saved.value)}{f' ({saved.remark})' if saved.remark else ''}",
    )


def _as_saved(meta: TensorMeta, saved: SavedValue) -> TensorMeta:
    if not saved.remark:
        return meta
    note = "; ".join(part for part in (meta.note, saved.note) if part)
    return replace(meta, note=note, state=saved.state, version=saved.version, saved_at=saved.saved_at)


def attribute_rows(graph: Graph, key: int) -> dict[str, str]:
    """Non-tensor facts: what the backend knows, and the parameter of an accumulate node."""
    rows = {str(name): str(text) for name, text in graph.attributes(key).items()}
    info = graph.describe(key)
    if info.parameter is not None:
        rows.setdefault("parameter", info.parameter)
    if graph.is_custom(key):
        rows.setdefault("ctx", _context_text(graph, key))
    return rows


def _context_text(graph: Graph, key: int) -> str:
    """How ``ctx`` of a custom Function is read in an expression."""
    try:
        graph.context(key)
    except CommandError as error:
        return str(error)
    return "p ctx.NAME reads what its forward put there"
