"""Hooks in front of nodes, and what nodes keep, by symbols that libpaddle exports.

Paddle has no hook in front of a node. A tensor's own hook is one, for the node that the tensor's autograd record points
at; ``NativeNodes`` points a tensor of ours at the node of interest. Nothing of that is used before every step of it was
checked on a graph of our own, reading through /proc/self/mem, where a wrong address is an error and no crash. What
fails a check is reported by ``adbg doctor``, and the callers do without.

The checks run at the import, where the script has switched nothing on yet and ``own`` keeps what they do untold.
Afterwards used from any thread.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import paddle
from paddle.base import core

from adbg.engine.backends.common.private_use import PrivateUse
from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.native.final import final_hooks_aside
from adbg.engine.backends.paddle.native.memory import Layout, ReadMemory, find_layout
from adbg.engine.backends.paddle.native.own import own_leaf, own_operators
from adbg.engine.outside import own

_SYMBOLS = {
    "autograd_meta": ("_ZN3egr10EagerUtils13autograd_metaEPN6paddle6TensorE", "a tensor's autograd record"),
    "set_history": (
        "_ZN3egr10EagerUtils10SetHistoryEPNS_12AutogradMetaERKSt10shared_ptrINS_12GradNodeBaseEE",
        "point a tensor at a node, to hook the node",
    ),
    "set_slot": ("_ZN3egr10EagerUtils18SetOutRankWithSlotEPNS_12AutogradMetaEm", "and at one of its slots"),
    "input_meta": ("_ZN3egr12GradNodeBase16MutableInputMetaEv", "how many gradients flow into a node"),
    "output_meta": ("_ZN3egr12GradNodeBase17MutableOutputMetaEv", "which slot of which node each gradient flows into"),
}
_LONGEST_TRACE = 1 << 20


_LEVEL = "FLAGS_call_stack_level"


class NativeProblem(Exception):
    """A check failed; the text says which."""


def library() -> ctypes.PyDLL:
    """libpaddle. ``PyDLL``: what is called there is a few instructions each, and must see one thread."""
    module = sys.modules.get("paddle.base.libpaddle") or sys.modules.get("libpaddle")
    file = getattr(module, "__file__", None)
    if file is None:
        raise NativeProblem("libpaddle is not where it was")
    return ctypes.PyDLL(file)


@functools.cache
def python_stack() -> Callable[[], None] | None:
    """Has Paddle ask for the stack, as each operator does at call stack level 3; None where it is not exported."""
    function: Any = getattr(library(), "_ZN6paddle6pybind14SetPythonStackEv", None)
    if function is not None:
        function.restype, function.argtypes = None, []
    found: Callable[[], None] | None = function
    return found


def _functions() -> dict[str, Any]:
    """The exported functions by our names."""
    exported = library()
    functions = {}
    for name, (symbol, _) in _SYMBOLS.items():
        try:
            functions[name] = getattr(exported, symbol)
        except AttributeError:
            raise NativeProblem(f"libpaddle does not export {symbol}") from None
    for name in ("autograd_meta", "input_meta", "output_meta"):
        functions[name].restype = ctypes.c_void_p
        functions[name].argtypes = [ctypes.c_void_p]
    functions["set_history"].restype = functions["set_slot"].restype = None
    functions["set_history"].argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    functions["set_slot"].argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return functions


@dataclass(frozen=True, slots=True)
class SlotEdge:
    """One outgoing gradient of a node: where it flows (``to`` 0: nowhere), and what the forward's tensor was."""

    to: int  # address of the producer node; 0 where no gradient is wanted
    slot: int
    rank: int
    shape: tuple[int, ...] | None
    dtype: int


NOWHERE = SlotEdge(0, 0, 0, None, -1)  # a slot without ranks: a post hook has an undefined gradient there


class _Pointer(threading.local):
    """Our tensor of each thread: pointed at a node for the moment of hooking it. No operator makes it: the thread's
    first hook may come at any time."""

    def __init__(self) -> None:
        self.tensor = own_leaf([1])
        self.meta = 0


class NativeNodes:
    """Hooks in front of nodes, and what nodes keep about their gradients. Made by ``native``, once all checks
    passed."""

    def __init__(self) -> None:
        functions = _functions()
        self._autograd_meta = functions["autograd_meta"]
        self._set_history = functions["set_history"]
        self._set_slot = functions["set_slot"]
        self._input_meta = functions["input_meta"]
        self._output_meta = functions["output_meta"]
        self._memory = ReadMemory()
        self._words = self._memory.whole()
        self._meta_at = -1
        try:
            with own_operators():
                self.layout: Layout = find_layout(self._memory, functions)
                self._leaf = own_leaf([1])
                self._home = paddle.scale(self._leaf).grad_fn  # a node of no graph
                self._pointer = _Pointer()
                with final_hooks_aside(library(), self._memory):
                    self._check_hook()
                self._meta_at = self._find_meta()
                self._trace_offset = self._find_trace()
        except NativeProblem:
            raise
        except own(Exception) as error:
            raise NativeProblem(f"{type(error).__name__}: {error}") from error

    def _check_hook(self) -> None:
        """A hook placed our way on a node of several ranks fires once, in front of the node, with the right
        gradient."""
        leaf = own_leaf([6], value=1.0)
        parts = paddle.split(leaf, 6)
        fired: list[tuple[int, float]] = []
        hooks = [self.place(parts[0].grad_fn, 0, rank, functools.partial(_note, fired, rank)) for rank in (0, 3)]
        private.run_backward([parts[3] * 2.0], [], False, "")
        if sorted(fired) != [(0, 0.0), (3, 2.0)] or len(hooks) != 2:
            raise NativeProblem(f"a hook in front of a node fired as {fired}")
        again = paddle.scale(leaf)
        node = again.grad_fn
        self.remove(node, self.place(node, 0, 0, functools.partial(_note, fired, 9)))
        private.run_backward([again], [], False, "")
        if len(fired) != 2:
            raise NativeProblem("a hook that was taken off fired")

    def _find_meta(self) -> int:
        """Where in a tensor's Python object the address of its autograd part stands; -1 where that is not clear."""
        leaf = own_leaf([2])
        tensors = [leaf, leaf * 2, own_leaf([1])]
        start = self.layout.tensor_offset
        metas = [self._autograd_meta(id(tensor) + start) for tensor in tensors]
        found = [
            offset
            for offset in range(start, start + 128, 8)
            if all(self._memory.word(id(tensor) + offset) == meta for tensor, meta in zip(tensors, metas))
        ]
        return found[0] if len(found) == 1 and metas[0] and metas[1] else -1

    # ---- hooks

    def _point(self, node: Any, slot: int, rank: int) -> Any:
        pointer = self._pointer
        if not pointer.meta:
            pointer.meta = self._autograd_meta(id(pointer.tensor) + self.layout.tensor_offset)
        meta = pointer.meta
        self._set_history(meta, id(node) + self.layout.holder_offset)
        if slot or rank or pointer.__dict__.get("moved"):
            self._set_slot(meta, slot)
            ctypes.c_size_t.from_address(meta + self.layout.rank_offset).value = rank
            pointer.moved = bool(slot or rank)
        return pointer.tensor

    def place(self, node: Any, slot: int, rank: int, hook: Callable[[Any], Any]) -> int:
        """Hook ``node``: ``hook(gradient)`` is called before it runs, after all contributions to that slot are
        summed; None where the gradient is undefined. What it returns must be a tensor of the same shape and dtype,
        or None. 1.5 us."""
        return int(self._point(node, slot, rank)._register_grad_hook(hook))

    def remove(self, node: Any, hook: int) -> None:
        """0.4 us."""
        self._point(node, 0, 0)._remove_grad_hook(hook)

    def rest(self) -> None:
        """Let go of the last node that was pointed at."""
        self._point(self._home, 0, 0)

    # ---- what nodes keep

    def input_slots(self, address: int) -> list[int]:
        """Ranks of every incoming slot: [1] for most nodes, [6] for a split in six."""
        stride = self.layout.slot_bytes
        return [(end - begin) // stride for begin, end in self._slots(self._input_meta(address))]

    def output_slots(self, address: int) -> list[int]:
        """Ranks of every outgoing slot: [2] for a concat of two, [1, 0] where no gradient is wanted of the second."""
        stride = self.layout.slot_bytes
        return [(end - begin) // stride for begin, end in self._slots(self._output_meta(address))]

    def input_shapes(self, address: int) -> list[tuple[tuple[int, ...] | None, int]]:
        """(shape, Paddle's number of the dtype) of every incoming gradient, in order of slots and ranks."""
        found = []
        for begin, end in self._slots(self._input_meta(address)):
            for meta in range(begin, end, self.layout.slot_bytes):
                found.append(self._tensor_meta(ctypes.string_at(meta, self.layout.slot_bytes)))
        return found

    def edges(self, address: int) -> list[list[SlotEdge]]:
        """By outgoing slot, one entry per rank."""
        layout = self.layout
        found = []
        for begin, end in self._slots(self._output_meta(address)):
            slot = []
            for meta in range(begin, end, layout.slot_bytes):
                raw = ctypes.string_at(meta, layout.slot_bytes)
                to_slot, to_rank, to = struct.unpack_from("<QQQ", raw, layout.edge_offset)
                shape, dtype = self._tensor_meta(raw)
                slot.append(SlotEdge(to, to_slot, to_rank, shape, dtype))
            found.append(slot)
        return found

    def _slots(self, vectors: int) -> Iterator[tuple[int, int]]:
        """A ``small_vector<vector<GradSlotMeta>>``: begin, (size, capacity), then 24 bytes a vector."""
        begin, size = struct.unpack("<QI", ctypes.string_at(vectors, 12))
        if not 0 <= size <= 10_000:
            return
        for first, last, _ in struct.iter_unpack("<QQQ", ctypes.string_at(begin, 24 * size)):
            yield first, last

    def _tensor_meta(self, slot: bytes) -> tuple[tuple[int, ...] | None, int]:
        layout = self.layout
        if layout.dims_offset < 0:
            return None, -1
        (meta,) = struct.unpack_from("<Q", slot, layout.meta_offset)
        if not meta:
            return None, -1
        raw = ctypes.string_at(meta, max(layout.dims_offset + 76, layout.dtype_offset + 4))
        (rank,) = struct.unpack_from("<i", raw, layout.dims_offset + 72)
        if not 0 <= rank <= 9:
            return None, -1
        (dtype,) = struct.unpack_from("<i", raw, layout.dtype_offset)
        return struct.unpack_from(f"<{rank}q", raw, layout.dims_offset), dtype

    def leaf_node(self, tensor: Any) -> int:
        """Address of the node that a tensor's gradient goes to (of a leaf: its accumulate node); 0 while there is
        none."""
        layout, words, at = self.layout, self._words, self._meta_at
        meta = words[(id(tensor) + at) >> 3] if at >= 0 else self._autograd_meta(id(tensor) + layout.tensor_offset)
        return words[(meta + layout.node_offset) >> 3] if meta else 0

    def leaf_offsets(self) -> tuple[int, int]:
        """Where in a tensor's Python object its autograd part stands (-1: that is not clear), and where in that the
        node."""
        return self._meta_at, self.layout.node_offset

    def mark_offsets(self) -> tuple[int, int]:
        """Where in a node its stack's text and its outgoing slots are; the first 0 where a text is not found. Raises
        LookupError where nodes of two classes differ in that."""
        nodes = [self._home, self._home.next_functions[0]]
        outgoing = {int(self._output_meta(node.node_ptr())) - int(node.node_ptr()) for node in nodes}
        if len(outgoing) != 1:
            raise LookupError("the outgoing slots of a node are not where those of another one are")
        for node in nodes if self._trace_offset else ():
            at = node.node_ptr() + self._trace_offset
            if (self._memory.word(at), self._memory.word(at + 8)) != (at + 16, 0):
                raise LookupError("a node's stack is not kept in a string of libstdc++")
        return self._trace_offset, outgoing.pop()

    def close(self) -> None:
        self._memory.close()

    # ---- forward stacks

    def trace(self, address: int) -> str:
        """The Python stack that made the node, as Paddle wrote it down (call stack level 3); "" without one. 8 us.

        Read through /proc/self/mem: a ``std::string`` at an offset found by looking for the text in a node of our own.
        """
        if not self._trace_offset:
            return ""
        raw = self._memory.read(address + self._trace_offset, 16)
        if len(raw) < 16:
            return ""
        start, size = struct.unpack("<QQ", raw)
        if not 0 < size < _LONGEST_TRACE:
            return ""
        return self._memory.read(start, size).decode("utf-8", "replace")

    def trace_end(self, address: int, size: int) -> bytes:
        """The last ``size`` bytes of a living node's stack, or all of it. 0.6 us."""
        offset = self._trace_offset
        if not offset:
            return b""
        place = (address + offset) >> 3
        start, length = self._words[place], self._words[place + 1]
        if not 0 < length < _LONGEST_TRACE:
            return b""
        return ctypes.string_at(start + max(0, length - size), min(size, length))

    def give_trace(self, address: int, text: bytes, replace: Callable[[int, int, int, bytes, int], object]) -> bool:
        """Put a stack into a living node that has none, with ``basic_string::_M_replace``; whether that was done. The
        string must look as libstdc++ leaves an empty one: its characters inside, none of them used."""
        string = address + self._trace_offset
        if string == address or len(text) >= _LONGEST_TRACE:
            return False
        place = string >> 3
        if (self._words[place], self._words[place + 1]) != (string + 16, 0):
            return False
        replace(string, 0, 0, text, len(text))
        return self._words[place + 1] == len(text)

    def _find_trace(self) -> int:
        """The offset of ``forward_trace_`` in a node, 0 when there is none."""
        before = core.globals()[_LEVEL]
        try:
            paddle.set_flags({_LEVEL: 3})
            made = paddle.scale(self._leaf)
            raw = self._memory.read(made.grad_fn.node_ptr(), 2048)
            for offset in range(0, len(raw) - 15, 8):
                start, size = struct.unpack_from("<QQ", raw, offset)
                if 16 < size < _LONGEST_TRACE and self._memory.read(start, 8).lstrip().startswith(b'File "'[:4]):
                    return offset
            return 0
        except own(Exception):
            return 0
        finally:
            paddle.set_flags({_LEVEL: before})


def _note(fired: list[tuple[int, float]], rank: int, gradient: Any) -> None:
    fired.append((rank, float(gradient.numpy()[0])))


_lock = threading.Lock()
_native: list[NativeNodes | None] = []
_postponed = False
_SYMBOL_USES = [PrivateUse(f"libpaddle {name}", purpose, True) for name, (_, purpose) in _SYMBOLS.items()]
private.USES.extend(_SYMBOL_USES)


def postpone(on: bool) -> None:
    """On: nothing is checked for now, and what would have to be is not used: the program is at work with Paddle, on
    other threads. Until it is off."""
    global _postponed
    _postponed = on


def postponed() -> bool:
    return _postponed


def checked() -> bool:
    """Nothing is to be tried out any more in this process."""
    return bool(_native)


def leave() -> None:
    """adbg leaves the process: no descriptor of it stays."""
    for native in _native:
        if native is not None:
            native.close()


def abandon() -> None:
    """In a forked child: whoever held the lock is not here."""
    global _lock
    _lock = threading.Lock()


def native() -> NativeNodes | None:
    """The hooks in front of nodes, or None where a check failed (``native_problem``). Checked once, 3 ms, as the
    backend is made, or at the first backward after adbg came to a program that runs already."""
    if not _native:
        if _postponed:
            return None
        with _lock:
            if not _native:
                try:
                    _native.append(NativeNodes())
                except NativeProblem as problem:
                    _native.append(None)
                    for use in _SYMBOL_USES:
                        use.present, use.problem = False, str(problem)
                except own(Exception) as error:
                    _native.append(None)
                    for use in _SYMBOL_USES:
                        use.present, use.problem = False, f"{type(error).__name__}: {error}"
    return _native[0]


def native_problem() -> str:
    """Why there are no hooks in front of nodes; "" when there are."""
    if native() is not None:
        return ""
    return _SYMBOL_USES[0].problem if _native else "adbg tries them out when the next backward begins"


def mechanism() -> str:
    """Which way of stopping before a node is in use, for ``adbg doctor``."""
    if native() is not None:
        return "a tensor pointed at the node (libpaddle's exported symbols, all self-checks passed)"
    return f"predicted order with post hooks ({native_problem()})"
