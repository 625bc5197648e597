"""``why hang``: what is known of a rank whose connection is gone, and of one whose number is not known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.patience import patience
from support.program import wait_until
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.hang.values import HangKind, Life, RankFacts
from adbg.engine.protocol.messages import CollectivesBody, ProcessChanged, ProcessGroup, ProcessInfo
from adbg.engine.types import ExitStatus
from adbg.tui.commands import hang
from adbg.tui.debugger.job import look
from adbg.tui.debugger.process import Process

Make = Callable[..., Watched]
INFO = ProcessInfo(os.getpid(), 1, ["t.py"], "3.12", "/", "", [], host=os.uname().nodename)


class Peer:
    """Of a client: who is at the other end, and nothing else."""

    def __init__(self, peer: int) -> None:
        self.peer = peer


def gone(info: ProcessInfo, peer: int | None = None, main: bool = False) -> Process:
    client: Any = Peer(info.pid if peer is None else peer)
    model: Any = None
    process = Process(1, client, info, model)
    process.alive = False
    return process


def life(process: Process) -> Life:
    (facts,) = look.look_twice([process], 0.1)
    return facts.life


@pytest.fixture
def killed() -> Iterator[int]:
    """A process that was killed and that its parent has not asked for: a zombie still has its number."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.communicate(timeout=patience(10))


def info(**changes: Any) -> ProcessInfo:
    return ProcessInfo(**{**{name: getattr(INFO, name) for name in INFO.__slots__}, **changes})


def test_a_rank_died_only_where_its_process_is_known_to_be_gone(killed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "ENDS", 0.1, raising=False)
    assert life(gone(info(pid=killed))) is Life.DIED
    assert life(gone(info())) is Life.LOST  # it was let go, and runs
    assert life(gone(info(pid=killed, host="far-away"))) is Life.LOST  # its number means nothing here
    assert life(gone(info(pid=killed), peer=os.getpid())) is Life.LOST  # ssh carries it; the hosts share a name
    assert life(gone(info(pid=killed), peer=0)) is Life.LOST  # of a pid namespace of its own
    ended = gone(info(host="far-away"))
    ended.said_end = True
    assert life(ended) is Life.ENDED


def test_how_the_program_ended_is_told_of_the_process_that_was_started(killed: int) -> None:
    status = ExitStatus(signal=9)

    def how(status: ExitStatus, **changes: Any) -> list[str]:
        return [each.how for each in look.look_twice([gone(info(pid=killed, **changes))], 0.1, status)]

    assert how(status, main=True) == ["killed by SIGKILL"]
    assert how(ExitStatus(3), main=True) == ["exited with status 3"]
    assert how(ExitStatus(reason="its job ended"), main=True) == [""]
    assert how(status, main=False) == [""]  # torchrun's child: its status is torchrun's


def test_the_other_end_of_a_connection_is_known(watched: Make) -> None:
    one = watched()
    one.start()
    (process,) = one.debugger.processes
    assert process.client.peer == os.getpid() and not process.here  # the scripted agent says another number


def test_a_process_of_unknown_rank_is_not_taken_for_rank_0(watched: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(rank: int | None) -> Callable[[Any], CollectivesBody]:
        return lambda arguments: CollectivesBody(rank, 1000, 100.0, groups=[ProcessGroup("0", [0, 1], "gloo")])

    def prepare(agent: ScriptedAgent) -> None:
        agent.process = info(pid=1000 + agent.rank, rank=None if agent.rank == 0 else agent.rank - 1)
        agent.do_collectives = answer(agent.process.rank)  # type: ignore[attr-defined]

    one = watched(ranks=3, prepare=prepare)
    one.start()
    for agent in one.program.agents:  # its first word may have come before it was prepared
        agent.event(ProcessChanged(agent.process))
    wait_until(lambda: {each.info.rank for each in one.debugger.processes} == {None, 0, 1}, "their ranks")
    found: list[RankFacts] = []
    monkeypatch.setattr(look, "judge", lambda ranks: found.extend(ranks) or look.HangVerdict(HangKind.NOTHING))
    hang.verdict_of(one.debugger, 0.1)
    assert [each.rank for each in found] == [0, 1]
    assert [each.at is not None and each.at.rank for each in found] == [0, 1]
