"""Commands about threads of a program that runs or hangs: ``where all``, ``thread``."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from adbg.engine.attach.stacks_merged import ProcessThreads, Thread
from adbg.engine.attach.stacks_read import Native, read
from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.codec import to_json
from adbg.engine.protocol.messages import AllThreadsBody
from adbg.tui.commands.stack import frame_text
from adbg.tui.commands.table import CommandResult, command, table_result, words_of
from adbg.tui.debugger.job.one_rank import OneRank
from adbg.tui.text.threads import call_text, doing, lines, text_of

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger
    from adbg.tui.debugger.process import Process

AT_ONCE = 2  # processes: py-spy takes a CPU for each
# What Python puts into every module; scripts are given them all the same.
_OF_A_MODULE = re.compile(r"__(name|doc|package|loader|spec|annotations|builtins|file|cached|warningregistry)__")
_USAGE = "where all [-v] [native | python]"


def read_all(debugger: Debugger, native: Native = Native.WHERE_HARMLESS, every: bool = False) -> list[ProcessThreads]:
    """The threads of the current process; with ``every`` then those of the other ones, and of those that adbg is only
    entering. These are read too where no process is connected.

    Raises:
        AdbgError: there is none, or none can be read.
    """
    current = debugger.current
    questions: list[Callable[[], ProcessThreads]] = []
    if current is not None and current.alive:
        every = every and not isinstance(debugger, OneRank)
        others = [each for each in debugger.processes if each is not current] if every else []
        questions = [partial(of_process, each, native) for each in (current, *others)]
    if every or not questions:
        questions += [partial(read, pid, None, native) for pid in _without_agent(debugger)]
    if not questions:
        raise debugger.model.absent()
    if len(questions) == 1:
        return [questions[0]()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_answer, questions))
    found = [answer for answer in answers if isinstance(answer, ProcessThreads)]
    problems = [answer for answer in answers if isinstance(answer, AdbgError)]
    if not found and problems:
        raise problems[0]
    return found


def _answer(question: Callable[[], ProcessThreads]) -> ProcessThreads | AdbgError:
    try:
        return question()
    except AdbgError as error:
        return error


def of_process(process: Process, native: Native = Native.WHERE_HARMLESS) -> ProcessThreads:
    """The threads of a process with an agent."""
    info = process.info

    def ask(seconds: float) -> AllThreadsBody:
        body: AllThreadsBody = process.client.request(protocol.AllThreads(), seconds)
        return body

    return read(info.pid, ask, native, getattr(info, "host", ""), number=process.number, rank=info.rank)


def _without_agent(debugger: Debugger) -> list[int]:
    """The pids that adbg is only entering."""
    known = {process.info.pid for process in debugger.processes}
    program: Any = debugger.program
    pids = getattr(program, "pids", None) or (getattr(program, "pid", 0),)
    return [pid for pid in pids if pid and pid not in known]


def where_all(debugger: Debugger, argument: str) -> CommandResult:
    """``where all``: see ``where``."""
    whole, native = False, Native.WHERE_HARMLESS
    for word in words_of(argument):
        if word in ("-v", "--verbose"):
            whole = True
        elif word in ("native", "python"):
            native = Native.YES if word == "native" else Native.NO
        else:
            raise CommandError(f"`where all` does not know {word!r}", _USAGE)
    views = read_all(debugger, native, every=True)
    return CommandResult(text_of(views, whole), [value_of(view) for view in views])


@command("threads", group="stack", args="[-v] [native|python]")
def threads(debugger: Debugger, argument: str) -> CommandResult:
    """Show what every thread of the process does: the same as `where all`.

    It shows every process of the session, the current one first (`rank 1 where all` shows one alone). It needs no
    stop, works while adbg is still waiting to get into a process, and for one whose GIL is held. Per thread: what it
    waits in and for how long, who holds the GIL, the last call that began and did not end, the node that runs with
    its forward line, and the lines of your own code; `-v` shows all frames. Native frames are read by py-spy where
    that is installed: it holds the process for about a second, and is not asked where that would disturb a system
    call (`native` asks it all the same, `python` never does).
    """
    return where_all(debugger, argument)


def locals_result(debugger: Debugger) -> CommandResult:
    """``info locals``: of the selected frame; of a thread that runs, as they are at this moment."""
    view, head = debugger.view, ""
    if view.chosen is not None:
        variables = view.thread_names()
    else:
        number, variables = view.local_variables()
        if number != view.frame:  # a node has none, nor has a forward call, which has returned
            head = f"of frame {number}, {frame_text(view.frames()[number])}, the first that runs"
            if view.frame:
                head += f": the call of frame {view.frame} is over, and what it had is gone"
    value = [{"name": each.name, "type": each.type, "value": each.value} for each in variables]
    rows = [tuple(each.values()) for each in value if not _OF_A_MODULE.fullmatch(each["name"])]
    return table_result(("name", "type", "value"), rows, head if rows else "this frame has no locals", value)


def value_of(view: ProcessThreads) -> dict[str, Any]:
    """For scripts."""
    return {
        "pid": view.pid,
        "process": view.number,
        "rank": view.rank,
        "gil_known": view.gil,
        "held_s": round(view.held, 3),
        "notes": [{"kind": note.kind.value, "detail": note.detail} for note in view.notes],
        "threads": [_thread_value(thread) for thread in view.threads],
    }


def _thread_value(thread: Thread) -> dict[str, Any]:
    system = thread.os
    return {
        "number": thread.number,
        "tid": thread.tid,
        "ident": thread.ident,
        "name": thread.name,
        "daemon": thread.daemon,
        "doing": doing(thread),
        "state": system.state if system is not None else "",
        "syscall": system.syscall if system is not None else "",
        "slept_s": None if system is None or system.slept is None else round(system.slept, 3),
        "cpu": None if system is None or system.cpu is None else round(system.cpu, 3),
        "owns_gil": thread.owns_gil,
        "stop": thread.parked,
        "call": thread.call,
        "call_at": call_text(thread),
        "node": to_json(thread.node) if thread.node is not None else None,
        "frames": [
            {"function": f.function, "file": f.file, "line": f.line, "owner": f.owner, "library": f.library}
            for f in thread.frames
        ],
    }


@command("thread", group="stack", args="[N]")
def thread_(debugger: Debugger, argument: str) -> CommandResult:
    """Select thread N of the process, though it runs; without N, show the selected one.

    `where`, `frame`, `up`, `down`, `list`, `info locals` and `print` then speak of it. N is its number in `where all`,
    its id in the system, or its name. `print` reads names, attributes and items there, and refuses what would run code
    of the program. The next stop, and `thread off`, select the stopped thread again.
    """
    process = debugger.current
    view = process.view if process is not None and process.alive else None
    word = argument.strip()
    if word == "off":
        if view is not None:
            view.choose_thread(None)
        return CommandResult("no thread is selected", {"thread": None})
    if not word:
        chosen = view.chosen if view is not None else None
        if chosen is None:
            raise CommandError("no thread is selected", "`thread 2` selects one, `where all` lists them")
        return CommandResult(f"thread {chosen.number}  {chosen.name}", {"thread": chosen.number, "tid": chosen.tid})
    found: Thread | None = None
    problem: AdbgError | None = None
    for each in read_all(debugger, Native.NO):
        try:
            found = each.thread(word)
        except AdbgError as error:
            problem = error
            continue
        if view is not None and any(frame.from_end for frame in found.frames):
            view.choose_thread(found)
        shown = replace(each, threads=(found,), notes=())
        text = "\n".join(line.text for line in lines(shown, whole=True)[1:])
        return CommandResult(text, _thread_value(found))
    raise problem or CommandError(f"no thread {word!r}", "`where all` lists them")
