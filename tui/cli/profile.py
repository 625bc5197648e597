"""``adbg profile``: run a script with a profiler on part of it, or show a saved profile (profile_report.py)."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.places import parse_lines
from adbg.tui.cli.front_end import seconds
from adbg.tui.cli.run import split_run, warn_of_own

if TYPE_CHECKING:
    from adbg.engine.protocol.messages import ProfileState
    from adbg.tui.attach.found import FoundProgram
    from adbg.tui.debugger.debugger import Debugger

ENTERS = 30.0  # seconds in which a process that runs has to let adbg in, where no --timeout is given
FAILED = 1  # nothing was measured of a process that runs

# Options that take a value: what follows them is not the script.
VALUED = {
    *("--with", "--pid", "--seconds", "--iterations", "--iteration-at", "--warmup", "--lines", "--pin", "--nice"),
    "--rank",
    *("--run-dir", "--python", "--timeout", "-b", "--break"),
}

_ALSO = {"--warmup": "--warmup 3", "--iteration-at": "--iteration-at train.py:41"}


class Profile:
    """Measure a script, or part of it, with a profiler; or show a profile: `adbg profile FILE`.

    An iteration is from the end of one outermost backward call to the end of the next; with --iteration-at, from one
    time that the line runs to the next (the first line of the loop's body, or of a function's). What was measured
    lies in the run directory; `adbg doctor` lists the profilers. FILE is a saved profile, of adbg or of another tool,
    or the folder of one: a flame graph, tables, the difference of two, on the whole screen or as text.
    """

    usage = "adbg profile [OPTIONS] SCRIPT [ARGS…] | -m MODULE [ARGS…] | -c CODE [ARGS…] | FILE [OPTIONS]"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = "`adbg profile FILE --help` shows the options of a report."
        add = parser.add_argument
        add("-m", metavar="MODULE", dest="module", help="run a module, as `python -m MODULE` does")
        add("-c", metavar="CODE", dest="code", help="run code, as `python -c CODE` does")
        add("--python", metavar="PATH", default="", help="the interpreter to use (default: the one adbg runs on)")
        add("--with", metavar="NAME", dest="profiler", default="cprofile", help="the profiler (default: cprofile)")
        region = parser.add_argument_group("what part (default: the whole run)")
        which = region.add_mutually_exclusive_group()
        which.add_argument("--iterations", type=_count, metavar="N", help="N iterations, then the script runs on")
        which.add_argument("--backward", action="store_true", help="the first backward call")
        which.add_argument("--lines", metavar="FILE:A-B", help="the first time that these lines run")
        region.add_argument(
            "--iteration-at", metavar="FILE:LINE", default="", help="an iteration begins each time this line runs"
        )
        region.add_argument("--warmup", type=_count, metavar="W", help="iterations before them (default: 1)")
        machine = parser.add_argument_group("the machine, meanwhile")
        machine.add_argument("--pin", metavar="CORES", default="", help="the script runs on these alone: 0, 0,2, 4-7")
        machine.add_argument("--nice", type=int, metavar="N", help="its priority, -20 (first) to 19")
        machine.add_argument("--pid", type=int, metavar="PID", help="a program that runs already, in place of SCRIPT")
        which.add_argument("--seconds", type=_count, metavar="S", help="S seconds from its start")
        add("--rank", metavar="N", default="0", help="of a job the rank that is profiled, or `all` (default: 0)")
        add("--run-dir", metavar="DIR", default="", help="record into DIR (default: a new one, see `adbg runs`)")
        add("--timeout", type=seconds, metavar="SECONDS", help="end the script after SECONDS, with exit status 124")
        add("--json", action="store_true", help="write JSON lines, and nothing else, to stdout")
        add("--open", action="store_true", help="show the report at the end: on the whole screen, in a pipe as text")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        from adbg.tui.cli import profile_report

        if profile_report.file_of(words, VALUED) is not None:
            return _report(words)
        own, kind, target = split_run(words, VALUED)
        if kind == "script" and target[1:2] in (["--help"], ["-h"]) and not os.path.exists(target[0]):
            return _report(["--help"])  # `adbg profile FILE --help`, as it stands
        options = parser.parse_args(own)
        line = command_line(options)
        if options.pid is not None and not kind:
            return _attached(options, line)
        if not kind:
            raise CommandError("the script is missing", "for example: adbg profile --iterations 10 train.py")
        from adbg.engine.launch.command_line import is_interpreter, python_command
        from adbg.profiles.registry import known
        from adbg.tui.batch.batch import Batch
        from adbg.tui.batch.writers import JsonWriter, TextWriter
        from adbg.tui.commands.profile import parse
        from adbg.tui.debugger.debugger import Debugger
        from adbg.tui.debugger.program import Script, StartedProgram

        parse(line.split()[1:])  # a bad option is one before the script has run
        _check_line(options.iteration_at or options.lines or "")
        if (
            kind == "script"
            and Path(target[0]).suffix not in ("", ".py", ".pyw", ".pyz")
            and not Path(target[0]).exists()
        ):
            raise CommandError(f"no such file: {target[0]}", "expected a script, or a saved profile")
        command = python_command(kind, target[0], target[1:], options.python)  # type: ignore[arg-type]
        script = Script(
            command=command,
            title=" ".join(target),
            name="code" if kind == "code" else target[0],
            mode="split",
            run_dir=options.run_dir,
            stacks=known(options.profiler) == "nodes",  # the others would measure these as well
            python=kind != "command" or is_interpreter(command[0]),
        )
        if kind == "script":
            warn_of_own(parser, target[1:], target[0])
        program = StartedProgram(script)
        debugger = Debugger(program, [line], script.title, False)
        debugger.incoming.profiles.ranks = _ranks(options.rank)
        writer = JsonWriter(quiet=True) if options.json else TextWriter(quiet=True)
        status = Batch(debugger, writer, options.timeout, frozenset({0})).run()
        if not options.json:
            if options.open:
                _open(program.run_dir)
            elif known(options.profiler) == "nodes":
                _judged(program.run_dir)
        return status


def _check_line(place: str) -> None:
    """Raises CommandError for a line that its file does not have: the script would run to its end for nothing."""
    if not place:
        return
    lines = parse_lines(place)
    try:
        count = len(Path(lines.file).read_bytes().splitlines())
    except OSError:  # of a module that is found by the end of its path
        return
    if lines.first > count:
        raise CommandError(f"{place}: {lines.file} has {count} lines", "name one that the script runs")


def _attached(options: argparse.Namespace, line: str) -> int:
    """A program that runs already. A profiler beside it needs nothing of it for some seconds: it may hang."""
    from adbg.profiles.registry import make
    from adbg.tui.attach.found import FoundProgram
    from adbg.tui.batch.batch import Batch
    from adbg.tui.batch.writers import JsonWriter, TextWriter
    from adbg.tui.debugger import events
    from adbg.tui.debugger.debugger import Debugger
    from adbg.tui.debugger.profiling.profiles import measure_beside

    profiler = make(options.profiler)
    if profiler.where == "outside" and options.seconds:
        can = profiler.available()
        if not can.ok:
            raise CommandError(can.why, can.hint)
        state = measure_beside(profiler, options.pid, options.seconds, options.run_dir)
        from adbg.tui.text.profile import state_text  # the messages cost 75 ms, and `adbg --help` comes by here

        print(state_text(state))
        _shown(state, options)
        return 0 if state.file else FAILED
    if not any((options.seconds, options.iterations, options.backward, options.lines)):
        raise CommandError("which part of the running program?", "for example: --seconds 10, or --iterations 10")
    from adbg.profiles.folders import parent_folder

    folder = parent_folder(os.path.abspath(options.run_dir) if options.run_dir else "")
    program = FoundProgram(options.pid, None, False)
    program.check()
    writer = JsonWriter(quiet=True) if options.json else TextWriter(quiet=True)
    debugger = Debugger(program, [f"{line} in {folder}"], program.title, False)
    last: list[ProfileState] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.ProfileChanged):
            last[:] = [event.state]

    debugger.model.subscribe(note)
    giving_up = threading.Timer(ENTERS, _give_up, (debugger, program))
    giving_up.daemon = True
    if options.timeout is None:
        giving_up.start()
    try:
        status = Batch(debugger, writer, options.timeout, strict=True).run()
    finally:
        giving_up.cancel()
    if last:
        _shown(last[0], options)
    return status or (0 if last and last[0].file else FAILED)


def _shown(state: ProfileState, options: argparse.Namespace) -> None:
    """The report, where --open asks for it."""
    if options.open and not options.json and state.file:
        sys.stdout.flush()
        _report([state.folder])


def _give_up(debugger: Debugger, program: FoundProgram) -> None:
    if debugger.entering:
        program.failure = CommandError(
            f"process {program.pid} did not let adbg in within {ENTERS:g} s (it hangs, or is in a long call of C) "
            "and runs on as before",
            f"py-spy needs nothing of it: adbg profile --with py-spy --seconds 10 --pid {program.pid}; "
            "--timeout SECONDS waits longer",
        )
        program.stop_entering()


def _report(words: Sequence[str]) -> int:
    from adbg.tui.cli import profile_report

    return profile_report.run(profile_report.parser("adbg profile"), words)


def _newest(run_dir: str) -> str:
    """The folder of the profile that was just made; "" where there is none, which was said."""
    from adbg.profiles.folders import order_of, parent_folder

    parent = parent_folder(run_dir)
    names = os.listdir(parent) if os.path.isdir(parent) else []
    newest = os.path.join(parent, max(names, key=order_of)) if names else ""
    return newest if newest and os.path.isdir(newest) and len(os.listdir(newest)) > 1 else ""


def _open(run_dir: str) -> None:
    """The report of it."""
    if newest := _newest(run_dir):
        sys.stdout.flush()
        _report([newest])


def _judged(run_dir: str) -> None:
    """What bounds the step, on stderr as the rest of what adbg says: stdout is the script's."""
    from adbg.profiles.report.formats import detect
    from adbg.tui.text.profile_report import iteration_lines, verdict_lines

    if newest := _newest(run_dir):
        read = detect.read(Path(newest))
        width = shutil.get_terminal_size((120, 24)).columns - len("adbg: ")
        for line in [*verdict_lines(read, width), *iteration_lines(read, width)]:
            print(f"adbg: {line}", file=sys.stderr)


def command_line(options: argparse.Namespace) -> str:
    """The command ``profile`` of these options. Raises CommandError for some that exclude each other."""
    for name, given in (("--warmup", options.warmup is not None), ("--iteration-at", bool(options.iteration_at))):
        if given and options.iterations is None:
            raise CommandError(f"{name} goes with --iterations", f"for example: --iterations 10 {_ALSO[name]}")
    words = ["profile", options.profiler]
    if options.iterations is not None:
        if options.iterations < 1:
            raise CommandError("expected at least 1 iteration", "for example: --iterations 10")
        words += [str(options.iterations), "iterations"]
        if options.iteration_at:
            words += ["of", options.iteration_at]
        if options.warmup is not None:
            words += ["after", str(options.warmup)]
    elif options.backward:
        words.append("backward")
    elif options.seconds is not None:
        words += [str(options.seconds), "seconds"]
    elif options.lines:
        words.append(options.lines)
    else:
        words.append("run")
    if options.pin:
        words += ["pin", options.pin]
    if options.nice is not None:
        words += ["nice", str(options.nice)]
    return " ".join(words)


def _ranks(text: str) -> frozenset[int] | None:
    if text == "all":
        return None
    if not text.isdigit():
        raise CommandError(f"expected the number of a rank, or all, got {text!r}", "for example: --rank 1")
    return frozenset((int(text),))


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number of iterations, got {text!r}")
    return int(text)
