"""``adbg profile``: run a script with a profiler on part of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from adbg.engine.errors import CommandError
from adbg.tui.cli.front_end import seconds
from adbg.tui.cli.run import split_run

# Options that take a value: what follows them is not the script.
VALUED = {
    *("--with", "--iterations", "--warmup", "--lines", "--pin", "--nice"),
    *("--run-dir", "--python", "--timeout", "-b", "--break"),
}


class Profile:
    """Run a script with a profiler on all of it, or on a few iterations; or show a saved profile.

    An iteration is from the end of one outermost backward call to the end of the next. What was measured lies in
    the run directory; `adbg doctor` lists the profilers.
    """

    usage = "adbg profile [OPTIONS] SCRIPT [ARGS…] | -m MODULE [ARGS…] | -c CODE [ARGS…] | FILE"

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
        region.add_argument("--warmup", type=_count, metavar="W", help="iterations before them (default: 1)")
        machine = parser.add_argument_group("the machine, meanwhile")
        machine.add_argument("--pin", metavar="CORES", default="", help="the script runs on these alone: 0, 0,2, 4-7")
        machine.add_argument("--nice", type=int, metavar="N", help="its priority, -20 (first) to 19")
        add("--run-dir", metavar="DIR", default="", help="record into DIR (default: a new one, see `adbg runs`)")
        add("--timeout", type=seconds, metavar="SECONDS", help="end the script after SECONDS, with exit status 124")
        add("--json", action="store_true", help="write JSON lines, and nothing else, to stdout")
        add("--open", action="store_true", help="show the report at the end")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        from adbg.tui.cli import profile_report

        if profile_report.file_of(words) is not None:
            return profile_report.run(profile_report.parser(parser.prog), words)
        own, kind, target = split_run(words, VALUED)
        options = parser.parse_args(own)
        if not kind:
            raise CommandError("the script is missing", "for example: adbg profile --iterations 10 train.py")
        line = command_line(options)
        from adbg.engine.launch.command_line import is_interpreter, python_command
        from adbg.tui.batch.batch import Batch
        from adbg.tui.batch.writers import JsonWriter, TextWriter
        from adbg.tui.commands.profile import parse
        from adbg.tui.debugger.debugger import Debugger
        from adbg.tui.debugger.program import Script, StartedProgram

        parse(line.split()[1:])  # a bad option is one before the script has run
        command = python_command(kind, target[0], target[1:], options.python)  # type: ignore[arg-type]
        script = Script(
            command=command,
            title=" ".join(target),
            name="code" if kind == "code" else target[0],
            mode="split",
            run_dir=options.run_dir,
            stacks=options.profiler in ("nodes", "node", "timer"),  # the others would measure these as well
            python=kind != "command" or is_interpreter(command[0]),
        )
        debugger = Debugger(StartedProgram(script), [line, "catch off"][:1], script.title, False)
        writer = JsonWriter(quiet=True) if options.json else TextWriter(quiet=True)
        return Batch(debugger, writer, options.timeout, frozenset({0})).run()


def command_line(options: argparse.Namespace) -> str:
    """The command ``profile`` of these options. Raises CommandError for some that exclude each other."""
    if options.warmup is not None and options.iterations is None:
        raise CommandError("--warmup goes with --iterations", "for example: --iterations 10 --warmup 3")
    words = ["profile", options.profiler]
    if options.iterations is not None:
        if options.iterations < 1:
            raise CommandError("expected at least 1 iteration", "for example: --iterations 10")
        words += [str(options.iterations), "iterations"]
        if options.warmup is not None:
            words += ["after", str(options.warmup)]
    elif options.backward:
        words.append("backward")
    elif options.lines:
        words.append(options.lines)
    else:
        words.append("run")
    if options.pin:
        words += ["pin", options.pin]
    if options.nice is not None:
        words += ["nice", str(options.nice)]
    return " ".join(words)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number of iterations, got {text!r}")
    return int(text)
