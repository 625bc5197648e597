"""A program that was found running, from its first process on: the entry into each process is played by the test, the
agents are scripted, all between them is real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.patience import patience
from support.program import wait_until
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.attach.enter import Progress
from adbg.engine.errors import AdbgError, AttachError, CommandError, DebuggeeGone, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import Refused
from adbg.engine.protocol.rendezvous import read_config
from adbg.tui.attach import found, way_in
from adbg.tui.attach.found import FoundProgram
from adbg.tui.attach.processes import Seen, Table
from adbg.tui.attach.way_in import Cancelled
from adbg.tui.commands.startup import run_startup
from adbg.tui.commands.table import execute
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import State
from adbg.tui.debugger.job import quiet
from adbg.tui.debugger.signals import Interrupts

Enter = Callable[[Path, Callable[[Progress], None], threading.Event], ScriptedAgent | None]


class World:
    """The processes of the test: ``ways`` says what entering each does; a scripted agent has pid 1000 + rank."""

    def __init__(self) -> None:
        self.ways: dict[int, Enter] = {}
        self.dead: set[int] = set()
        self.agents: dict[int, ScriptedAgent] = {}
        self.released: list[int] = []
        self.launcher = 0  # pid, where the processes are its ranks

    def examine(self, pid: int) -> int:
        if pid not in self.ways:
            raise AttachError(f"there is no process {pid}", "look again")
        return pid

    def enter(self, pid: int, session: Path, tell: Callable[[Progress], None], cancelled: threading.Event) -> FakeEntry:
        tell(Progress("entering"))
        agent = self.ways[pid](session, tell, cancelled)
        if agent is not None:
            self.agents[pid] = agent
        return FakeEntry(self, pid)

    def look(self, known: Table | None = None) -> Table:
        ranks = [
            Seen(pid, self.launcher, ("python", "x.py"), environment={"RANK": str(pid - 1000)}, frameworks=("torch",))
            for pid in self.ways
            if pid not in self.dead
        ]
        return {seen.pid: seen for seen in [Seen(self.launcher, 1, ("python", "torchrun", "x.py")), *ranks]}

    def agent(self, pid: int) -> ScriptedAgent:
        """It may have said hello before ``enter`` has put it down."""
        return wait_until(lambda: self.agents.get(pid), f"an agent in {pid}")

    def connect(self, pid: int) -> object:
        raise DebuggeeGone("nobody listens")


class FakeEntry:
    way = "ptrace-thread"

    def __init__(self, world: World, pid: int) -> None:
        self.world, self.pid = world, pid

    def release(self) -> str:
        self.world.released.append(self.pid)
        return ""


def joins(rank: int) -> Enter:
    """Its agent dials at once."""

    def way(session: Path, _tell: object, _cancelled: object) -> ScriptedAgent:
        config = read_config(session)
        agent = ScriptedAgent(config.socket, config.token, rank, main=False)
        agent.on_begin = lambda: None
        return agent

    return way


def waits(session: Path, tell: Callable[[Progress], None], cancelled: threading.Event) -> None:
    """Its main thread never runs Python again."""
    tell(Progress("queued", "ptrace-pending", 7, "recvfrom"))
    assert cancelled.wait(patience(30))
    raise AttachError("told not to")


def refuses(session: Path, tell: object, cancelled: object) -> None:
    raise AttachError("it is traced by strace", "end that first")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(way_in, "enter", made.enter)
    monkeypatch.setattr(way_in, "examine", made.examine)
    monkeypatch.setattr(found, "examine", made.examine)
    monkeypatch.setattr(way_in, "connect", made.connect)
    monkeypatch.setattr(found, "look", made.look)
    monkeypatch.setattr(way_in, "lives", lambda pid: pid not in made.dead)
    monkeypatch.setattr(found, "lives", lambda pid: pid not in made.dead)
    monkeypatch.setattr(found, "AGAIN", 0.05)
    monkeypatch.setattr(found, "YOUNG", 0.0)
    return made


@pytest.fixture
def attach() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(pid: int, job: bool = False) -> Watched:
        one = Watched(FoundProgram(pid, job=job))  # type: ignore[arg-type]
        made.append(one)
        return one

    yield make
    for one in made:
        one.debugger.close()


def said(one: Watched) -> str:
    return "\n".join(event.text for event in one.of(events.Notice))


def ready(one: Watched, processes: int) -> None:
    wait_until(lambda: len(one.debugger.processes) == processes, f"{processes} processes")


def test_one_process(world: World, attach: Callable[..., Watched]) -> None:
    world.ways[1000] = joins(0)
    one = attach(1000)
    one.debugger.start()
    ready(one, 1)
    one.wait(events.ProcessJoined)
    assert "attached to process 1000" in said(one) and "entered through a waiting thread in" in said(one)
    wait_until(lambda: world.released == [1000], "what was mapped is given back, once the agent is there")
    assert not one.debugger.entering
    world.dead.add(1000)
    world.agent(1000).gone()
    assert one.wait(events.Exited).status.status == 0, "its own status is not adbg's"
    assert "exit status is not known" in one.of(events.Exited)[0].status.reason


def test_it_runs_before_the_first_command(world: World, attach: Callable[..., Watched]) -> None:
    """It was found running: nothing about it has to be started."""
    world.ways[1000] = joins(0)
    one = attach(1000)
    one.debugger.start()
    ready(one, 1)
    assert execute(one.debugger, "info processes").value[0]["state"] == "running"
    with pytest.raises(NotStopped, match="the program is not stopped"):
        one.debugger.view.need_stop()
    with pytest.raises(CommandError, match="cannot restart it"):
        execute(one.debugger, "restart")


def test_a_connection_that_breaks_is_not_the_end_of_the_process(
    world: World, attach: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "ENDS", 0.1)
    world.ways[1000] = joins(0)
    one = attach(1000)
    one.debugger.start()
    ready(one, 1)
    world.agent(1000).gone()
    assert "runs on without the debugger" in one.wait(events.Exited).status.reason


def test_one_that_waits_can_be_given_up(world: World, attach: Callable[..., Watched]) -> None:
    world.ways[1000] = waits
    one = attach(1000)
    one.debugger.start()
    wait_until(lambda: any(row.queued for row in one.program.attachment.entering), "queued")
    (row,) = one.program.attachment.entering
    assert (row.pid, row.blocked) == (1000, "recvfrom") and one.debugger.entering
    assert Interrupts(one.debugger).press() == "giving up; the program runs on"
    with pytest.raises(Cancelled, match="runs on as before"):
        one.debugger.await_agent(0.1)
    folder = Path(one.program.folder)
    one.debugger.close()
    assert not folder.exists() and not world.agents


@pytest.mark.parametrize(
    ("way", "wanted"),
    [(refuses, "traced by strace"), (lambda *_: None, "ended while adbg was getting in")],
)
def test_one_that_cannot_be_entered(world: World, attach: Callable[..., Watched], way: Enter, wanted: str) -> None:
    """The second: the injector was through, and the process is gone before its agent said a word."""
    world.ways[1000] = way
    one = attach(1000)
    world.dead.add(1000)
    with pytest.raises(AdbgError, match=wanted):
        run_startup(one.debugger, lambda line, result: None)
    assert one.debugger.state is State.NEW


def test_what_the_process_itself_refuses(world: World, attach: Callable[..., Watched]) -> None:
    world.ways[1000] = lambda *_: None
    one = attach(1000)
    one.debugger.start()
    one.program._way.refused(Refused("", 1000, "another adbg session is there"))  # type: ignore[attr-defined]
    with pytest.raises(AttachError, match="another adbg session is there"):
        wait_until(lambda: one.debugger.await_agent(0.1), "a failure")


def test_no_rank_keeps_another_waiting(world: World, attach: Callable[..., Watched]) -> None:
    world.launcher = 900
    world.ways = {1000: joins(0), 1001: waits, 1002: refuses, 1003: joins(3)}
    one = attach(900, job=True)
    one.debugger.start()
    ready(one, 2)
    assert {process.info.pid for process in one.debugger.processes} == {1000, 1003}
    wait_until(lambda: "process 1002 of the job is not debugged" in said(one), "the refusal is told")
    assert "traced by strace" in said(one) and [row.pid for row in one.program.attachment.entering] == [1001]


def test_ranks_that_come_late_and_the_end_of_the_job(world: World, attach: Callable[..., Watched]) -> None:
    """A launcher starts a failed rank again; when it is gone, so is the job."""
    world.launcher = 900
    world.ways = {1000: joins(0)}
    one = attach(900, job=True)
    one.debugger.start()
    ready(one, 1)
    one.debugger.begin()
    world.dead.add(1000)
    world.agent(1000).gone()
    one.wait(events.ProcessLeft)
    assert one.debugger.state is State.RUNNING, "others may come"
    world.ways[1001] = joins(1)
    ready(one, 1)
    assert one.debugger.processes[0].info.pid == 1001
    world.dead |= {900, 1001}
    world.agent(1001).gone()
    assert "exit status is not known" in one.wait(events.Exited).status.reason


def test_a_launcher_that_outlives_its_ranks(world: World, attach: Callable[..., Watched]) -> None:
    """The job ends with it, not with the last connection."""
    world.launcher = 900
    world.ways = {1000: joins(0)}
    one = attach(900, job=True)
    one.debugger.start()
    ready(one, 1)
    world.dead.add(1000)
    world.agent(1000).gone()
    one.wait(events.ProcessLeft)
    assert not one.of(events.Exited)
    world.dead.add(900)
    assert "the job of process 900 ended" in one.wait(events.Exited).status.reason


def test_nothing_is_entered_after_detach(world: World, attach: Callable[..., Watched]) -> None:
    world.launcher = 900
    world.ways = {1000: joins(0), 1001: waits}
    one = attach(900, job=True)
    one.debugger.start()
    ready(one, 1)
    one.debugger.detach()
    wait_until(lambda: not one.program.attachment.entering, "the queued one is given up")
    world.ways[1002] = joins(2)
    one.program._watch.join(patience(5))  # type: ignore[attr-defined]
    assert 1002 not in world.agents and not one.program._watch.is_alive()  # type: ignore[attr-defined]


def test_a_stop_that_does_not_come_is_told(
    world: World, attach: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "QUIET", 0.2)
    world.ways[1000] = joins(0)
    one = attach(1000)
    one.debugger.start()
    ready(one, 1)
    agent = world.agent(1000)
    agent.do_pause = lambda arguments: protocol.Empty()  # type: ignore[attr-defined]
    agent.do_allThreads = lambda arguments: protocol.AllThreadsBody([])  # type: ignore[attr-defined]
    keyboard = Interrupts(one.debugger)
    one.debugger.begin()
    assert "any backward reaches" in keyboard.press()
    wait_until(lambda: "has reached no node" in said(one), "told")
    assert one.debugger.run.quiet and "where all" in said(one)


def test_ctrl_c_never_is_a_signal_to_a_program_that_was_found(
    world: World, attach: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(FoundProgram, "signal", lambda self, number: sent.append(number))
    world.ways[1000] = joins(0)
    one = attach(1000)
    one.debugger.start()
    ready(one, 1)
    world.agent(1000).do_pause = lambda arguments: protocol.Empty()  # type: ignore[attr-defined]
    one.debugger.begin()
    keyboard = Interrupts(one.debugger)
    for _ in range(5):
        keyboard.press()
    assert keyboard.prompt_wanted.is_set() and sent == []
    keyboard.forget()
    assert not keyboard.prompt_wanted.is_set()
