"""Where things are in Paddle's C++ objects, found on a graph of our own and never assumed.

Everything is read through /proc/self/mem: a pointer that is none makes a short read there, not a crash. Only what was
found this way is read directly afterwards. Runs at the import.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import paddle

from adbg.engine.backends.paddle.native.own import own_leaf
from adbg.engine.descriptors import Own, lifted
from adbg.engine.outside import own

_HIGHEST = 1 << 47  # user addresses end there
_Opened = tuple[int, Own]  # by which process
_away = False


def away(now: bool) -> None:
    """adbg leaves the process, or comes: a call that is under way as it leaves may read again, and what it opens for
    that is closed at once."""
    global _away
    _away = now


def _once(address: int, size: int) -> bytes:
    descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, address)
    finally:
        os.close(descriptor)


class ReadMemory:
    """This process's memory, read safely. Opened again after a fork (the file belongs to the process that opened it),
    and where the program closed it."""

    def __init__(self) -> None:
        self._opened: _Opened | None = None

    def read(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes; b"" where nothing is mapped, or the memory cannot be opened."""
        if not 4096 <= address < _HIGHEST:
            return b""
        try:
            if _away:
                return _once(address, size)
            opened = self._opened
            if opened is None or opened[0] != os.getpid() or not opened[1].ours:
                opened = self._open(opened)
            return os.pread(opened[1].number, size, address)
        except own(OSError):
            return b""
        finally:
            if _away:  # since just now
                self.close()

    def _open(self, before: _Opened | None) -> _Opened:
        opened = os.getpid(), Own(lifted(os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)))
        meanwhile = self._opened
        if meanwhile is not None and meanwhile is not before:  # by another thread
            opened[1].close()
            return meanwhile
        self._opened = opened
        if before is not None:
            before[1].close()  # the parent's, in a forked child
        return opened

    def close(self) -> None:
        """Until it is read again."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()

    @staticmethod
    def whole() -> memoryview:
        """All memory of this process, as 8-byte words by address // 8: 40 ns a read, where one through the file takes
        700. What is read must be there: it is followed only from objects that are alive."""
        return memoryview((ctypes.c_uint64 * (1 << 44)).from_address(0)).cast("B").cast("Q")

    def word(self, address: int) -> int:
        raw = self.read(address, 8)
        return struct.unpack("<Q", raw)[0] if len(raw) == 8 else 0

    def words(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """(offset, 8-byte word) of ``size`` bytes."""
        raw = self.read(address, size)
        for offset in range(0, len(raw) - 7, 8):
            yield offset, struct.unpack_from("<Q", raw, offset)[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes. ``dims_offset`` -1: the shapes that nodes keep cannot be read."""

    tensor_offset: int  # of the C++ tensor in the Python object
    holder_offset: int  # of the shared pointer in the Python object of a node
    node_offset: int  # of the node in a tensor's autograd record
    rank_offset: int  # of the rank there
    slot_bytes: int  # size of what a node keeps per gradient
    edge_offset: int  # of (slot, rank, node) in it
    meta_offset: int = -1  # of the pointer to shape and dtype in it
    dims_offset: int = -1
    dtype_offset: int = -1


def _first(found: Iterator[int], what: str) -> int:
    for offset in found:
        return offset
    raise LookupError(f"{what} was not found where it is looked for")


def find_layout(memory: ReadMemory, functions: dict[str, Any]) -> Layout:
    """All offsets. Raises LookupError naming the first thing that is not where it is looked for."""
    leaf = own_leaf([7, 6, 13])
    parts = paddle.split(leaf, 6, axis=1)
    made = paddle.scale(parts[3])
    node, split = made.grad_fn, parts[0].grad_fn
    accumulate = split.next_functions[0]

    holder = _first(
        (at for at, word in memory.words(id(node), 64) if word == node.node_ptr() and memory.word(id(node) + at + 8)),
        "the shared pointer of a node",
    )
    holder = _holder(memory, (node, split, accumulate), holder)
    tensor_offset, node_offset = _tensor(memory, functions, made, node)
    metas = [functions["autograd_meta"](id(part) + tensor_offset) for part in parts]
    ranks = [dict(memory.words(meta, 256)) for meta in metas]
    rank_offset = _first(
        (at for at in sorted(ranks[0]) if [words.get(at) for words in ranks] == list(range(6))), "a tensor's rank"
    )
    if memory.word(metas[2] + node_offset) != split.node_ptr():
        raise LookupError("a tensor's autograd record is not laid out as expected")

    (begin, end), *others = _vectors(memory, functions["input_meta"](split.node_ptr()))
    if others or (end - begin) % 6 or not 64 <= (end - begin) // 6 <= 8192:
        raise LookupError("the incoming slots of a node are not laid out as expected")
    slot_bytes = (end - begin) // 6
    ((begin, end),) = _vectors(memory, functions["output_meta"](node.node_ptr()))
    if end - begin != slot_bytes:
        raise LookupError("the outgoing slots of a node are not laid out as expected")
    edge = _first(
        (at - 16 for at, word in memory.words(begin, slot_bytes) if word == split.node_ptr() and at >= 16), "an edge"
    )
    if (memory.word(begin + edge), memory.word(begin + edge + 8)) != (0, 3):
        raise LookupError("an edge does not tell its slot and rank")
    plain = Layout(tensor_offset, holder, node_offset, rank_offset, slot_bytes, edge)
    return _with_shapes(memory, functions, plain) or plain


def _holder(memory: ReadMemory, nodes: tuple[Any, ...], first: int) -> int:
    """pybind keeps the plain pointer, then the shared one: the offset whose next word is a control block in all
    nodes."""
    for offset in range(first, first + 24, 8):
        pairs = [
            (memory.word(id(node) + offset), memory.word(id(node) + offset + 8), node.node_ptr()) for node in nodes
        ]
        if all(word == address and control and control != address for word, control, address in pairs) and all(
            0 < struct.unpack("<i", memory.read(control + 8, 4) or b"\0\0\0\0")[0] < 1000 for _, control, _ in pairs
        ):
            return offset
    raise LookupError("the shared pointer of a node was not found")


def _tensor(memory: ReadMemory, functions: dict[str, Any], made: Any, node: Any) -> tuple[int, int]:
    """Where a tensor points at its autograd record, found by reading before any of Paddle's functions is given the
    address."""
    for at, meta in memory.words(id(made), 96):
        for inside, word in memory.words(meta, 128):
            if word == node.node_ptr():
                for offset in range(16, at, 8):
                    if offset + 16 == at and functions["autograd_meta"](id(made) + offset) == meta:
                        return offset, inside
    raise LookupError("a tensor's autograd record was not found")


def _vectors(memory: ReadMemory, address: int) -> list[tuple[int, int]]:
    raw = memory.read(address, 12)
    if len(raw) < 12:
        raise LookupError("the slots of a node cannot be read")
    begin, size = struct.unpack("<QI", raw)
    if not 0 < size < 64:
        raise LookupError("the slots of a node are not laid out as expected")
    return [(memory.word(begin + 24 * k), memory.word(begin + 24 * k + 8)) for k in range(size)]


def _with_shapes(memory: ReadMemory, functions: dict[str, Any], plain: Layout) -> Layout | None:
    """Where a slot keeps shape and dtype: found with a shape that is nowhere else, checked with another dtype."""
    found: list[tuple[int, int, dict[int, int]]] = []
    for dtype in ("float32", "float64"):
        leaf = own_leaf([7, 11, 13], dtype)
        made = paddle.scale(leaf)
        ((begin, _),) = _vectors(memory, functions["input_meta"](made.grad_fn.node_ptr()))
        for at, meta in memory.words(begin, plain.slot_bytes):
            raw = memory.read(meta, 512)
            dims = raw.find(struct.pack("<3q", 7, 11, 13))
            if dims >= 0 and len(raw) == 512 and struct.unpack_from("<i", raw, dims + 72)[0] == 3:
                found.append((at, dims, dict(enumerate(struct.unpack("<128i", raw)))))
                break
    if len(found) != 2 or found[0][:2] != found[1][:2]:
        return None
    single, double = int(paddle.float32), int(paddle.float64)
    places = [4 * at for at, word in found[0][2].items() if word == single and found[1][2][at] == double]
    dims = found[0][1]
    places = [at for at in places if at < dims + 128]
    if not places:
        return None
    return Layout(
        plain.tensor_offset, plain.holder_offset, plain.node_offset, plain.rank_offset, plain.slot_bytes,
        plain.edge_offset, found[0][0], dims, places[0],
    )  # fmt: skip
