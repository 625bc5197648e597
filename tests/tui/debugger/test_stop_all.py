"""Ranks stop together and go on together: what each agent is asked for, and what is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.patience import patience
from support.program import wait_until
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.errors import CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import ProcessInfo
from adbg.tui.commands.table import execute
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import State
from adbg.tui.debugger.job.ranks import Life

Make = Callable[..., Watched]
DAY = 86_400.0


def only_rank_0_works(agent: ScriptedAgent) -> None:
    """The others have no backward to run so far; asked to stop, they do at their first node."""
    if agent.rank:
        agent.on_begin = lambda: None
        agent.names = ("AddBackward0#1",) * 5


def stopped(watched: Make, ranks: int = 3, prepare: Callable[[ScriptedAgent], None] = only_rank_0_works) -> Watched:
    """Rank 0 stands at a breakpoint."""
    one = watched(ranks=ranks, prepare=prepare)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.settle(State.STOPPED)
    return one


def all_stand(one: Watched) -> bool:
    return all(process.stop is not None for process in one.debugger.processes)


def asked(agent: ScriptedAgent, kind: type[Any]) -> list[Any]:
    return [request for request in agent.requests if isinstance(request, kind)]


def test_the_others_are_held_and_are_no_stops_to_be_shown(watched: Make) -> None:
    one = stopped(watched)
    wait_until(lambda: all_stand(one), "the others stop too", 10)
    assert len(one.of(events.Stopped)) == 1 and not one.of(events.StopQueued) and not one.debugger.model.waiting
    assert [row.life for row in one.debugger.ranks.members()] == [Life.STOPPED] * 3
    one.debugger.resume(protocol.Continue())
    one.settle(State.EXITED)
    assert all(len(asked(agent, protocol.Continue)) == 1 for agent in one.program.agents), "all went on, with one word"


def test_a_breakpoint_on_the_way_is_shown_before_anybody_moves(watched: Make) -> None:
    one = stopped(watched, 2, lambda agent: None)
    one.wait(events.StopQueued)
    first = one.debugger.current
    one.debugger.resume(protocol.Continue())
    one.settle(State.STOPPED)
    assert one.debugger.current is not first and first is not None and first.stop is not None
    assert not any(asked(agent, protocol.Continue) for agent in one.program.agents), "nobody moved yet"
    one.debugger.resume(protocol.Continue())
    one.settle(State.EXITED)


def test_of_the_first_backwards_one_is_shown_and_the_others_are_held(watched: Make) -> None:
    one = watched(ranks=3)
    one.start()
    one.debugger.begin(True)
    one.settle(State.STOPPED)
    wait_until(lambda: all_stand(one), "the others stop too", 10)
    assert len(one.of(events.Stopped)) == 1 and not one.of(events.StopQueued) and not one.debugger.model.waiting
    one.debugger.resume(protocol.Continue())
    one.settle(State.EXITED)
    assert all(len(asked(agent, protocol.Continue)) == 1 for agent in one.program.agents)


def test_with_set_stop_one_the_others_go_on_from_their_first_backward(watched: Make) -> None:
    one = watched(ranks=2)
    one.start()
    execute(one.debugger, "set stop one")
    one.debugger.begin(True)
    one.settle(State.STOPPED)
    wait_until(lambda: any(agent.over for agent in one.program.agents), "the other one runs to its end", 10)
    assert len(one.of(events.Stopped)) == 1 and not one.of(events.StopQueued)


def test_a_stop_at_a_breakpoint_that_was_deleted_is_not_shown(watched: Make) -> None:
    one = stopped(watched, 2, lambda agent: None)
    one.wait(events.StopQueued)
    one.run("delete 1")
    one.debugger.resume(protocol.Continue())
    one.settle(State.EXITED)
    assert len(one.of(events.Stopped)) == 1
    assert all(len(asked(agent, protocol.Continue)) == 1 for agent in one.program.agents)


def test_set_stop_one_leaves_the_others_alone(watched: Make) -> None:
    one = watched(ranks=2, prepare=only_rank_0_works)
    one.start()
    assert execute(one.debugger, "set stop one").value == "one"
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.settle(State.STOPPED)
    execute(one.debugger, "info ranks")  # an answer that comes after what would have been sent
    assert not asked(one.program.agents[1], protocol.Pause)
    for line in ("set stop", "set stop all"):
        assert execute(one.debugger, line).value == ("all" if line.endswith("all") else "one")
    with pytest.raises(CommandError, match="expected `all` or `one`"):
        execute(one.debugger, "set stop some")


def test_a_rank_that_waits_elsewhere_is_let_go_without_having_stopped(watched: Make) -> None:
    def busy(agent: ScriptedAgent) -> None:
        only_rank_0_works(agent)
        agent.pause = lambda: None  # type: ignore[method-assign]

    one = stopped(watched, 2, busy)
    other = one.program.agents[1]
    wait_until(lambda: asked(other, protocol.Pause), "it is asked to stop", 10)
    assert [row.stopping for row in one.debugger.ranks.members()] == [False, True]
    one.debugger.resume(protocol.Continue())
    wait_until(lambda: [r.on for r in asked(other, protocol.Pause)] == [True, False], "and not to", 10)
    assert not asked(other, protocol.Continue)


def test_a_stop_that_was_on_its_way_goes_on_by_itself(watched: Make) -> None:
    def late(agent: ScriptedAgent) -> None:
        only_rank_0_works(agent)
        pause = agent.pause

        def crossed() -> None:
            if not agent.pausing:  # taken back: the stop was announced before that was read
                agent.pausing = True
                pause()

        agent.pause = crossed  # type: ignore[method-assign]

    one = stopped(watched, 2, late)
    other = one.program.agents[1]
    wait_until(lambda: asked(other, protocol.Pause), "it is asked to stop", 10)
    one.debugger.resume(protocol.Continue())
    one.settle(State.EXITED)
    assert len(asked(other, protocol.Continue)) == 1 and len(one.of(events.Stopped)) == 1


def test_a_step_moves_one_rank_and_rank_all_moves_all(watched: Make) -> None:
    one = stopped(watched)
    wait_until(lambda: all_stand(one), "the others stop too", 10)
    shown = one.debugger.current
    execute(one.debugger, "step")
    one.settle(State.STOPPED)
    assert [len(asked(agent, protocol.StepIn)) for agent in one.program.agents] == [1, 0, 0]
    result = execute(one.debugger, "rank all step")
    assert result.running
    one.settle(State.STOPPED)
    wait_until(lambda: all_stand(one), "all have stepped", 10)
    assert [len(asked(agent, protocol.StepIn)) for agent in one.program.agents] == [2, 1, 1]
    assert one.debugger.current is shown and not one.of(events.StopQueued), "the same one is shown"
    result = execute(one.debugger, "rank 1-2 step")
    assert not result.running and [row["stopped"] for row in result.value] == [True, True]
    assert one.debugger.current is shown and one.debugger.stop is not None


def test_the_one_that_is_shown_is_killed(watched: Make) -> None:
    """Its row changes, and somebody who stands is shown."""
    one = stopped(watched)
    wait_until(lambda: all_stand(one), "the others stop too", 10)
    one.program.agents[0].gone()
    one.wait(events.Stopped, 2)
    assert one.debugger.current is not None and one.debugger.current.rank in (1, 2), "whoever joined first"
    assert [row.life for row in one.debugger.ranks.members()] == [Life.LOST, Life.STOPPED, Life.STOPPED]
    with pytest.raises(CommandError, match="rank 0 has ended"):
        execute(one.debugger, "rank 0 p index")


def test_one_that_is_held_is_killed(watched: Make) -> None:
    one = stopped(watched)
    wait_until(lambda: all_stand(one), "the others stop too", 10)
    one.program.agents[2].gone()
    one.wait(events.ProcessLeft)
    assert one.debugger.state is State.STOPPED and one.debugger.stop is not None
    assert [row.life for row in one.debugger.ranks.members()] == [Life.STOPPED, Life.STOPPED, Life.LOST]


def newcomer(one: Watched, rank: int, **facts: Any) -> ScriptedAgent:
    listener = one.program._listener
    return ScriptedAgent(listener.config.socket, listener.token, rank, False, ("AddBackward0#1",) * 5, **facts)


def test_a_rank_that_comes_late_is_held_too(watched: Make) -> None:
    one = stopped(watched, 2)
    wait_until(lambda: all_stand(one), "the other stops too: nobody else is to be held any more", 10)
    late = newcomer(one, 2)
    wait_until(lambda: 2 in one.debugger.ranks.processes(), "it joins", 10)
    wait_until(lambda: asked(late, protocol.Pause), "it is asked to stop", 10)
    assert DAY in [r.seconds for r in asked(late, protocol.GroupTimeouts)]
    late.gone()


def test_workers_and_launchers_are_no_ranks(watched: Make) -> None:
    one = watched(ranks=2, prepare=only_rank_0_works)
    one.start()
    process = one.debugger.processes[0]
    rank, pid = process.rank, process.info.pid
    process.info = ProcessInfo(pid, rank, [], "", "", "", parent=1)
    agent = newcomer(one, rank, info=ProcessInfo(4711, rank, [], "", "", "", main=False, parent=pid))
    wait_until(lambda: len(one.debugger.processes) == 3, "the worker joins", 10)
    worker = one.debugger.processes[-1]
    assert one.debugger.ranks.of(worker) is None and one.debugger.ranks.processes()[rank] is process
    one.program.agents[rank].gone()
    wait_until(lambda: not process.alive, "the rank ends", 10)
    assert one.debugger.ranks.processes()[rank] is process, "a worker that outlives its rank does not become it"
    again = newcomer(one, rank, info=ProcessInfo(4712, rank, [], "", "", "", main=False, parent=1))
    wait_until(lambda: rank in one.debugger.ranks.connected(), "the launcher starts it again", 10)
    assert one.debugger.ranks.processes()[rank].info.pid == 4712
    launcher = newcomer(one, 9, info=ProcessInfo(4713, None, [], "", "", "", main=False, parent=1))
    wait_until(lambda: len(one.debugger.processes) == 4, "the launcher joins", 10)
    assert 9 not in one.debugger.ranks.processes()
    for each in (agent, again, launcher):
        each.gone()


def test_time_outs_are_held_while_a_rank_stands_or_may(watched: Make) -> None:
    """From the moment a breakpoint is set: what the others wait in when the stop comes began before it."""
    one = watched(ranks=2, prepare=only_rank_0_works)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    for agent in one.program.agents:
        kinds = [type(request) for request in agent.requests]
        assert kinds.index(protocol.GroupTimeouts) < len(kinds) - 1, "before the breakpoint itself"
    one.debugger.begin()
    one.settle(State.STOPPED)
    wait_until(lambda: all_stand(one), "the other stops too", 10)
    agents = one.program.agents
    one.debugger.resume(protocol.StepIn())
    one.settle(State.STOPPED)
    assert [[r.seconds for r in asked(agent, protocol.GroupTimeouts)] for agent in agents] == [[DAY]] * 2
    execute(one.debugger, "set group-timeout 90")
    execute(one.debugger, "delete")
    assert [[r.seconds for r in asked(agent, protocol.GroupTimeouts)] for agent in agents] == [[DAY]] * 2, "it stands"
    one.debugger.resume(protocol.Continue())
    one.settle(State.EXITED)
    assert [r.seconds for r in asked(agents[0], protocol.GroupTimeouts)] == [DAY, 90.0], "the other had ended by then"


def test_time_outs_are_kept(watched: Make) -> None:
    one = watched(ranks=2, prepare=only_rank_0_works)
    one.start()
    execute(one.debugger, "set group-timeout keep")
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    wait_until(lambda: all_stand(one), "both stand", patience(10))
    assert not any(asked(agent, protocol.GroupTimeouts) for agent in one.program.agents)
    with pytest.raises(CommandError, match="expected `hold`, `keep` or seconds"):
        execute(one.debugger, "set group-timeout soon")


def test_continue_lets_the_held_go_while_the_shown_one_runs(watched: Make) -> None:
    """A stepped rank may wait in a collective for those that are held."""
    one = stopped(watched, 2)
    wait_until(lambda: all_stand(one), "the other stops too", 10)
    one.program.agents[0].silent.add("next")
    one.program.agents[0].do_stepIn = lambda arguments: protocol.Empty()  # type: ignore[method-assign]
    one.debugger.resume(protocol.StepIn())
    assert one.debugger.state is State.RUNNING
    one.debugger.resume(protocol.Continue())
    wait_until(lambda: asked(one.program.agents[1], protocol.Continue), "the held one goes on", 10)
    with pytest.raises(NotStopped, match="is running"):
        one.debugger.resume(protocol.Continue())
