"""The threads of a process, put together from all that tell of them: its agent, the kernel, py-spy. Pure.

The agent knows Python threads, the last call and the node; the kernel every thread, whether it sleeps and in what;
py-spy the native frames, and who holds the GIL.
"""

from __future__ import annotations

import enum
import itertools
import os
import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from adbg.engine.attach.stacks import OsThread
from adbg.engine.attach.stacks_pyspy import SeenFrame, SeenThread
from adbg.engine.errors import CommandError
from adbg.engine.own_files import own_folders
from adbg.engine.protocol.messages import AllThreadsBody, RunningNode, ThreadFacts

_OWN = own_folders()
_FRAMEWORKS = tuple(f"{os.sep}{name}{os.sep}" for name in ("torch", "paddle", "mindspore"))
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", f"{os.sep}lib{os.sep}python3.")
# No hook: PyFunctionPreHook::operator(), in which a thread stands at a stop.
_TORCH_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+(?<!Hook))::(?:apply|operator\(\))")
_PADDLE_NODE = re.compile(r"\b(\w*GradNode\w*)::operator\s*\(\)")
_NO_NODES = ("Node", "PyNode", "Engine")  # of torch::autograd, beside the nodes themselves
# Libraries whose frames say only how a thread waits, not for what.
_BELOW = re.compile(r"^(?:libc|libpthread|ld-linux|libstdc\+\+|libgomp|libgcc_s|linux-vdso)(?=[.-]|$)")


class NoteKind(enum.Enum):
    """What is missing in an answer, and why."""

    NO_AGENT = "no agent"  # adbg is not in the process (yet)
    SILENT = "silent"  # the agent did not answer in time; detail: seconds
    NO_PYSPY = "no py-spy"
    PYSPY_FAILED = "py-spy failed"  # detail: why
    NATIVE_LEFT = "native left out"  # detail: the threads that a hold would disturb
    ELSEWHERE = "another host"  # detail: its name
    NO_PROC = "no /proc"  # detail: why


@dataclass(frozen=True, slots=True)
class Note:
    kind: NoteKind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """``owner``: "user", "library", "framework" or "native"; ``library`` of a native one. ``from_end``: see
    ``ThreadFrame`` of the protocol; 0 where the agent did not tell."""

    function: str
    file: str
    line: int
    owner: str
    library: str = ""
    from_end: int = 0


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread. ``number`` counts from 1 by age; ``ident`` 0 for one that runs no Python."""

    number: int
    tid: int
    ident: int = 0
    name: str = ""
    daemon: bool = False
    os: OsThread | None = None
    parked: str = ""  # "stopped" at a breakpoint, "waiting" behind one
    frames: tuple[Frame, ...] = ()  # innermost first
    cut: int = 0
    owns_gil: bool = False
    call: str = ""  # the last call of the user's code into a library or framework
    node: RunningNode | None = None
    unmoved: float | None = None

    @property
    def python(self) -> bool:
        return self.ident != 0

    @property
    def user_frame(self) -> Frame | None:
        """The innermost line of the user's own code."""
        return next((frame for frame in self.frames if frame.owner == "user"), None)

    @property
    def waits_in(self) -> str:
        """The native function that says what it waits for, "" where there are no native frames."""
        native = [frame for frame in self.frames if frame.owner == "native"]
        told = [frame for frame in native if not frame.function.startswith("0x")]
        return next((f.function for f in told if not _BELOW.match(f.library)), told[0].function if told else "")

    @property
    def waits_for_gil(self) -> bool:
        """Whether its native frames are those of a thread that wants the GIL: the interpreter waits for that, and for
        nothing else, on a condition with a time-out."""
        native = itertools.takewhile(lambda frame: frame.owner == "native", self.frames)
        names = [frame for frame in native if not frame.function.startswith("0x")]
        return (
            len(names) > 1
            and not self.owns_gil
            and names[0].function.startswith("pthread_cond_timedwait")
            and names[1].library.startswith(("libpython", "python"))
        )


@dataclass(frozen=True, slots=True)
class ProcessThreads:
    """All threads of one process. ``gil`` tells whether it is known who holds the GIL."""

    pid: int
    number: int = 0  # of the process in this session; 0 without an agent
    rank: int | None = None
    threads: tuple[Thread, ...] = ()
    gil: bool = False
    held: float = 0.0  # seconds that the process was held for its native frames
    notes: tuple[Note, ...] = ()

    def thread(self, word: str) -> Thread:
        """By its number here, its id in the system, or its name. Raises CommandError."""
        for thread in self.threads:
            if word in (str(thread.number), str(thread.tid), thread.name):
                return thread
        have = f"1 to {len(self.threads)}" if self.threads else "none"
        raise CommandError(f"no thread {word!r} in process {self.pid}", f"threads: {have}; `where all` lists them")


# ---------------------------------------------------------------------- one thread from all of them


def merge(kernel: Sequence[OsThread], facts: AllThreadsBody | None, seen: Sequence[SeenThread]) -> tuple[Thread, ...]:
    """The threads by age, adbg's own left out."""
    by_ident = {each.ident: each for each in seen}
    told: dict[int, ThreadFacts] = {}
    for each in _told(facts):
        tid = each.native_id or (by_ident[each.id].tid if each.id in by_ident else 0)
        told[tid or -len(told) - 1] = each
    outside = {each.tid: each for each in seen}
    system = {each.tid: each for each in kernel if not each.name.startswith("adbg-")}  # from Python 3.14 on
    own = {each.tid for each in seen if each.name.startswith("adbg-")}
    own.update(facts.own if facts is not None else ())
    order = sorted({*system, *outside, *told} - own, key=lambda tid: (tid < 0, abs(tid)))
    return tuple(
        _thread(number, tid, system.get(tid), told.get(tid), outside.get(tid)) for number, tid in enumerate(order, 1)
    )


def _told(facts: AllThreadsBody | None) -> Sequence[ThreadFacts]:
    return facts.threads if facts is not None else ()


def _thread(
    number: int, tid: int, system: OsThread | None, facts: ThreadFacts | None, seen: SeenThread | None
) -> Thread:
    frames = _frames(facts, seen)
    node = facts.node if facts is not None else None
    if node is None and (name := native_node(frames)):
        node = RunningNode(name)
    ident = facts.id if facts is not None else seen.ident if seen is not None else 0
    name = facts.name if facts is not None else seen.name if seen is not None else ""
    return Thread(
        number=number,
        tid=max(tid, 0),
        ident=ident,
        name=name or (system.name if system is not None else ""),
        daemon=facts is not None and facts.daemon,
        os=system,
        parked=facts.state if facts is not None and facts.state != "running" else "",
        frames=frames,
        cut=facts.cut if facts is not None else 0,
        owns_gil=seen is not None and seen.owns_gil,
        call=facts.call_name if facts is not None else _last_call(frames),
        node=node,
        unmoved=facts.unmoved if facts is not None else None,
    )


def _frames(facts: ThreadFacts | None, seen: SeenThread | None) -> tuple[Frame, ...]:
    """The agent's Python frames, with py-spy's native ones inside the innermost of them; else py-spy's alone."""
    outside = tuple(_outside(frame) for frame in seen.frames if not _own(frame)) if seen is not None else ()
    if facts is None:
        return outside
    python = tuple(Frame(f.function, f.file, f.line, f.owner, "", f.from_end) for f in facts.frames)
    if not any(frame.owner == "native" for frame in outside):
        return python
    told = {(frame.function, frame.line): frame for frame in reversed(python)}
    mixed = []
    for frame in outside:
        known = told.get((frame.function.rpartition(".")[2], frame.line)) if frame.owner != "native" else None
        mixed.append(replace(frame, from_end=known.from_end, owner=known.owner, file=known.file) if known else frame)
    return tuple(mixed)


def _own(frame: SeenFrame) -> bool:
    """Of adbg, or in disguise (``outside.DISGUISED``)."""
    return frame.file.startswith(_OWN) or "_entry_function.<locals>" in frame.function


def _outside(frame: SeenFrame) -> Frame:
    if frame.module or frame.file == "?":
        return Frame(frame.function, frame.file, frame.line, "native", os.path.basename(frame.module))
    return Frame(frame.function, frame.file, frame.line, owner_of(frame.file))


_LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib"))


def owner_of(file: str) -> str:
    """ "user", "library" or "framework", by the path alone."""
    if any(part in file for part in _PACKAGES):
        return "framework" if any(part in file for part in _FRAMEWORKS) else "library"
    return "library" if file.startswith(("<frozen ", *_LIBRARY)) else "user"


def _last_call(frames: Sequence[Frame]) -> str:
    """The function that the user's innermost frame called, by its name alone."""
    python = [frame for frame in frames if frame.owner != "native"]
    inside = next((place for place, frame in enumerate(python) if frame.owner == "user"), 0)
    named = [frame for frame in python[:inside] if not frame.function.endswith(("wrapper", "inner", "_call_impl"))]
    return named[-1].function if named else ""


def native_node(frames: Iterable[Frame]) -> str:
    """The innermost node that native frames name: "MmBackward0", "MatmulGradNode"; "" for none."""
    for frame in frames:
        if frame.owner == "native":
            found = _TORCH_NODE.search(frame.function) or _PADDLE_NODE.search(frame.function)
            if found is not None and found[1] not in _NO_NODES:
                return found[1]
    return ""
