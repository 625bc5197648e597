"""Which kinds of nodes are below some roots, asked of Paddle itself: the cheap test for breakpoints by name.

A walk in Python costs 0.7 us a node (``next_functions``, ``name``), a tenth of a step of small operators. The function
with which Paddle counts consumers before a backward is exported, takes a ``std::deque`` of nodes and returns a
``std::unordered_map`` of node and count: called with a deque of ours and read through the map's list it costs 0.2 us a
node. A node's kind is its C++ class, named by what nodes of it call themselves.

No Python object of any node is made, the roots' neither.

Runs on the thread that called backward, with Python's lock held from begin to end of the C++ function. Everything is
tried on a graph of our own first (``Census.__init__``); what fails there raises LookupError, and callers walk.
"""

from __future__ import annotations

import ctypes
import platform
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import paddle

from adbg.engine.backends.common.private_use import PrivateUse
from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.core import NativeCore, Told, core
from adbg.engine.backends.paddle.native.memory import ReadMemory
from adbg.engine.backends.paddle.native.own import own_leaf, own_operators
from adbg.engine.backends.paddle.stacks import framework_name
from adbg.engine.outside import own
from adbg.engine.own_files import SHOWN

COUNT = "_ZN3egr14getInDegreeMapERKSt5dequeIPNS_12GradNodeBaseESaIS2_EE"
#: ~_Hashtable of unordered_map<GradNodeBase*, int>: its name says that hashes are not kept in the map's list.
FREE = (
    "_ZNSt10_HashtableIPN3egr12GradNodeBaseESt4pairIKS2_iESaIS5_ENSt8__detail10_Select1stESt8equal_toIS2_ESt4hashIS2_E"
    "NS7_18_Mod_range_hashingENS7_20_Default_ranged_hashENS7_20_Prime_rehash_policyENS7_17_Hashtable_traitsILb0ELb0E"
    "Lb1EEEED1Ev"
)
_CHUNK = 64  # pointers in one chunk of libstdc++'s deque (512 bytes): more roots are left to the walk
_FIRST, _COUNT = 2, 3  # words of libstdc++'s hash table: buckets, bucket count, first of the list, element count
_MOST_SETS = 1000
_LENGTH = re.compile(r"\d+")
_RESULT = 32  # words: the table has 7; zeros beyond, should the function ever want something else there


class _Scratch(threading.local):
    """A deque of one chunk, and room for the map, for each thread."""

    def __init__(self) -> None:
        self.chunk = (ctypes.c_uint64 * _CHUNK)()
        self.chunks = (ctypes.c_uint64 * 8)()
        self.deque = (ctypes.c_uint64 * 10)()
        self.result = (ctypes.c_uint64 * _RESULT)()
        begin, chunks = ctypes.addressof(self.chunk), ctypes.addressof(self.chunks)
        self.chunks[3] = begin
        place = chunks + 3 * 8
        end = begin + 8 * _CHUNK
        # chunks, how many; then two iterators (at, begin and end of its chunk, the chunk's place): first and end
        self.deque[:] = [chunks, 8, begin, begin, end, place, begin, begin, end, place]
        self.words = memoryview(self.result).cast("B").cast("Q")
        self.result_at, self.deque_at = ctypes.addressof(self.result), ctypes.addressof(self.deque)


@dataclass(frozen=True, slots=True)
class Survey:
    """A graph in few words.

    Attributes:
        count: nodes, the roots too.
        kinds: framework names of all nodes (and perhaps some more: what a class could be called). None where a walk
            must tell: a class whose nodes differ in name (PyLayers), or one not met before, which the walk shall
            ``learn``.
        roots: the kinds among the roots; None as above.
        alike: two graphs with the same one have the same kinds of nodes, made by the same stacks in the same Layers,
            and the same leaves (sums of 64 bits over the nodes); None without the extension.
        told: what the extension said of it.
    """

    count: int
    kinds: frozenset[str] | None
    roots: tuple[str, ...] | None
    alike: tuple[int, int, int] | None = None
    told: Told | None = None


class Census:
    """Surveys graphs."""

    def __init__(self, library: ctypes.CDLL, memory: ReadMemory) -> None:
        """Raises LookupError with what is missing or not as expected. Runs operators: see ``symbols.native``.

        Args: library: libpaddle, as a ``PyDLL``.
        """
        if platform.machine() != "x86_64":  # elsewhere a result in memory is returned another way
            raise LookupError(f"counting consumers was not tried on {platform.machine()}")
        try:
            self._count, self._free = getattr(library, COUNT), getattr(library, FREE)
        except AttributeError:
            raise LookupError("libpaddle does not export getInDegreeMap and what frees its result") from None
        self._count.restype = self._free.restype = None
        self._count.argtypes, self._free.argtypes = [ctypes.c_void_p, ctypes.c_void_p], [ctypes.c_void_p]
        self._memory = memory
        self._scratch = _Scratch()
        self._names: dict[int, tuple[str, ...]] = {}  # by class; () where its nodes differ in name
        self._sets: dict[frozenset[int], frozenset[str]] = {}  # by classes: their names
        self._surveys: dict[Told, Survey] = {}  # by what the extension says of a graph
        self._words = memory.whole()
        self._check()

    def _check(self) -> None:
        """The answer about a graph of our own, read safely before anything in it is trusted."""
        leaf = own_leaf([2])
        scaled = paddle.scale(leaf)
        root, node = (scaled + scaled).grad_fn, scaled.grad_fn
        (accumulate,) = node.next_functions
        at, scratch = self._call([root.node_ptr()]), self._scratch
        found: dict[int, int] = {}
        while at and len(found) < 3:
            raw = self._memory.read(at, 20)
            if len(raw) < 20:
                break
            at, key = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:16], "little")
            found[key] = int.from_bytes(raw[16:], "little")
        if at or scratch.words[_COUNT] != 2 or found != {node.node_ptr(): 2, accumulate.node_ptr(): 1}:
            raise LookupError("the count of consumers is not laid out as expected")
        self._free(ctypes.addressof(scratch.result))
        nodes = [root, node, accumulate]
        self.learn(nodes, [each.name() for each in nodes])
        known = [self._names.get(self._memory.word(each.node_ptr()), ()) for each in nodes]
        if [names[:1] for names in known] != [("AddGradNode",), ("ScaleGradNode",), ("GradNodeAccumulation",)]:
            raise LookupError("a node does not tell its class as expected")

    def close(self) -> None:
        self._memory.close()

    def _call(self, roots: Sequence[int]) -> int:
        """Have the map made; the address of the first entry of its list. ``_free`` it."""
        scratch = self._scratch
        for place, root in enumerate(roots):
            scratch.chunk[place] = root
        scratch.deque[6] = scratch.deque[2] + 8 * len(roots)
        self._count(scratch.result_at, scratch.deque_at)
        return scratch.words[_FIRST]

    def survey(self, roots: Sequence[int]) -> Survey | None:
        """The graph below ``roots`` (addresses of root nodes, each once), in few words; None with more roots than are
        handed over this way."""
        if not 0 < len(roots) < _CHUNK:
            return None
        noted = core()
        if noted is not None:
            return self._noted(noted, roots)
        words, scratch = self._words, self._scratch
        classes = {words[root >> 3] for root in roots}
        root_classes = list(classes)
        add = classes.add
        first = at = self._call(roots)
        while at:
            place = at >> 3
            add(words[words[place + 1] >> 3])
            at = words[place]
        count = scratch.words[_COUNT] + len(roots)
        if len(roots) > 1:
            count -= self._among(first, set(roots))
        self._free(scratch.result_at)
        return Survey(count, self._named(frozenset(classes)), self._first_names(root_classes))

    def _noted(self, noted: NativeCore, roots: Sequence[int]) -> Survey:
        """The same by the extension: 20 ns a node."""
        told = noted.survey(roots)
        found = self._surveys.get(told)
        if found is not None and found.alike is not None and found.alike[2] == SHOWN.version:
            return found
        count, _, alike = told
        kinds = self._named(frozenset(noted.kinds()))
        words = self._words
        # What stacks tell is another thing once other frames are shown.
        found = Survey(
            count, kinds, self._first_names([words[root >> 3] for root in roots]), (*alike, SHOWN.version), told
        )
        if kinds is not None:
            if len(self._surveys) >= _MOST_SETS:
                self._surveys = {}
            self._surveys[told] = found
        return found

    def _named(self, classes: frozenset[int]) -> frozenset[str] | None:
        """All that nodes of these classes may be called. A training script has the same ones at every step: one set
        for all its graphs, so that what was decided about it is found again."""
        kinds = self._sets.get(classes)
        if kinds is None:
            known = [self._names.get(each) for each in classes]
            if not all(known):
                return None
            if len(self._sets) >= _MOST_SETS:
                self._sets = {}
            kinds = self._sets[classes] = frozenset(name for names in known for name in names or ())
        return kinds

    def _first_names(self, classes: Sequence[int]) -> tuple[str, ...] | None:
        named = [self._names.get(each) for each in classes]
        return tuple(names[0] for names in named if names) if all(named) else None

    def _among(self, at: int, addresses: set[int]) -> int:
        """How many of ``addresses`` are in the list that begins at ``at``."""
        words, count = self._words, 0
        while at:
            count += words[(at >> 3) + 1] in addresses
            at = words[at >> 3]
        return count

    def learn(self, nodes: Iterable[Any], printed: Iterable[str]) -> None:
        """Names of classes, of walked nodes and what Paddle prints for each.."""
        for node, name in zip(nodes, printed):
            address = self._memory.word(node.node_ptr())
            if address not in self._names:
                own = self._class_name(address)
                # The generator's suffix is left out of numbered names: conv2d1GradNode of Conv2dGradNodeFinal.
                possible = (own, own.removesuffix("Final"))
                self._names[address] = possible if framework_name(name) in possible else ()

    def _class_name(self, table: int) -> str:
        """ "MatmulGradNode", by the type information in front of a virtual table (Itanium C++ ABI 2.9); "" where it
        is not a plain name."""
        information = self._memory.word(table - 8)
        mangled = (
            self._memory.read(self._memory.word(information + 8), 200).partition(b"\0")[0].decode("ascii", "replace")
        )
        name, rest = "", mangled.removeprefix("N")
        while (length := _LENGTH.match(rest)) is not None:
            end = length.end() + int(length[0])
            name, rest = rest[length.end() : end], rest[end:]
        return name


_lock = threading.Lock()
_census: list[Census | None] = []
_USE = PrivateUse("libpaddle getInDegreeMap", "tell which kinds of nodes a graph has, without walking it", True)
private.USES.append(_USE)


def census() -> Census | None:
    """The census, or None where a check failed. Checked once, by the backend as it is made."""
    if not _census:
        if symbols.postponed():
            return None
        with _lock:
            if not _census:
                try:
                    with own_operators():
                        _census.append(Census(symbols.library(), ReadMemory()))
                except own(Exception) as error:
                    _census.append(None)
                    _USE.present, _USE.problem = False, str(error) or type(error).__name__
    return _census[0]


def leave() -> None:
    """adbg leaves the process: no descriptor of it stays."""
    for counted in _census:
        if counted is not None:
            counted.close()
