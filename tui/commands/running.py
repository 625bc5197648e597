"""Commands that run, step, stop or end the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone
from adbg.engine.protocol import messages as protocol
from adbg.tui.commands.breakpoints import named_spec
from adbg.tui.commands.table import CommandResult, command, count_of, need, no_argument

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

ENDS = 2.0  # seconds from the end of a connection to that of its program
STEP_TIMEOUT = 3600.0  # seconds one of several counted steps may take


def _background(argument: str) -> tuple[str, bool]:
    """A trailing ``&`` keeps the prompt while the program runs, as in gdb."""
    argument = argument.strip()
    return (argument[:-1].strip(), True) if argument.endswith("&") else (argument, False)


def _go(debugger: Debugger, arguments: Any, background: bool = False) -> CommandResult:
    """``arguments`` None: all that are stopped."""
    from adbg.tui.debugger.debugger import State

    try:
        if arguments is None:
            debugger.resume_all()
        else:
            debugger.resume(arguments)
    except DebuggeeGone:  # it continued and ended before its answer was read: its end is reported as an event
        if not debugger.model.wait_state(State.EXITED, State.DETACHED, timeout=ENDS):
            raise
    return CommandResult(running=True, background=background)


def _counted(debugger: Debugger, argument: str, arguments: Any) -> CommandResult:
    """``s 5``: five times, ending early at any stop that is not the end of a step."""
    from adbg.engine.types import StopReason
    from adbg.tui.debugger.debugger import State

    argument, background = _background(argument)
    for _ in range(count_of(argument) - 1):
        debugger.resume(arguments)
        if not debugger.model.wait_state(State.STOPPED, State.EXITED, State.DETACHED, timeout=STEP_TIMEOUT):
            raise AdbgError(f"the program did not stop within {STEP_TIMEOUT:g} s", "`pause` stops it at the next node")
        stop = debugger.stop
        if stop is None or stop.reason not in (StopReason.STEP, StopReason.ENTRY):
            return CommandResult(running=True)  # the front end reports the stop or the end
    return _go(debugger, arguments, background)


@command("run", "r", group="running", args="[&]")
def run(debugger: Debugger, argument: str) -> CommandResult:
    """Start the script and run to the first breakpoint.

    After the script has ended, `run` means `restart`.
    """
    from adbg.tui.debugger.debugger import State

    argument, background = _background(argument)
    no_argument(argument, "run")
    if debugger.state is State.STARTING and not debugger.run.begun:
        debugger.begin(False)
        return CommandResult(running=True, background=background)
    if debugger.state in (State.RUNNING, State.STOPPED):
        raise CommandError("the script is already running", "`continue` resumes it, `restart` starts it again")
    return restart(debugger, argument)


@command("restart", group="running", args="[&]")
def restart(debugger: Debugger, argument: str) -> CommandResult:
    """End the program and start it again, in a new run directory; breakpoints, displays and watches are kept."""
    argument, background = _background(argument)
    no_argument(argument, "restart")
    debugger.restart()
    debugger.model.wait_ready()
    debugger.begin(debugger.entry and not debugger.settings.breakpoints)
    return CommandResult("", running=True, background=background)


@command("continue", "c", group="running", args="[N | all] [&]", repeats=True)
def continue_(debugger: Debugger, argument: str) -> CommandResult:
    """Run to the next breakpoint.

    With N, the breakpoint that stopped here ignores its next N-1 hits. The ranks of a job go on together, once the
    stops of all were shown; with `set stop one`, and of processes that are no ranks, only the current one does.
    `continue all` resumes all stopped processes at once. With `&`, the prompt returns at once while the program runs.
    """
    argument, background = _background(argument)
    if argument == "all":
        return _go(debugger, None, background)
    count = count_of(argument)
    if count > 1:
        stop = debugger.view.need_stop()
        own = [id for id in stop.breakpoints if id > 0]  # an exception stops by a filter, which has no number
        if not own:
            raise CommandError(
                "this stop is not at a breakpoint: there is none to ignore", "`continue` without a count"
            )
        debugger.settings.change_breakpoint(own[0], ignore=count - 1)
    return _go(debugger, protocol.Continue(), background)


@command("step", "s", group="running", args="[N] [&]", repeats=True)
def step(debugger: Debugger, argument: str) -> CommandResult:
    """Run to the next node, entering a nested backward.

    With N, do so N times; a breakpoint or an error ends it early. Before the script has started, run to the
    beginning of the first backward.
    """
    return _counted(debugger, argument, protocol.StepIn())


@command("next", "n", group="running", args="[N] [&]", repeats=True)
def next_(debugger: Debugger, argument: str) -> CommandResult:
    """Run to the next node, stepping over nested backward calls.

    After the last node of a backward, it runs into the next backward.
    """
    return _counted(debugger, argument, protocol.Next())


@command("finish", "f", group="running", args="[&]", repeats=True)
def finish(debugger: Debugger, argument: str) -> CommandResult:
    """Run to the end of the enclosing custom Function (PyLayer) or nested backward, or else of this backward."""
    argument, background = _background(argument)
    no_argument(argument, "finish")
    return _go(debugger, protocol.StepOut(), background)


@command("until", "t", group="running", args="SPEC [&]", completes="spec", repeats=True)
def until(debugger: Debugger, argument: str) -> CommandResult:
    """Run to the next node that matches SPEC, which is as in `break`.

    It is an error if the current backward has no such node left; `tbreak SPEC` and `continue` wait for one in a nested
    or later backward.
    """
    argument, background = _background(argument)
    spec = named_spec(debugger, need(argument, "the node to run to", "until #120"))
    return _go(debugger, protocol.Until(spec), background)


@command("after", group="running", args="[&]", repeats=True)
def after(debugger: Debugger, argument: str) -> CommandResult:
    """Run the current node and stop after it, where its grad_inputs are known."""
    argument, background = _background(argument)
    no_argument(argument, "after")
    return _go(debugger, protocol.After(), background)


@command("pause", group="running")
def pause(debugger: Debugger, argument: str) -> CommandResult:
    """Stop the running program at the next node.

    Where none comes within 5 seconds, it is told what the main thread does instead.
    """
    no_argument(argument, "pause")
    debugger.pause()
    return CommandResult("pausing at the next node", running=True)


@command("interrupt", group="running")
def interrupt(debugger: Debugger, argument: str) -> CommandResult:
    """Send the program SIGINT, as Ctrl-C in its own terminal would."""
    no_argument(argument, "interrupt")
    debugger.interrupt()
    return CommandResult("sent SIGINT to the program")


@command("detach", group="running")
def detach(debugger: Debugger, argument: str) -> CommandResult:
    """Remove all hooks and let the program run without the debugger.

    After `adbg run`, adbg stays to forward the program's output and its exit status.
    """
    no_argument(argument, "detach")
    debugger.detach()
    return CommandResult("detached: the program continues without the debugger", running=debugger.program.launched)


@command("kill", group="running")
def kill(debugger: Debugger, argument: str) -> CommandResult:
    """End the program at once (SIGKILL)."""
    no_argument(argument, "kill")
    from adbg.tui.debugger.debugger import State

    debugger.kill()
    debugger.model.wait_state(State.EXITED, timeout=5)
    return CommandResult("killed the program", running=True)
