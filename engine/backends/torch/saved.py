"""What a node saved: tensors and attributes by name, read without setting anything off.

Runs on the thread that asks. Reading a saved tensor normally unpacks it, which re-runs a checkpointed forward or copies
an offloaded tensor back: so the raw saved tensor is looked at first, and one with an unpack hook is reported and not
read.

Which node overwrote a tensor that another one saved is told by torch's own record of the tensor. An operation in place
makes itself the tensor's ``grad_fn``, and the operators that took the tensor before keep their edges to the one of
before. A tensor that a node saved as its input knows its ``grad_fn`` of now; one that is the node's own result does
not, and is looked for among the nodes that took the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from adbg.engine.backends.base import SavedValue
from adbg.engine.backends.common.in_place import last_taker, overwritten_text, writes_in_place
from adbg.engine.backends.torch import private
from adbg.engine.outside import own
from adbg.engine.types import SourceLine, ValueState

if TYPE_CHECKING:
    from adbg.engine.backends.torch.graph import TorchGraph

_VERSION = re.compile(r"is at version (\d+); expected version (\d+)")
#: Sizes and strides of the op's inputs, kept for symbolic shapes: the tensors themselves are listed already.
_SYMBOLIC = re.compile(r"(?:^|_)sym_(?:sizes?|strides?|storage_offset)(?:_|$)")
#: Attributes of a custom Function's context that are torch's own.
_OWN = frozenset(dir(torch.autograd.function.BackwardCFunction)) | {"saved_tensors", "metadata"}
_MOST_WRITES = 1000
_UNRECORDED = "overwritten where torch records nothing: under no_grad, through .data, or by an optimizer's step"


class NodeFields:
    """The saved names of a node type, found once per type."""

    def __init__(self) -> None:
        self._by_type: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def of(self, node: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(names of saved tensors, names of saved attributes), without the "_saved_" in front."""
        kind = type(node)
        known = self._by_type.get(kind)
        if known is None:
            names = dir(kind)
            tensors = [name[len("_raw_saved_") :] for name in names if name.startswith("_raw_saved_")]
            others = [name[len("_saved_") :] for name in names if name.startswith("_saved_")]
            others = [name for name in others if name not in tensors]
            known = self._by_type[kind] = (tuple(tensors), tuple(others))
        return known


def is_function(node: Any) -> bool:
    """The node of a torch.autograd.Function (user's or torch's own Python ones)."""
    return is_function_type(type(node))


def is_function_type(kind: type) -> bool:
    """The same of its type."""
    return issubclass(kind, torch.autograd.function.BackwardCFunction)


def _raw(value: Any, name: str, read: Any) -> SavedValue:
    """One saved tensor: ``value`` is torch's SavedTensor, ``read`` gives the checked tensor."""
    try:
        hooked = value is not None and value.unpack_hook is not None
    except own(AttributeError, RuntimeError):
        hooked = False
    if hooked:
        return SavedValue(name, None, state=ValueState.UNREAD)
    try:
        return SavedValue(name, read())
    except own(RuntimeError) as error:
        return _unreadable(value, name, str(error))


def _unreadable(value: Any, name: str, message: str) -> SavedValue:
    moved = _VERSION.search(message)
    if moved is None:
        if "second time" in message or "freed" in message:
            return SavedValue(name, None, state=ValueState.FREED)
        return SavedValue(name, None, message.split("\n")[0])
    try:
        changed = value.data  # the tensor as it is now, without torch's version check
    except own(AttributeError, RuntimeError):
        changed = None
    version, saved_at = map(int, moved.groups())
    return SavedValue(name, changed, state=ValueState.CORRUPTED, version=version, saved_at=saved_at)


def holds_some(node: Any, fields: NodeFields) -> bool:
    """Whether a saved tensor is there, with nothing unpacked: that makes a new tensor of one that was an output, which
    a class of the program's with __torch_dispatch__ sees as a detach. ``data`` gives what lies there, in 0.6 us."""
    names = ["_raw_saved_tensors"] if is_function(node) else [f"_raw_saved_{name}" for name in fields.of(node)[0]]
    for name in names:
        try:
            raws = getattr(node, name)
            for raw in raws if isinstance(raws, (tuple, list)) else (raws,):
                if raw is not None and raw.data is not None:
                    return True
        except own(AttributeError, RuntimeError):  # freed; a torch that cannot tell
            continue
    return False


def saved(node: Any, fields: NodeFields) -> Sequence[SavedValue]:
    """Saved tensors in torch's order; of an accumulate node, its tensor as ``variable``."""
    if is_function(node):
        return list(_function_saved(node))
    variable = getattr(node, "variable", None)
    if isinstance(variable, torch.Tensor):
        return [SavedValue("variable", variable)]
    found: list[SavedValue] = []
    for name in fields.of(node)[0]:
        found.extend(_builtin_saved(node, name))
    return found


def _builtin_saved(node: Any, name: str) -> Iterator[SavedValue]:
    try:
        raw = getattr(node, f"_raw_saved_{name}")
    except own(RuntimeError) as error:
        yield _unreadable(None, name, str(error))
        return
    if not isinstance(raw, (tuple, list)):
        yield _raw(raw, name, lambda: getattr(node, f"_saved_{name}"))
        return
    for place, one in enumerate(raw):  # _foreach ops, index: a list of tensors under one name
        yield _raw(one, f"{name}[{place}]", one.unpack if one is not None else lambda: None)


def _function_saved(node: Any) -> Iterator[SavedValue]:
    try:
        raws = node._raw_saved_tensors
    except own(RuntimeError) as error:
        yield _unreadable(None, "saved_tensors", str(error))
        return
    except AttributeError:
        raws = ()
    hooked = False
    for raw in raws or ():
        try:
            hooked = hooked or raw.unpack_hook is not None
        except own(AttributeError, RuntimeError):
            continue
    tensors: Any = None
    if not hooked:
        try:
            tensors = node.saved_tensors
        except own(RuntimeError):
            tensors = None  # one of them moved or is freed: each is asked by itself below
    for place, raw in enumerate(raws or ()):
        name = f"saved_tensors[{place}]"
        if tensors is not None and place < len(tensors):
            yield SavedValue(name, tensors[place])
        else:
            yield _raw(raw, name, raw.unpack)
    for name, value in _context(node).items():
        if isinstance(value, torch.Tensor):
            yield SavedValue(name, value)


def _context(node: Any) -> Mapping[str, Any]:
    """What the forward put on ``ctx``."""
    try:
        return {name: value for name, value in vars(node).items() if name not in _OWN}
    except TypeError:
        return {}


def attributes(node: Any, fields: NodeFields) -> dict[str, str]:
    """Non-tensor facts: dim, keepdim, alpha; a Function's own attributes; of an accumulate node its tensor's shape.

    Sizes and strides of inputs, and layouts that are the usual one, are left out.
    """
    variable = getattr(node, "variable", None)
    if isinstance(variable, torch.Tensor):
        return {"shape": str(list(variable.shape)), "leaf": str(variable.is_leaf).lower()}
    found: dict[str, str] = {}
    if is_function(node):
        for name, value in _context(node).items():
            if not isinstance(value, torch.Tensor):
                found[name] = _brief(value)
        return found
    for name in fields.of(node)[1]:
        if _SYMBOLIC.search(name):
            continue
        try:
            value = getattr(node, f"_saved_{name}")
        except own(RuntimeError):
            continue
        if value is not None and value is not torch.strided:
            found[name] = _brief(_signed(value))
    return found


def _signed(value: Any) -> Any:
    """Dimensions are signed, and torch hands some out as unsigned 64-bit numbers: -1 as 18446744073709551615."""
    if type(value) is int and 1 << 63 <= value < 1 << 64:
        return value - (1 << 64)
    if type(value) in (tuple, list):
        return type(value)(_signed(item) for item in value)
    return value


def _brief(value: Any) -> str:
    try:
        shown = repr(value)
    except own(Exception) as error:
        shown = f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    return shown if len(shown) <= 120 else shown[:119] + "…"


def overwritten(graph: TorchGraph, key: int, saved: SavedValue) -> tuple[str, SourceLine | None]:
    """ "overwritten at vae.py:12 by #10 ClampBackward1#1": the first write since it was saved, and its line; ""
    where it is not known."""
    value = saved.value
    if not isinstance(value, torch.Tensor):
        return "", None
    node = graph.node(key)
    if value.is_leaf and value.requires_grad:
        return _UNRECORDED, None
    now = private.attribute_grad_fn(value)
    if now is None:
        return _by_takers(graph, key, value)
    before = {below for below, _ in node.next_functions if below is not None}
    writers: list[Any] = []
    while now is not None and now not in before and len(writers) < _MOST_WRITES:
        writers.append(now)
        edges = now.next_functions
        now = edges[0][0] if edges else None
    if now is None:
        return "", None
    if not writers:
        return _UNRECORDED, None
    first = graph.key_of(writers[-1])
    if first is not None:
        return overwritten_text(graph, first), graph.describe(first).forward
    line = graph.line_of(writers[-1])
    where = f" at {line.file}:{line.line}" if line is not None else ""
    return f"overwritten{where} by {type(writers[-1]).__name__}, which has no part in this backward", line


def _by_takers(graph: TorchGraph, key: int, value: Any) -> tuple[str, SourceLine | None]:
    """``value`` is the result of ``key``."""
    taker = last_taker(graph, key)
    if taker is None:
        return "", None
    line = graph.describe(taker).forward
    if type(graph.node(taker)).__name__ == "CopySlices" or _same_memory(graph.node(taker), value):
        return overwritten_text(graph, taker), line
    return (overwritten_text(graph, taker, False), line) if writes_in_place(line) else ("", None)


def _same_memory(node: Any, value: Any) -> bool:
    """Its own result lies where ``value`` does."""
    raw = getattr(node, "_raw_saved_result", None)
    try:
        result = raw.data if raw is not None else None
        return result is not None and result.data_ptr() == value.data_ptr()
    except RuntimeError:  # freed
        return False
