"""The model of all front ends: states, events, breakpoints in every process, several processes, restart, the end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.patience import patience
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import StopReason
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import State

Make = Callable[..., Watched]


def eventually(condition: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + patience(5)
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.005)


def test_a_run_without_breakpoints_goes_to_its_end(watched: Make) -> None:
    one = watched()
    assert one.debugger.state is State.NEW
    agent = one.start()
    assert one.debugger.state is State.STARTING and not agent.begun.is_set()
    one.debugger.begin()
    assert one.wait(events.Exited).status.code == 0
    assert one.debugger.state is State.EXITED and one.debugger.run.exit_code == 0
    assert [e.text for e in one.of(events.Output)] == ["done\n"]
    kinds = [type(e).__name__ for e in one.events]
    assert kinds.index("BackwardBegan") < kinds.index("BackwardEnded") < kinds.index("Exited")
    assert one.debugger.run.backwards_seen == 1


def test_a_breakpoint_set_before_the_start_stops(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    stop = one.debugger.stop
    assert stop is not None and stop.node is not None
    assert (stop.node.unique_name, stop.reason, stop.breakpoints) == ("ReluBackward0#1", StopReason.BREAKPOINT, (1,))
    assert one.wait(events.Stopped).stop is stop
    row = one.debugger.settings.breakpoint(1)
    assert (row.hits, row.matches, row.verified) == (1, 1, True)


def test_one_set_before_the_program_exists_is_sent_when_it_connects(watched: Make) -> None:
    one = watched()
    one.debugger.settings.add_breakpoint("Mm")
    agent = one.start()
    assert [b.name for b in agent.breakpoints] == ["Mm"]
    assert one.debugger.settings.breakpoint(1).matches == 2


def test_stepping_and_the_end(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    one.debugger.resume(protocol.StepIn())
    one.settle()
    assert one.debugger.stop is not None and one.debugger.stop.index == 3
    one.debugger.settings.remove_breakpoint(1)
    one.debugger.resume(protocol.Continue())
    one.settle(State.EXITED)
    with pytest.raises(NotStopped, match="has ended"):
        one.debugger.resume(protocol.Continue())


def test_stop_on_entry(watched: Make) -> None:
    one = watched(entry=True)
    one.start()
    one.debugger.begin()
    one.settle(State.STOPPED)
    assert one.debugger.stop is not None and one.debugger.stop.reason is StopReason.ENTRY


def test_a_step_before_the_start_runs_to_the_first_backward(watched: Make) -> None:
    one = watched()
    agent = one.start()
    one.debugger.resume(protocol.StepIn())
    one.settle(State.STOPPED)
    assert protocol.ConfigurationDone(True) in agent.requests
    assert protocol.StepIn() not in agent.requests


def test_while_it_runs_only_pause_goes(watched: Make) -> None:
    one = watched(prepare=lambda agent: setattr(agent, "on_begin", lambda: None))
    one.start()
    one.debugger.begin()
    with pytest.raises(NotStopped, match="is running"):
        one.debugger.resume(protocol.Continue())
    with pytest.raises(NotStopped):
        one.debugger.view.need_stop()
    one.debugger.pause()
    one.settle(State.STOPPED)
    assert one.debugger.stop is not None and one.debugger.stop.reason is StopReason.PAUSE
    with pytest.raises(CommandError, match="already stopped"):
        one.debugger.pause()


def test_a_refused_resume_leaves_the_stop_as_it_was(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    before = one.debugger.stop
    with pytest.raises(CommandError, match="cannot read the spec"):
        one.debugger.resume(protocol.Until("???"))
    assert one.debugger.stop is before and one.debugger.state is State.STOPPED
    assert not one.of(events.Resumed)


def test_a_stop_that_comes_before_the_answer_is_not_lost(watched: Make) -> None:
    """The agent's answer to a step and the stop after it may come in either order."""
    one = watched()
    agent = one.stop_at("Sum")

    def step(arguments: object) -> protocol.Empty:
        agent.stop_at(2)
        time.sleep(0.05)
        return protocol.Empty()

    agent.do_stepIn = step  # type: ignore[method-assign, assignment]
    one.debugger.resume(protocol.StepIn())
    assert one.debugger.state is State.STOPPED
    assert one.debugger.stop is not None and one.debugger.stop.index == 2


# ------------------------------------------------------------------ breakpoints


def test_a_bad_spec_is_refused_and_not_kept(watched: Make) -> None:
    one = watched()
    agent = one.start()
    with pytest.raises(CommandError, match="cannot read the spec"):
        one.debugger.settings.add_breakpoint("???")
    assert one.debugger.settings.breakpoints == () and agent.breakpoints == []
    assert one.debugger.settings.add_breakpoint("Mm").id == 1, "a refused one uses up no number"


def test_a_spec_without_a_match_is_kept_and_says_so(watched: Make) -> None:
    one = watched()
    one.start()
    row = one.debugger.settings.add_breakpoint("Conv")
    assert row.verified and row.matches == 0 and "closest" in row.message


def test_changes_reach_the_agent(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    one.debugger.settings.change_breakpoint(1, condition="index > 3", ignore=4)
    sent = agent.breakpoints[0]
    assert (sent.condition, sent.hitCondition) == ("index > 3", "6"), "the hit after one hit so far and four ignored"
    one.debugger.settings.change_breakpoint(1, condition="", ignore=0, enabled=False)
    sent = agent.breakpoints[0]
    assert (sent.condition, sent.hitCondition, sent.enabled) == ("", "", False)


def test_a_temporary_one_goes_away_when_the_agent_says_so(watched: Make) -> None:
    one = watched()
    agent = one.start()
    one.debugger.settings.add_breakpoint("Mm", temporary=True)
    agent.event(protocol.BreakpointChanged("removed", agent.state(agent.breakpoints[0])))
    eventually(lambda: one.debugger.settings.breakpoints == (), "it is still there")


def test_hits_begin_anew_with_a_restart_and_the_list_stays(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    one.debugger.settings.change_breakpoint(1, commands=("p 1 + 1",))
    one.debugger.restart()
    assert one.debugger.model.wait_ready(5)
    row = one.debugger.settings.breakpoint(1)
    assert (row.hits, row.commands) == (0, ("p 1 + 1",))
    assert one.program.starts == 2
    one.debugger.begin()
    one.settle(State.STOPPED)
    assert one.debugger.settings.breakpoint(1).hits == 1


def test_after_a_restart_nothing_of_the_old_program_is_heard(watched: Make) -> None:
    one = watched()
    old = one.stop_at("Mm")
    one.debugger.restart()
    assert one.debugger.model.wait_ready(5)
    seen = len(one.of(events.Stopped))
    old.event(protocol.Output("from the grave"))
    one.program.on_output("stdout", b"")
    assert one.debugger.state is State.STARTING and len(one.of(events.Stopped)) == seen


def test_a_spec_given_after_the_end_is_checked_at_the_next_start(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    one.debugger.kill()
    one.settle(State.EXITED)
    one.debugger.settings.add_breakpoint("???")
    one.debugger.start()
    assert one.debugger.model.wait_ready(5)
    one.wait(events.Notice)
    (notice,) = [event.text for event in one.of(events.Notice) if "removed" in event.text]
    assert notice.startswith("breakpoint 2 is removed: cannot read the spec")
    assert [row.spec for row in one.debugger.settings.breakpoints] == ["Mm"]


def test_after_the_end_nothing_is_merely_not_stopped(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    one.debugger.kill()
    one.settle(State.EXITED)
    with pytest.raises(NotStopped, match="the program has ended"):
        one.debugger.view.need_stop()


# ------------------------------------------------------------------ several processes


def test_breakpoints_are_in_every_process_and_hits_are_summed(watched: Make) -> None:
    one = watched(ranks=2)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    assert all([b.name for b in agent.breakpoints] == ["Relu"] for agent in one.program.agents)
    one.debugger.begin()
    one.wait(events.StopQueued)
    assert one.debugger.settings.breakpoint(1).hits == 2


def test_each_stop_is_shown_once_in_turn(watched: Make) -> None:
    one = watched(ranks=3)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.wait(events.StopQueued, 2)
    ranks = []
    for _ in range(3):
        assert one.debugger.current is not None
        ranks.append(one.debugger.current.rank)
        one.debugger.resume(protocol.Continue())
        one.settle(State.STOPPED, State.EXITED)
    assert sorted(ranks) == [0, 1, 2]
    one.settle(State.EXITED)


def test_continue_all_resumes_every_stopped_process(watched: Make) -> None:
    one = watched(ranks=3)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.wait(events.StopQueued, 2)
    others = [process.title for process in one.debugger.model.waiting]
    one.debugger.resume_all()
    one.wait(events.Exited)
    assert all(process.stop is None for process in one.debugger.run.processes)
    told = [event.text for event in one.of(events.Notice) if "not shown" in event.text]
    assert sorted(text.split(" goes on")[0] for text in told) == sorted(others), "a stop that nobody saw is told of"


def test_choosing_a_process_by_hand(watched: Make) -> None:
    one = watched(ranks=2)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.wait(events.StopQueued)
    first = one.debugger.current
    other = next(p for p in one.debugger.processes if p is not first)
    one.debugger.select_process(other.number)
    assert one.debugger.current is other and first is not None and first.stop is not None
    assert not one.debugger.model.waiting, "the first was seen: it stands until all go on"
    with pytest.raises(CommandError, match="no process 9"):
        one.debugger.select_process(9)


def test_each_process_has_a_view_of_its_own(watched: Make) -> None:
    """Any process can be asked, not only the current one; its frames and what is selected in it stay with it."""
    one = watched(ranks=2)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.wait(events.StopQueued)
    here, other = one.debugger.current, one.debugger.model.waiting[0]
    assert here is not None and one.debugger.view is here.view
    one.program.agents[other.rank].values["rank"] = "other"
    assert other.view.evaluate("rank").value == "other"
    with pytest.raises(CommandError, match="not defined"):
        here.view.evaluate("rank")
    other.view.select_frame(2)
    assert (here.view.frame, other.view.frame, one.debugger.view.frame) == (0, 2, 0)
    one.debugger.select_process(other.number)
    assert one.debugger.view is other.view and one.debugger.view.frame == 2
    one.debugger.select_process(here.number)
    one.debugger.resume(protocol.StepIn())
    one.settle(State.STOPPED)
    assert (here.view.frame, other.view.frame) == (0, 2), "its own resume forgets a selection, another's does not"


def test_without_a_process_the_view_says_why(watched: Make) -> None:
    one = watched()
    with pytest.raises(NotStopped, match="not started yet"):
        one.debugger.view.frames()
    one.start()
    one.debugger.begin()
    one.settle(State.EXITED)
    with pytest.raises(NotStopped, match="has ended"):
        one.debugger.view.frames()


def test_a_restart_begins_a_new_run(watched: Make) -> None:
    """What was seen of the earlier one does not count for the new one."""
    one = watched()
    one.stop_at("Relu")
    earlier = one.debugger.run
    assert earlier.number == 1 and earlier.ever_stopped and earlier.backwards_seen == 1
    one.debugger.restart()
    assert one.debugger.model.wait_ready(5)
    now = one.debugger.run
    assert now is not earlier and now.number == 2 and earlier.ended_by == "restart"
    assert not now.ever_stopped and not now.begun and now.exit_code is None and earlier.exit_code == 137


def test_a_stepped_process_is_waited_for_before_another_is_shown(watched: Make) -> None:
    one = watched(ranks=2)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.wait(events.StopQueued)
    first = one.debugger.current
    one.debugger.resume(protocol.StepIn())
    one.settle(State.STOPPED)
    assert one.debugger.current is first


def test_one_process_ends_while_another_stands(watched: Make) -> None:
    one = watched(ranks=2)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.wait(events.StopQueued)
    assert one.debugger.current is not None
    gone = one.debugger.current
    one.program.agents[gone.rank].gone()
    eventually(lambda: one.debugger.current is not gone, "the dead process stays current")
    assert one.debugger.state is State.STOPPED
    assert one.debugger.view.evaluate("1 + 1").value == 2


def test_a_process_that_joins_late_gets_everything(watched: Make) -> None:
    one = watched()
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.settings.set_vlog("5")
    one.debugger.settings.set_error_stops(False)
    one.debugger.begin()
    one.settle(State.STOPPED)
    late = ScriptedAgent(one.program._listener.config.socket, one.program.token, 1, False)
    assert late.begun.wait(5)
    kinds = [type(r).__name__ for r in late.requests]
    told = late.requests[: kinds.index("ConfigurationDone")]  # what it does is asked for afterwards
    assert kinds[0] == "Initialize"
    assert protocol.Vlog("5") in told and protocol.SetExceptionBreakpoints([]) in told
    assert [b.name for b in late.breakpoints] == ["Relu"]
    late.gone()


# ------------------------------------------------------------------ the end


def test_kill_and_what_is_left(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    one.debugger.kill()
    assert one.settle(State.EXITED) and one.debugger.run.exit_code == 137
    assert one.debugger.stop is None
    with pytest.raises(NotStopped, match="has ended"):
        one.debugger.view.evaluate("1 + 1")
    with pytest.raises(CommandError, match="no running program"):
        one.debugger.kill()


def test_detach_lets_it_run_on(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Relu")
    one.debugger.detach()
    assert one.debugger.state is State.DETACHED
    assert agent.requests[-1] == protocol.Disconnect()
    one.wait(events.Detached)
    with pytest.raises(NotStopped, match="detached"):
        one.debugger.resume(protocol.Continue())
    one.program.end(agent)
    assert one.wait(events.Exited).status.code == 0, "the end is still told"


def test_closing_ends_a_program_that_adbg_started(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    one.debugger.close()
    assert one.program.signals == [9]
    assert one.debugger.state is State.EXITED


def test_a_listener_that_fails_does_not_silence_the_others(watched: Make, capsys: pytest.CaptureFixture[str]) -> None:
    one = watched()

    told = []

    def broken(event: object) -> None:
        told.append(event)
        raise ValueError("mine")

    one.debugger.model.subscribe(broken)
    one.debugger.model.delivery._listeners.reverse()
    one.start()
    one.debugger.begin()
    one.wait(events.Exited)
    assert any(isinstance(event, events.Exited) for event in told), "it fails at each event, and gets the next"


def test_output_cut_inside_a_character_is_put_together(watched: Make) -> None:
    one = watched()
    one.start()
    data = "µ".encode()
    one.program.on_output("stdout", data[:1])
    one.program.on_output("stdout", data[1:])
    eventually(lambda: len(one.of(events.Output)) == 2, "output is missing")
    out = one.of(events.Output)
    assert "".join(e.text for e in out) == "µ" and b"".join(e.data for e in out) == data


def test_starting_twice_is_refused(watched: Make) -> None:
    one = watched()
    one.start()
    with pytest.raises(AdbgError, match="already running"):
        one.debugger.start()


# ------------------------------------------------------------------ looking


def test_frames_are_asked_once_per_stop(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    one.debugger.view.frames()
    one.debugger.view.frames()
    assert sum(isinstance(r, protocol.StackTrace) for r in agent.requests) == 1
    one.debugger.view.select_frame(2)
    assert one.debugger.view.frame_id() == 3
    one.debugger.view.evaluate("1 + 1")
    assert agent.requests[-1].frameId == 3
    with pytest.raises(CommandError, match="no frame 4 here: frames are 0 to 3"):
        one.debugger.view.select_frame(4)
    one.debugger.resume(protocol.StepIn())
    one.settle(State.STOPPED)
    assert one.debugger.view.frame_id() == 0
    one.debugger.view.frames()
    assert sum(isinstance(r, protocol.StackTrace) for r in agent.requests) == 2


def test_in_a_forward_frame_the_agent_decides_what_is_known(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    one.debugger.view.select_frame(1)
    one.debugger.view.evaluate("1 + 1")
    assert agent.requests[-1].frameId == 2, "not the innermost live frame, which may have an x of its own"
    line = one.debugger.view.source_line()
    assert line is not None and line.line == 40


@pytest.mark.parametrize(
    ("text", "index"),
    [("#3", 3), ("relu", 3), ("", 2), (".", 2)],
)
def test_finding_a_node(watched: Make, text: str, index: int) -> None:
    one = watched()
    one.stop_at("MmBackward0#2")
    assert one.debugger.view.find_node(text) == index
