"""Threads in words: ``where all`` and the app's screen of threads. Pure, but for the source lines it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from adbg.engine.attach.stacks_merged import Frame, Note, NoteKind, ProcessThreads, Thread
from adbg.engine.attach.stacks_pyspy import REMEDY
from adbg.engine.protocol.messages import RunningNode
from adbg.engine.types import SourceLine
from adbg.tui.text.formatting import file_text, place_text, source_text

LONGEST = 80  # characters of a native function's name
BUSY = 0.5  # share of a CPU above which a thread burns it
FEW = 2  # frames of a thread that runs none of the user's code
OFTEN = 3  # times that it woke within a tenth of a second
_STATES = {
    "T": "is stopped by a signal (`kill -CONT` lets it go on)",
    "t": "is held by a tracer",
    "Z": "has ended",
    "D": "sleeps in the kernel, where no signal wakes it",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the view. ``frame``: what it shows; ``level`` 0: a process, 1: a thread, 2: about it, 3: a frame."""

    text: str
    level: int
    thread: Thread | None = None
    frame: Frame | None = None


def seconds_text(seconds: float) -> str:
    """ "0.4 s", "41 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def native_name(name: str, longest: int = LONGEST) -> str:
    """The name of a native function without the arguments of its templates, which of a lambda are over 1,000
    characters."""
    if len(name) <= longest and "<" not in name:
        return name
    kept: list[str] = []
    depth = 0
    before = ""
    for char in name:
        opens = char == "<" and not before.endswith("operator")
        closes = char == ">" and depth > 0 and not before.endswith("-")
        if opens:
            depth += 1
            if depth == 1:
                kept.append("<…>")
        elif closes:
            depth -= 1
        elif not depth:
            kept.append(char)
        before = (before + char)[-8:]
    short = "".join(kept) if not depth else name
    return short if len(short) <= longest else f"{short[: longest - 1]}…"


def doing(thread: Thread) -> str:
    """What the thread does now: "sleeps 41 s in futex: c10d::Work::wait", "burns CPU (98 %)"."""
    if thread.parked == "stopped":
        return "is stopped by adbg"
    if thread.parked == "waiting":
        return "waits behind the stopped thread"
    if thread.waits_for_gil:
        return "waits for the GIL"
    system = thread.os
    inside = native_name(thread.waits_in) if thread.waits_in else ""
    if system is None:
        return f"is in {inside}" if inside else "runs Python"
    if system.cpu is not None and system.cpu >= BUSY:
        return f"burns CPU ({system.cpu:.0%})" + (f" in {inside}" if inside else "")
    if system.state in _STATES:
        return _STATES[system.state]
    if not system.sleeps:
        return "runs" + (f" in {inside}" if inside else "")
    where = system.syscall or system.wchan
    text = "sleeps"
    if system.woke >= OFTEN:
        text = "wakes again and again"
    elif system.slept is not None:
        text += f" {seconds_text(system.slept)}"
    text += f" in {where}" if where else ""
    if inside:
        return f"{text}: {inside}"
    return f"{text}  ({system.library})" if system.library and not thread.python else text


def headline(thread: Thread) -> str:
    """ "1  MainThread  4711  sleeps 41 s in futex: c10d::Work::wait"."""
    holds = ", holds the GIL" if thread.owns_gil else ""
    tid = f"  {thread.tid}" if thread.tid else ""
    return f"{thread.number:>3}  {thread.name or '?'}{tid}  {doing(thread)}{holds}"


def node_text(node: RunningNode) -> str:
    """ "node MmBackward0#3 of backward 4 for 12 s, made at model.py:16 in forward"."""
    text = f"node {node.name}"
    if node.backward:
        text += f" of backward {node.backward}"
    if node.seconds is not None:
        text += f" for {seconds_text(node.seconds)}"
    if node.forward is not None:
        text += f", made at {place_text(node.forward)}"
    return text


def call_text(thread: Thread) -> str:
    """ "in torch.distributed.all_reduce, called at train.py:9 in step"; without a call the user's own line."""
    frame = thread.user_frame
    place = place_text(SourceLine(frame.file, frame.line, _last(frame.function))) if frame is not None else ""
    if thread.call and place:
        return f"in {thread.call}, called at {place}"
    if thread.call:
        return f"in {thread.call}"
    return f"at {place}" if place else ""


def _last(function: str) -> str:
    return function.rpartition(".")[2]


def details(thread: Thread) -> Iterator[str]:
    """What is known beside the headline."""
    if thread.node is not None:
        yield node_text(thread.node)
    call = call_text(thread)
    if call and (thread.call or not thread.frames):  # else the frames below say it
        since = ""
        if thread.unmoved is not None and thread.unmoved >= 1 and (thread.os is None or thread.os.slept is None):
            since = f" (there since adbg looked {seconds_text(thread.unmoved)} ago)"
        yield call + since


def frame_line(frame: Frame) -> str:
    """ "step  train.py:9"; of a native frame its library."""
    if frame.owner == "native":
        place = f"{file_text(frame.file)}:{frame.line}" if frame.line else frame.library
        return f"{native_name(frame.function)}  ({place})"
    return f"{frame.function}  {file_text(frame.file)}:{frame.line}"


def frames_shown(thread: Thread, whole: bool) -> list[Frame]:
    """The frames to show: the user's own; where there are none, the innermost Python ones; with ``whole`` all."""
    if whole:
        return list(thread.frames)
    own = [frame for frame in thread.frames if frame.owner == "user"]
    return own or [frame for frame in thread.frames if frame.owner != "native"][:FEW]


def lines(view: ProcessThreads, whole: bool = False, more: str = "`where all -v`") -> list[Line]:
    """The view, a line each. ``whole``: all frames of all threads, none folded; ``more``: what shows these."""
    found = [Line(process_title(view), 0)]
    found += [Line(f"  {note_text(note)}", 0) for note in view.notes]
    for threads in _groups(view.threads, whole):
        found += _thread_lines(threads, whole, more)
    return found


def _thread_lines(threads: Sequence[Thread], whole: bool, more: str) -> Iterator[Line]:
    first = threads[0]
    if len(threads) > 1:
        tids = ", ".join(str(thread.tid) for thread in threads)
        yield Line(f"{first.number:>3}  {first.name} × {len(threads)}  {tids}  {doing(first)}", 1, first)
        return
    yield Line(headline(first), 1, first)
    for text in details(first):
        yield Line(f"       {text}", 2, first)
    shown = frames_shown(first, whole)
    for frame in shown:
        yield Line(f"         {frame_line(frame)}", 3, first, frame)
        if frame.owner == "user" and (source := _source(frame)):
            yield Line(f"             {source}", 3, first, frame)
    hidden = len(first.frames) - len(shown)
    if hidden and not whole and first.frames[0] is not shown[0]:
        yield Line(f"         … {hidden} more of libraries and native code: {more}", 2, first)
    if first.cut:
        yield Line(f"         … {first.cut} frames between are left out of a recursion", 2, first)


def _source(frame: Frame) -> str:
    text = source_text(frame.file, frame.line, mark=False).strip()
    return text.partition("  ")[2].strip() if text else ""


def _groups(threads: Sequence[Thread], whole: bool) -> Iterator[list[Thread]]:
    """Threads that run no Python and do the same go into one line."""
    grouped: dict[object, list[Thread]] = {}
    for thread in threads:
        system = thread.os
        alike = (thread.name, system.state, system.syscall, system.library) if system is not None else ()
        key: object = thread.number if thread.python or whole else alike
        grouped.setdefault(key, []).append(thread)
    yield from grouped.values()


def process_title(view: ProcessThreads) -> str:
    """ "process 4711 (rank 0): 4 threads; MainThread holds the GIL"."""
    rank = "" if view.rank is None else f" (rank {view.rank})"
    count = len(view.threads)
    text = f"process {view.pid}{rank}: {count} thread{'s' * (count != 1)}"
    if view.gil:
        holder = next((thread for thread in view.threads if thread.owns_gil), None)
        text += f"; {holder.name or holder.tid} holds the GIL" if holder is not None else "; nobody holds the GIL"
    if view.held:
        text += f"; py-spy held it for up to {seconds_text(view.held)} to read its native frames"
    return text


def note_text(note: Note) -> str:
    """What is missing, why, and what to do."""
    detail = note.detail
    return {
        NoteKind.NO_AGENT: "adbg is not in this process: its stacks are read from outside, without locals and nodes",
        NoteKind.SILENT: f"adbg in this process did not answer within {detail} s, so a thread keeps the GIL: what"
        " follows is read from outside",
        NoteKind.NO_PYSPY: f"no native frames, and the holder of the GIL is not known: {REMEDY}",
        NoteKind.PYSPY_FAILED: f"{detail}",
        NoteKind.NATIVE_LEFT: "no native frames: reading them holds the process a moment, which ends the system call"
        f" of {detail} with EINTR; `where all native` reads them all the same",
        NoteKind.ELSEWHERE: f"it runs on {detail}: its system calls and native frames cannot be read from here",
        NoteKind.NO_PROC: detail,
    }[note.kind]


def text_of(views: Iterable[ProcessThreads], whole: bool = False) -> str:
    """All of it, for a terminal."""
    return "\n\n".join("\n".join(line.text for line in lines(view, whole)) for view in views)
