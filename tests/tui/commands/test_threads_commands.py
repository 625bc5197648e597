"""`where all`, `thread` and what then speaks of that thread, over an agent that answers from a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.attach import stacks_pyspy, stacks_read
from adbg.engine.attach.stacks_merged import ProcessThreads
from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import AllThreadsBody, ThreadFacts, ThreadFrame
from adbg.tui.commands.table import execute
from adbg.tui.commands.threads import read_all

MAIN = [ThreadFrame("step", __file__, 12, "user", 2), ThreadFrame("<module>", __file__, 14, "user", 1)]
LOADER = [
    ThreadFrame("get", "/lib/python3.11/queue.py", 171, "library", 2),
    ThreadFrame("load", __file__, 9, "user", 1),
]


class Threaded:
    """Answers for the agent, and what it was asked."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self.threads = [
            ThreadFacts(70, 0, "MainThread", False, "running", MAIN),
            ThreadFacts(71, 0, "loader", True, "running", LOADER, call=0, call_name="queue.Queue.get"),
        ]
        self.names: list[protocol.ThreadNames] = []
        self.error: AdbgError | None = None
        agent.do_allThreads = lambda arguments: AllThreadsBody(self.threads)  # type: ignore[attr-defined]
        agent.do_threadNames = self.answer  # type: ignore[attr-defined]

    def answer(self, arguments: protocol.ThreadNames) -> protocol.ThreadNamesBody:
        self.names.append(arguments)
        if self.error is not None:
            raise self.error
        name = arguments.expression or "batch"
        return protocol.ThreadNamesBody([protocol.Variable(name, "7", "int", evaluateName=name)])


@pytest.fixture
def running(watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> tuple[Watched, Threaded]:
    """A program that runs; /proc and py-spy tell nothing of it: its pid is made up."""
    monkeypatch.setattr(stacks_pyspy, "find", lambda: "")
    monkeypatch.setattr(stacks_read, "threads_of", lambda pid, gap=0: [])
    one = watched(prepare=lambda agent: setattr(agent, "on_begin", lambda: None))
    agent = one.start()
    one.debugger.begin(False)
    return one, Threaded(agent)


def test_all_threads_of_a_program_that_runs(running: tuple[Watched, Threaded]) -> None:
    one, _ = running
    result = one.run("where all")
    assert "  1  MainThread" in result.text or "MainThread" in result.text
    assert "in queue.Queue.get, called at" in result.text
    (value,) = result.value
    assert [thread["name"] for thread in value["threads"]] == ["MainThread", "loader"]
    assert value["threads"][1]["frames"][0] == {
        "function": "get", "file": "/lib/python3.11/queue.py", "line": 171, "owner": "library", "library": "",
    }  # fmt: skip
    assert one.run("threads -v").text.count("queue.py:171") == 1
    assert one.run("where all").text.count("queue.py:171") == 0


def test_a_thread_is_selected_and_spoken_of(running: tuple[Watched, Threaded]) -> None:
    one, threaded = running
    with pytest.raises(NotStopped):
        one.run("list")
    one.run("thread loader")
    text = one.run("where").text
    assert "thread 2  loader" in text and "▸  0  get" in text and "1  load" in text
    one.run("up")
    assert one.debugger.view.frame == 1
    assert "▶" in one.run("list").text
    assert one.run("info locals").rows == (("batch", "int", "7"),)
    assert one.run("print batch").text == "7"
    assert threaded.names[-1] == protocol.ThreadNames(71, 1, "load", __file__, "batch")
    one.run("frame 0")
    one.run("info locals")
    assert threaded.names[-1].function == "get" and threaded.names[-1].from_end == 2
    for line in ("! x = 1", "set x = 1", "print/s x"):
        with pytest.raises(CommandError, match="needs a stop: thread loader runs"):
            one.run(line)
    assert one.run("thread").text == "thread 2  loader"
    one.run("thread off")
    with pytest.raises(CommandError, match="no thread is selected"):
        one.run("thread")


def test_a_stop_takes_the_selection_back(running: tuple[Watched, Threaded]) -> None:
    one, _ = running
    one.run("thread loader")
    one.program.agents[0].actions.put(lambda: one.program.agents[0].stop_at(2))
    one.settle()
    assert one.debugger.view.chosen is None
    assert "MmBackward0#2" in one.run("where").text


def test_a_thread_that_ended(running: tuple[Watched, Threaded]) -> None:
    one, threaded = running
    one.run("thread loader")
    del threaded.threads[1]
    with pytest.raises(CommandError, match="thread loader has ended"):
        one.run("where")
    assert one.debugger.view.chosen is None


def test_words_that_are_none(running: tuple[Watched, Threaded]) -> None:
    one, threaded = running
    with pytest.raises(CommandError, match="no thread 'nobody'"):
        one.run("thread nobody")
    with pytest.raises(CommandError, match="does not know 'everything'"):
        one.run("where all everything")
    threaded.error = CommandError("step does not run on that thread any more")
    one.run("thread 1")
    with pytest.raises(CommandError, match="does not run on that thread any more"):
        one.run("info locals")


def test_an_agent_that_does_not_answer_is_read_from_outside(
    running: tuple[Watched, Threaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = running
    monkeypatch.setattr(stacks_read, "ANSWER", 0.2)
    one.program.agents[0].silent.add("adbg/allThreads")
    text = one.run("where all").text
    assert "did not answer within 0.2 s" in text and "read from outside" in text


def test_before_an_agent_is_there(monkeypatch: pytest.MonkeyPatch, watched: Callable[..., Watched]) -> None:
    """While adbg is still getting in: the pids of the program are read, and one that is gone is passed over."""
    one = watched()
    with pytest.raises(NotStopped):
        execute(one.debugger, "where all")
    asked: list[int] = []

    def read(pid: int, ask: Any, native: Any) -> ProcessThreads:
        asked.append(pid)
        if pid == 1:
            raise DebuggeeGone("there is no process 1 any more")
        return ProcessThreads(pid)

    monkeypatch.setattr("adbg.tui.commands.threads.read", read)
    one.program.pids = (1, 2)  # type: ignore[attr-defined]
    assert [view.pid for view in read_all(one.debugger)] == [2] and sorted(asked) == [1, 2]
    one.program.pids = (1,)  # type: ignore[attr-defined]
    with pytest.raises(DebuggeeGone):
        read_all(one.debugger)


def test_every_process_of_a_job_is_shown_the_current_one_first(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks_pyspy, "find", lambda: "")
    monkeypatch.setattr(stacks_read, "threads_of", lambda pid, gap=0: [])
    one = watched(ranks=2, prepare=lambda agent: setattr(agent, "on_begin", lambda: None))
    one.start()
    one.debugger.begin(False)
    for agent in one.program.agents:
        Threaded(agent)
    one.run("process 2")
    assert [view["process"] for view in one.run("where all").value] == [2, 1]
    assert [view.number for view in read_all(one.debugger)] == [2]
    text = one.run("rank 0 where all").text
    assert text.count("MainThread") == 1


def test_locals_at_a_stop(watched: Callable[..., Watched]) -> None:
    one = watched()
    agent = one.stop_at("MmBackward0#2")
    scope = protocol.ScopesBody([protocol.Scope("Locals", 5)])
    agent.do_scopes = lambda arguments: scope  # type: ignore[attr-defined]
    variables = [protocol.Variable("x", "1", "int")]
    agent.do_variables = lambda arguments: protocol.VariablesBody(variables)  # type: ignore[attr-defined]
    result = one.run("info locals")
    assert result.rows == (("x", "int", "1"),)
    assert [r.frameId for r in agent.requests if isinstance(r, protocol.Scopes)] == [3]  # the innermost live frame
