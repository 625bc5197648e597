"""Forward stacks of Paddle's nodes: FLAGS switched on and off at run time, and what Paddle then keeps.

At call stack level 3 Paddle writes the Python stack on every node it makes: a step of small operators takes 4.8 times
as long then, 2.2 with the texts of ``native.texts``; a small transformer's 1.7 and 1.2. Nodes made earlier keep none.
Paddle's own unique names are not switched on: they rename every tensor that an operator writes in place, parameters
too, and an optimizer that keeps its state by name then starts again at each step (Adam on a perceptron: another loss
from the third step on). The aid ``unique_names`` has them for who asks; the graph numbers nodes otherwise. ``set`` may
be called from the reader thread; stacks are read on the thread that asks.

With the extension (``native.core``) none of that is switched on: the stack is taken in C++ as a node is made. Paddle's
own texts are still asked for where the script has level 3 itself, and while ``hold_texts`` says so.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any

import paddle

from adbg.engine.backends.common.stack_history import StackHistory
from adbg.engine.backends.common.user_files import EXPRESSION, FrameFilter
from adbg.engine.backends.paddle.flags import SharedFlags, read_flags
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.core import NativeCore, core
from adbg.engine.backends.paddle.native.handwritten import COMPILED, OPERATORS, Handwritten
from adbg.engine.backends.paddle.native.texts import LONGEST_ORDER, StackTexts, at_level, ordered
from adbg.engine.own_files import SHOWN
from adbg.engine.types import SourceLine

_FRAME = re.compile(r'^\s*File "(?P<file>[^\n]*)", line (?P<line>\d+), in (?P<function>.*)$', re.MULTILINE)
_WANTED = {"FLAGS_call_stack_level": 3}
_FEATURE = "forward stacks"
_NUMBERED = re.compile(r"(?P<op>[a-z][a-z0-9_]*?)(?P<number>\d+)GradNode\Z")
_COMPILED = re.compile(r"#(\w+)_[0-9a-f]{5}\Z")  # what to_static makes of a function's name
_ASKED = "an expression at a stop made this node"
_UNTOLD = "Paddle keeps none on it: {}, or by an operator that keeps none"
_ITSELF = "no line of the script's own is on it: Paddle made this node by itself"
_DROPPED = "more stacks were taken since than are kept"
_HIGHER = "Paddle made this node by itself, for a higher derivative: such nodes keep no stack"
_OF_HIGHER = re.compile(r"(?:Double|Triple)GradNode")


def framework_name(printed: str) -> str:
    """ "MatmulGradNode" of "matmul2GradNode"; any other name as it is."""
    if printed[:1].isupper():
        return printed
    match = _NUMBERED.match(printed)
    if match is None:
        return printed
    return _camel(match["op"]) + "GradNode"


_CAMEL: dict[str, str] = {}


def _camel(op: str) -> str:
    known = _CAMEL.get(op)
    if known is None:
        known = _CAMEL[op] = "".join(word[:1].upper() + word[1:] for word in op.split("_"))
    return known


class Stacks:
    """Stacks, on or off."""

    def __init__(self, flags: SharedFlags) -> None:
        self.on = False
        self.history = StackHistory()
        self._were_on = False
        self._flags = flags
        self.frames = FrameFilter(os.path.dirname(paddle.__file__))
        self.texts = StackTexts()
        self._handwritten = Handwritten(self.texts)
        self._lock = threading.Lock()
        self._core: NativeCore | None = None  # while stacks are taken by it
        self._texts_on = False
        self._held = 0
        self._lines_version = SHOWN.version
        self._lines: dict[str, tuple[SourceLine, ...]] = {}  # by text: a training script makes the same ones again

    @property
    def possible(self) -> bool:
        return set(_WANTED) <= set(read_flags())

    def set(self, on: bool) -> None:
        """Nodes made from now on have a stack, or have none."""
        with self._lock:
            if on == self.on or not self.possible:
                return
            self.on = on
            if on:
                self._core = core() if self._flags.own("FLAGS_call_stack_level") < 3 else None
            if self._core is not None:
                self.texts.take_number = self._core.next_order
                if not self._core.switch(on):
                    self._core = None
            if not on:
                self._core = None
            self._put()

    @property
    def native(self) -> bool:
        """They are on, and taken by the extension."""
        return self._core is not None

    def hold_texts(self, held: bool) -> None:
        """Paddle's own texts are needed for what is made from now on, whatever else takes stacks; or no more, once for
        each time."""
        with self._lock:
            self._held += 1 if held else -1
            self._put()

    def _put(self) -> None:
        wanted = self.on and (self._core is None or self._held > 0)
        self._handwritten.take_out()
        if wanted != self._texts_on:
            self._texts_on = wanted
            if wanted:
                self._were_on = True
                self.texts.put_in()
                self._flags.want(_FEATURE, _WANTED)
            else:
                self.texts.take_out()
                self._flags.drop(_FEATURE)
        if self.on:
            self._handwritten.put_in(OPERATORS if wanted else COMPILED)

    def abandon(self) -> None:
        """In a forked child: off, also where a thread that is not here was about to switch it."""
        self._lock = threading.Lock()
        self._held = 0
        self.texts.abandon()
        self.set(False)

    def tell_place(self) -> None:
        """What Paddle's own code makes from here on, no operator being called, was made by the line that runs now: a
        backward with ``create_graph``, whose nodes would have the stack of the operator in front of it."""
        tell = symbols.python_stack() if self._texts_on else None
        if tell is not None:
            tell()

    def as_without(self, error: BaseException) -> None:
        """Give Paddle's error the text that it has at the script's own call stack level. Only where it passes through
        adbg: an operator of the forward raises past it."""
        text = error.args[0] if error.args else None
        if self._were_on and isinstance(text, str):
            error.args = (at_level(text, self._flags.own("FLAGS_call_stack_level")), *error.args[1:])

    def mark(self, node: Any) -> tuple[int, int]:
        """(number of its stack, its place in the forward) as the extension noted them; 0 where it did not."""
        noted = core()
        return noted.mark(node.node_ptr()) if noted is not None else (0, 0)

    def last(self) -> tuple[int, int]:
        """(address, place) of the node that began last on this thread; 0 where that is not known."""
        return self._core.last() if self._core is not None else (0, 0)

    def layer(self, node: Any) -> str | None:
        """The path of the Layer in which a node was made, where the extension noted it."""
        noted = core()
        return noted.layer(self.mark(node)[0]) if noted is not None else None

    def text(self, node: Any) -> str:
        """What Paddle keeps on a node: its stack as Python prints it; "" without one. 8 us."""
        native = symbols.native()
        return native.trace(node.node_ptr()) if native is not None else ""

    def number(self, node: Any) -> int:
        """The place of the operator that made a node among all that the process called while stacks were on; 0 where
        it has no stack. 1 us."""
        order = self.mark(node)[1]
        native = symbols.native() if not order and (self._were_on or self._core is not None) else None
        if native is None:
            return order
        return ordered(native.trace_end(node.node_ptr(), LONGEST_ORDER).decode("ascii", "replace"))[1]

    def lines(self, node: Any) -> tuple[tuple[SourceLine, ...], str]:
        """User frames that made the node, innermost first, and why there are none."""
        native = symbols.native()
        if native is None:
            return (), f"this Paddle's nodes cannot be read ({symbols.native_problem()})"
        text, _ = ordered(native.trace(node.node_ptr()))  # its number is its own: lines are kept by the rest
        stack = self.mark(node)[0] if not text else 0
        if stack:
            return self._noted(stack)
        if not text:
            if not self.on:
                return (), self.history.off
            return (), _HIGHER if _OF_HIGHER.search(node.name()) else _UNTOLD.format(self.history.missing)
        if self._lines_version != SHOWN.version:
            self._lines_version, self._lines = SHOWN.version, {}
        known = self._lines.get(text)
        if known is None:
            if len(self._lines) > 20_000:
                self._lines.clear()
            known = self._lines[text] = self.parsed(text)
        if known:
            return known, ""
        return (), _ASKED if EXPRESSION in text else _ITSELF

    def _noted(self, stack: int) -> tuple[tuple[SourceLine, ...], str]:
        noted = core()
        taken = noted.lines(stack, self.frames) if noted is not None else None
        if taken is None:
            gone = noted is None or noted.taken(stack) is None
            return (), _DROPPED if gone else _ASKED
        return taken, "" if taken else _ITSELF

    def parsed(self, text: str) -> tuple[SourceLine, ...]:
        """User frames of a stack as Python prints it, innermost first. Of an operator that an expression called, what
        called the expression is left out: it made nothing."""
        found: list[SourceLine] = []
        for match in _FRAME.finditer(text):
            if match["file"] == EXPRESSION:
                found.clear()
                continue
            file = self.frames.shown_file(match["file"])
            if file is not None:
                line = SourceLine(file, int(match["line"]), _COMPILED.sub(r"\1", match["function"]))
                if line not in found[-1:]:
                    found.append(line)
        return tuple(reversed(found))
