"""The optional extension ``adbg._native`` on Paddle: stacks, Layers and the order of the forward taken in C++ as a node
is made, and graphs surveyed in C++.

While stacks are on, the constructor of Paddle's nodes is ours (through the relocation slot by which libpaddle calls
it): it notes on the node which Python stack made it. Paddle's call stack level stays as the script has it, so
operators cost what they cost without adbg. All is tried on nodes of our own first; what fails there is told by ``adbg
doctor``, and Paddle's own texts (``native.texts``) do the work as without the extension.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import paddle

from adbg.engine.backends.base import DoctorLine
from adbg.engine.backends.common.backend import native_off
from adbg.engine.backends.common.user_files import EXPRESSION, FrameFilter
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.own import own_leaf, own_operators
from adbg.engine.backends.paddle.native.watch import NativeWatch
from adbg.engine.native import load
from adbg.engine.outside import own
from adbg.engine.own_files import SHOWN
from adbg.engine.types import SourceLine

Taken = tuple[tuple[tuple[types.CodeType, int], ...], str | None, Any]  # frames, Layer, outermost Layer (weak)
#: Nodes; a number for the set of their classes and those of the roots; two for all that makes two graphs alike.
Told = tuple[int, int, tuple[int, int]]
_MOST_KEPT = 20_000


class NativeCore:
    """What the extension does for Paddle. Made by ``core``, once all checks passed."""

    def __init__(self, module: Any) -> None:
        """Raises LookupError with what is missing or not as expected. Runs operators: see ``symbols.native``."""
        nodes = symbols.native()
        if nodes is None:
            raise LookupError(symbols.native_problem())
        trace, outgoing = nodes.mark_offsets()
        if not trace:
            raise LookupError("where a node keeps its stack was not found")
        self.module = module
        self.survey: Callable[[Sequence[int]], Told] = module.paddle_survey
        self.kinds = module.paddle_kinds
        self.next_order = module.paddle_order
        self.last: Callable[[], tuple[int, int]] = module.paddle_last
        self._mark = module.paddle_mark
        layout = nodes.layout
        module.paddle_begin(trace, outgoing, layout.slot_bytes, layout.edge_offset)
        self._lines: dict[int, tuple[SourceLine, ...] | None] = {}
        self._version = SHOWN.version
        call = getattr(paddle.nn.Layer.__call__, "__code__", None)
        module.modules(call, "_sub_layers")
        self.events_problem = ""  # why nodes are not written down
        self.places: dict[int, bytes] = {}  # see ``calls.written``
        self.leaf_class = 0  # address of the virtual table of accumulate nodes
        self._check()
        self.watch: NativeWatch | None = None
        self.watch_problem = ""
        try:
            self.watch = NativeWatch(module, nodes)
        except own(Exception) as error:
            self.watch_problem = str(error) or type(error).__name__
        finally:
            module.paddle_end()

    def _check(self) -> None:
        """Nodes of every making tell where they were made, and none does once it is over."""
        leaf = own_leaf([2])
        self.module.paddle_stacks(True)
        try:
            here = sys._getframe()
            scaled = paddle.scale(leaf)
            parts = paddle.split(scaled * 2.0, 2)
            root = (parts[0] + parts[1]).grad_fn
        finally:
            self.module.paddle_end()
        plain = paddle.scale(leaf).grad_fn
        self.module.paddle_stacks(True)  # another epoch: those marks count no more
        try:
            if self.mark(root.node_ptr()) != (0, 0) or self.mark(plain.node_ptr())[1]:
                raise LookupError("a node tells of a stack that nothing noted")
            made = [paddle.scale(leaf), paddle.scale(leaf * 3.0)]
            made.append(made[0] + made[1])
            marks = [self.mark(each.grad_fn.node_ptr()) for each in made]
            counted, _, _ = self.survey([made[2].grad_fn.node_ptr()])
            accumulate = made[0].grad_fn.next_functions[0].node_ptr()
            leaf_mark = self.mark(accumulate)
            self.leaf_class = ctypes.c_uint64.from_address(accumulate).value
        finally:
            self.module.paddle_end()
        orders = [order for _, order in marks]
        if 0 in orders or sorted(orders) != orders or not leaf_mark:
            raise LookupError(f"nodes were noted in the order {orders}")
        if counted != 5:
            raise LookupError(f"a graph of 5 nodes has {counted}")
        for stack, _ in marks:
            taken = self.taken(stack)
            if taken is None or here.f_code not in [code for code, _ in taken[0]]:
                raise LookupError("the stack of a node is not the one that made it")

    # ---- marks

    def switch(self, on: bool) -> bool:
        """Nodes made from now on are marked, or are not; those that are stay so. False: that cannot be done."""
        try:
            self.module.paddle_stacks(on)
        except LookupError:  # its slot cannot be written
            return False
        return True

    def end(self) -> None:
        """Everything of Paddle's is as it was; marks count no more."""
        self.module.paddle_end()

    def mark(self, address: int) -> tuple[int, int]:
        """(number of its stack, its place among all nodes that were marked) of a living node; 0 where it has none."""
        found: tuple[int, int] = self._mark(address)
        return found

    def taken(self, stack: int) -> Taken | None:
        found: Taken | None = self.module.stack(stack) if stack else None
        return found

    def latest(self) -> int:
        """The number of the newest stack."""
        return int(self.module.counts()[1])

    def layer(self, stack: int) -> str | None:
        """The path of the innermost Layer in a stack."""
        found = self.taken(stack)
        return found[1] if found is not None else None

    def lines(self, stack: int, frames: FrameFilter) -> tuple[SourceLine, ...] | None:
        """User frames of a stack, innermost first; None where it is of an expression, or not kept any more."""
        if self._version != SHOWN.version:
            self._version, self._lines = SHOWN.version, {}
        try:
            return self._lines[stack]
        except KeyError:
            if len(self._lines) >= _MOST_KEPT:
                self._lines.clear()
            found = self._lines[stack] = self._read(stack, frames)
            return found

    def _read(self, stack: int, frames: FrameFilter) -> tuple[SourceLine, ...] | None:
        taken = self.taken(stack)
        if taken is None:
            return None
        found: list[SourceLine] = []
        for code, lasti in taken[0]:
            if code.co_filename == EXPRESSION:  # what called the expression made nothing
                return tuple(found) if found else None
            file = frames.shown_file(code.co_filename)
            if file is not None:
                line = SourceLine(file, line_of(code, lasti), code.co_name)
                if line not in found[-1:]:
                    found.append(line)
        return tuple(found)


def line_of(code: types.CodeType, lasti: int) -> int:
    """The line of an instruction, as ``frame.f_lineno`` has it."""
    for begin, end, line in code.co_lines():
        if begin <= lasti < end and line is not None:
            return line
    return code.co_firstlineno


_lock = threading.Lock()
_core: list[tuple[NativeCore | None, str]] = []


def core() -> NativeCore | None:
    """The extension, or None where it is not there, or a check failed (``core_problem``). Checked once, as the backend
    is made (2 ms)."""
    if not _core:
        if symbols.postponed():
            return None
        with _lock:
            if not _core:
                _core.append(_made())
    return _core[0][0]


def core_problem() -> str:
    return _core[0][1] if _core else "adbg tries it out when the next backward begins"


def _made() -> tuple[NativeCore | None, str]:
    module, why = load.core()
    if module is None:
        return None, why
    try:
        with own_operators():
            return NativeCore(module), ""
    except own(Exception) as error:
        module.paddle_end()
        return None, str(error) or type(error).__name__


def interposed() -> Sequence[tuple[str, bool, int]]:
    """(symbol, whether ours stands in for it now, by how many slots it is called)."""
    made = _core[0][0] if _core else None
    return made.module.paddle_interposed() if made is not None else ()


def abandon_core() -> None:
    """In a forked child: whoever held the lock is not here."""
    global _lock
    _lock = threading.Lock()


def native_lines() -> Sequence[DoctorLine]:
    """What the extension does here, for ``adbg doctor``."""
    if load.core()[0] is None:
        return native_off()
    noted = core()
    if noted is None:
        return (DoctorLine("limit", "native core", f"not used, the Python hooks do its work: {core_problem()}"),)
    where = ", ".join(symbol for symbol, _, _ in interposed())
    lines = [DoctorLine("ok", "native core", f"stacks, Layers, the forward's order and graphs; interposes {where}")]
    if noted.watch is not None:
        lines.append(DoctorLine("ok", "native watch", "finite gradients of the CPU are looked at in C++"))
        if noted.events_problem:
            lines.append(DoctorLine("limit", "native node events", f"Python hooks: {noted.events_problem}"))
    else:
        lines.append(DoctorLine("limit", "native watch", f"the Python hooks look: {noted.watch_problem}"))
    return lines
