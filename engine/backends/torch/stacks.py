"""Forward stacks: which Python lines made a node.

torch's anomaly mode calls ``torch.fx.traceback.format_stack`` when a node is made and keeps what it returns on the
node. While stacks are on, that function is one of ours that takes a C++ capture (0.4 us instead of 28-144 us) with the
module at hand. It runs in the script's forward, on its threads. The script's own anomaly mode keeps its meaning: its
wish is kept apart from ours.

Where the extension can (``native/stacks.py``) it takes the stacks instead, and anomaly mode is left alone but while
somebody listens to every stack (``tap``).
"""

from __future__ import annotations

import os
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback

from adbg.engine.backends.common import user_files
from adbg.engine.backends.common.stack_history import StackHistory
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.modules import Modules, RunningModules
from adbg.engine.backends.torch.native.stacks import NativeStacks, NativeTrace
from adbg.engine.types import SourceLine

# torch/csrc/autograd/saved_variable.cpp, with anomaly mode and without
_HINT_ON = (
    "Hint: the backtrace further above shows the operation that failed to compute its gradient. The variable in "
    "question was changed in there or anywhere later. Good luck!"
)
_HINT_OFF = (
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
_TRACE_KEY = "traceback_"  # torch/csrc/autograd/python_anomaly_mode.h: ANOMALY_TRACE_KEY
_PARENT_KEY = "parent_"  # ANOMALY_PARENT_KEY: the node that ran when this one was made
#: python_anomaly_mode.cpp, PyAnomalyMetadata::print_stack: the second one, which begins with two newlines, names the
#: node whose backward made the failed one.
_WARNING = r"\s*(Error detected in |Previous calculation was induced by )"


class ForwardTrace(list[str]):
    """What is kept on a node: a list of str to torch (formatted only when torch prints it), a capture to us."""

    __slots__ = ("captured", "frame")

    captured: Any
    frame: Any
    wished = True  # made while the script had anomaly mode on

    @staticmethod
    def mute() -> None:
        """Called before torch formats its "Error detected in ..." of a mode that the script did not ask for."""

    def __iter__(self) -> Iterator[str]:
        self.mute()
        if not len(self):
            self.extend(_formatted(self.captured))
        return super().__iter__()

    def copy(self) -> list[str]:
        """AOTAutograd copies the stack of every node it traces."""
        return list(super().__iter__()) or _formatted(self.captured)


def _formatted(captured: Any) -> list[str]:
    frames = [
        traceback.FrameSummary(frame["filename"], frame["line"], frame["name"])
        for frame in reversed(_symbolized([captured])[0])
    ]
    return traceback.format_list(frames)


def _symbolized(captures: list[Any]) -> list[list[dict[str, Any]]]:
    """Frames innermost first, without our own. One capture costs 28 us, 600 at once 1.2 us each."""
    if private.symbolize is None or not captures:
        return [[] for _ in captures]
    with private.no_inductor():
        symbolized = private.symbolize(captures)
    return [[frame for frame in frames if frame["filename"] != __file__] for frames in symbolized]


class FrameFilter(user_files.FrameFilter):
    """The user's files, as opposed to torch's."""

    def __init__(self) -> None:
        super().__init__(os.path.dirname(torch.__file__))


class Stacks:
    """Takes the forward stacks while it is on, and answers with them."""

    def __init__(self, modules: Modules, frames: FrameFilter, native: NativeStacks) -> None:
        self.on = False
        self.history = StackHistory()
        self.by_anomaly = False  # anomaly mode is ours: nodes hold stacks, and those that ran when they were made
        self.ever_by_anomaly = False
        self._native = native
        self._modules = modules
        self._frames = frames
        self._wish = (False, True)  # what the script asked of torch's anomaly mode: (on, check for NaN)
        self._replaced: dict[str, Any] = {}
        self._takers: Any = ()  # our format_stack while the script has anomaly mode off, and on
        self._muted: list[Any] = []
        self._tap: Callable[[ForwardTrace], None] | None = None
        self._lock = threading.Lock()
        self._switching = False
        self._lines: dict[tuple[str, int, str], SourceLine] = {}

    def abandon(self) -> None:
        """In a forked child: off, also where a thread that is not here had switched half of it."""
        self._lock = threading.Lock()
        self._native.set(False)
        if (self.by_anomaly or self._switching) and self._replaced:
            self._take_out()
            self._modules.unwatch()
        self.on = self._switching = False

    @property
    def possible(self) -> bool:
        return None not in (private.gather, private.symbolize, private.set_anomaly, private.format_stack)

    def as_without(self, error: BaseException) -> None:
        """Give the error of an overwritten tensor the hint that it has while anomaly mode is off, unless the script has
        it on."""
        text = error.args[0] if error.args else None
        if self.by_anomaly and not self._wish[0] and isinstance(text, str) and _HINT_ON in text:
            error.args = (text.replace(_HINT_ON, _HINT_OFF), *error.args[1:])

    # ---- on and off

    def set(self, on: bool) -> None:
        """Nodes made from now on have a stack, or have none. May be called while a forward runs on another thread."""
        with self._lock:
            if on == self.on or not self.possible:
                return
            self._switching = True
            self.on = on
            natively = self._native.on or (on and not self._native.set(True))
            if not on:
                self._native.set(False)
            if on and (not natively or self._tap is not None):
                self._put_in()
            elif self.by_anomaly:
                self._take_out()
            if on and not natively:
                self._modules.watch()
            else:
                self._modules.unwatch()
            self._switching = False

    def _put_in(self) -> None:
        self.by_anomaly = self.ever_by_anomaly = True
        assert private.is_anomaly is not None and private.is_anomaly_nan is not None
        self._wish = (private.is_anomaly(), private.is_anomaly_nan())
        self._replaced = {
            "format_stack": torch.fx.traceback.format_stack,
            "set_anomaly_enabled": torch.set_anomaly_enabled,
            "is_anomaly_enabled": torch.is_anomaly_enabled,
            "is_anomaly_check_nan_enabled": torch.is_anomaly_check_nan_enabled,
        }
        original, running = self._replaced["format_stack"], self._modules.running
        self._takers = (_stack_taker(original, running, self.mute), _wished_stack_taker(original, running))
        # torch.autograd.detect_anomaly and set_detect_anomaly go through these three names.
        setattr(torch, "set_anomaly_enabled", self._script_sets)  # noqa: B010  (typed as one function)
        torch.is_anomaly_enabled = lambda: self._wish[0]
        torch.is_anomaly_check_nan_enabled = lambda: self._wish[1]
        self._apply()

    def _take_out(self) -> None:
        torch.fx.traceback.format_stack = self._replaced["format_stack"]
        for name in ("set_anomaly_enabled", "is_anomaly_enabled", "is_anomaly_check_nan_enabled"):
            setattr(torch, name, self._replaced[name])
        assert private.set_anomaly is not None
        private.set_anomaly(*self._wish)
        self.by_anomaly = False
        self.unmute()

    def tap(self, listener: Callable[[ForwardTrace], None] | None) -> None:
        """Have ``listener`` called with the stack of every node that is made, on its thread; None ends it. A node then
        costs one more call; without a listener nothing more."""
        with self._lock:
            self._tap = listener
            if self.on and self._native.on and listener is None:
                self._take_out()
            elif self.by_anomaly:
                self._apply()
            elif self.on:
                self._put_in()

    def _script_sets(self, mode: bool, check_nan: bool = True) -> None:
        assert private.set_anomaly is not None
        private.set_anomaly(mode, check_nan)  # its own argument checks and errors
        self._wish = (mode, check_nan)
        self._apply()

    def _apply(self) -> None:
        assert private.set_anomaly is not None
        wanted, check_nan = self._wish
        taker = self._takers[wanted]
        torch.fx.traceback.format_stack = taker if self._tap is None else _tapped(taker, self._tap)
        private.set_anomaly(True, check_nan if wanted else False)
        self.unmute()

    # ---- the warning of a mode that the script did not switch on

    def mute(self) -> None:
        """Ignore torch's "Error detected in ..." until the failing backward is out (``unmute``).

        Called while torch formats that very warning, so that no filter is there at any other time: a filter put in once
        would be overruled by a script's own ``simplefilter``, and switching anomaly mode off for the length of a
        backward would leave the nodes that checkpoints record inside it without a stack.
        """
        if not self._muted:
            warnings.filterwarnings("ignore", message=_WARNING, category=UserWarning)
            self._muted.append(warnings.filters[0])

    def unmute(self) -> None:
        while self._muted:
            entry = self._muted.pop()
            with_it = list(warnings.filters)
            if entry in with_it:
                with_it.remove(entry)
                warnings.filters[:] = with_it  # type: ignore[index]

    # ---- the lifetimes of a mode that the script did not switch on

    def forget_parents(self, roots: Sequence[Any], limit: int) -> tuple[list[Any], bool]:
        """Let go of the nodes that ran when these ones, and those they came from, were made. Returns the nodes that
        were looked at, ``limit`` at most, and whether these were all.

        Anomaly mode has every node that is made inside a backward hold the node that ran then. Where that one holds
        the new graph (a context, a checkpoint), the two keep each other and all their tensors, and no collection of
        cycles sees it: the references are C++'s. Without anomaly mode nothing is held. 1 us for each such node; the
        rest of the graph is not walked, because nodes that were made outside point at none that were made inside.
        """
        todo, seen = list(roots), list[Any]()
        while todo and len(seen) < limit:
            node = todo.pop()
            metadata = getattr(node, "metadata", None)
            seen.append(node)
            if not metadata or _PARENT_KEY not in metadata:
                continue
            trace = metadata.get(_TRACE_KEY)
            if isinstance(trace, ForwardTrace) and not trace.wished:
                del metadata[_PARENT_KEY]
                todo += [following for following, _ in node.next_functions if following is not None]
        return seen, not todo

    # ---- answers

    def module_path(self, node: Any) -> str | None:
        """Path of the innermost module that was running when the node was made; "" is the outermost module itself."""
        return self.path_of(self.trace(node))

    @staticmethod
    def path_of(trace: ForwardTrace | NativeTrace | None) -> str | None:
        if isinstance(trace, NativeTrace):
            return trace.path
        if trace is None or trace.frame is None:
            return None
        path: str | None = trace.frame[0].path
        return path

    def trace_numbered(self, number: int) -> NativeTrace | None:
        """A stack that the extension took, by its number."""
        return self._native.numbered(number)

    def trace(self, node: Any) -> ForwardTrace | NativeTrace | None:
        native = self._native.trace(node)
        if native is not None:
            return native
        metadata = getattr(node, "metadata", None)
        trace = metadata.get(_TRACE_KEY) if metadata else None
        return trace if isinstance(trace, ForwardTrace) else None

    def user_lines(self, traces: Sequence[ForwardTrace | NativeTrace]) -> list[tuple[SourceLine, ...]]:
        """User frames of every trace, innermost first."""
        captured = iter(_symbolized([trace.captured for trace in traces if isinstance(trace, ForwardTrace)]))
        shown, native = self._frames.shown_file, self._native
        return [
            native.user_lines(trace, shown)
            if isinstance(trace, NativeTrace)
            else tuple(self._user_frames(next(captured)))
            for trace in traces
        ]

    def _user_frames(self, frames: list[dict[str, Any]]) -> Iterator[SourceLine]:
        for frame in frames:
            file = self._frames.shown_file(frame["filename"])
            if file is not None:
                key = (file, frame["line"], frame["name"])
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = SourceLine(*key)
                yield line


def _tapped(taker: Callable[[], list[str]], listener: Callable[[ForwardTrace], None]) -> Callable[[], list[str]]:
    """``taker``, with ``listener`` notified."""

    def format_stack() -> list[str]:
        trace = taker()
        if isinstance(trace, ForwardTrace):
            listener(trace)
        return trace

    return format_stack


def _stack_taker(
    original: Callable[[], list[str]], running: RunningModules, mute: Callable[[], None]
) -> Callable[[], list[str]]:
    """The replacement of ``torch.fx.traceback.format_stack`` while the script has anomaly mode off.

    It runs for every node of a forward (0.6 us, 0.4 of it the capture), so everything it needs is bound here.
    """
    gather = private.gather
    assert gather is not None
    guards = private.guards_tls if private.guards_tls is not None else types.SimpleNamespace()

    class Trace(ForwardTrace):
        __slots__ = ()
        wished = False

        @staticmethod
        def mute() -> None:
            mute()

    def format_stack() -> list[str]:
        try:
            if guards.tracing_context is not None:
                return original()  # AOTAutograd takes these stacks into its graph
        except AttributeError:
            guards.tracing_context = (
                None  # thread-local and absent means the same to torch; a miss costs 0.3 us each time
            )
        trace = Trace()
        trace.captured = gather(True, False, False)
        trace.frame = running.frame
        return trace

    return format_stack


def _wished_stack_taker(original: Callable[[], list[str]], running: RunningModules) -> Callable[[], list[str]]:
    """The same while the script has anomaly mode on: what torch would have kept, with a capture beside it."""
    gather = private.gather
    assert gather is not None

    def format_stack() -> list[str]:
        strings = original()
        if strings and __file__ in strings[-1]:
            strings.pop()  # our own frame
        if getattr(private.guards_tls, "tracing_context", None) is not None:
            return strings
        trace = ForwardTrace(strings)
        trace.captured = gather(True, False, False)
        trace.frame = running.frame
        return trace

    return format_stack
