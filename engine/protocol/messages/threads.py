"""Every thread of a program that runs: its frames, and the locals of one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from adbg.engine.protocol.messages.registry import request
from adbg.engine.protocol.messages.values import Variable
from adbg.engine.types import SourceLine


@dataclass(frozen=True, slots=True)
class ThreadFrame:
    """One Python frame. ``from_end`` counts from the outermost frame of the thread, from 1: what it calls comes and
    goes, its number stays."""

    function: str
    file: str
    line: int
    owner: Annotated[str, '"user", "library" (the standard library, an installed package) or "framework"']
    from_end: int = 0


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node that has begun on a thread and has not ended."""

    name: str
    backward: int = 0
    index: int = 0  # 0 where it is not known
    seconds: float | None = None  # since it began; None: adbg did not see that
    forward: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """``frames`` innermost first, without adbg's own. ``call`` is the place in ``frames`` of the function that the
    user's code called last (of a library or framework), -1 where that is a built-in one; ``call_name`` its name as a
    user imports it. ``unmoved``: seconds since its innermost frame was first found where it is now, None when it was
    not looked at before."""

    id: int
    native_id: int  # 0 where it is not known
    name: str
    daemon: bool
    state: str  # "running", "stopped", "waiting" (behind a stopped thread)
    frames: list[ThreadFrame] = field(default_factory=list)
    cut: int = 0  # frames left out of a deep recursion
    call: int = -1
    call_name: str = ""
    node: RunningNode | None = None
    unmoved: float | None = None


@dataclass(frozen=True, slots=True)
class AllThreadsBody:
    threads: list[ThreadFacts]
    own: list[int] = field(default_factory=list)  # native ids of adbg's threads, which are not among them


@request("adbg/allThreads", AllThreadsBody)
@dataclass(frozen=True, slots=True)
class AllThreads:
    """Answered while the program runs; nothing of the program's is run for it."""


@dataclass(frozen=True, slots=True)
class ThreadNamesBody:
    """The locals of a frame of a thread that runs, as they were at one moment."""

    variables: list[Variable]


@request("adbg/threadNames", ThreadNamesBody)
@dataclass(frozen=True, slots=True)
class ThreadNames:
    """``from_end``, ``function`` and ``file`` as ``ThreadFrame`` has them: refused where another frame is there by now.
    ``expression``: only its value; a chain of names, attributes and items, for which no code of the program's runs."""

    thread: int
    from_end: int
    function: str
    file: str
    expression: str = ""
