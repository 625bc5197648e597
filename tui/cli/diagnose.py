"""``adbg diagnose``: run a script, or read a recorded run, and name the causes of what is wrong with its training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from adbg.engine.errors import CommandError
from adbg.tui.cli.front_end import seconds
from adbg.tui.cli.run import split_run, warn_of_own

VALUED = {"--iterations", "--only", "--run-dir", "--python", "--timeout"}
_OF_A_SCRIPT = ("python", "iterations", "deep", "run_dir", "timeout")  # options that a recorded run has no use for
_EXAMPLE = "for example: adbg diagnose train.py, adbg diagnose -m package.train, adbg diagnose -- torchrun train.py"


class Diagnose:
    """Run a script, and name the causes of what is wrong with its training: which line, which node, why.

    The script's results are the same as without adbg. RUN is a recorded run, by its folder or its name in `adbg runs`:
    what was found in it. The exit status is the script's own when that is not 0; else 1 where something is certainly
    wrong (a finding of severity error), else 0.
    """

    usage = "adbg diagnose [OPTIONS] SCRIPT [ARGS…] | -m MODULE [ARGS…] | -c CODE [ARGS…] | -- COMMAND… | RUN"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-m", metavar="MODULE", dest="module", help="run a module, as `python -m MODULE` does")
        add("-c", metavar="CODE", dest="code", help="run code, as `python -c CODE` does")
        add("--python", metavar="PATH", default="", help="the interpreter to use (default: the one adbg runs on)")
        add("--iterations", type=_count, metavar="N", default=0, help="watch N iterations, then the script runs on")
        add("--only", metavar="KIND,…", default="", help="look for these alone; docs/findings.md lists the kinds")
        add(
            "--deep",
            action="store_true",
            help="look closely in every iteration, and run the script twice: what differs",
        )
        add("--run-dir", metavar="DIR", default="", help="record into DIR (default: a new one, see `adbg runs`)")
        add("--timeout", type=seconds, metavar="SECONDS", help="end the script after SECONDS, with exit status 124")
        add("--json", action="store_true", help="write JSON lines, and nothing else, to stdout")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        own, kind, target = split_run(words, VALUED)
        options = parser.parse_args(own)
        if not kind:
            raise CommandError("the script is missing", _EXAMPLE)
        from adbg.tui.debugger.findings.kinds import check

        only = check([word.strip() for word in options.only.split(",") if word.strip()])
        if options.only and not only:
            raise CommandError(f"no kind in --only {options.only!r}", "for example: --only nonfinite,in-place")
        if kind == "script" and (folder := recorded(target)) is not None:
            if unused := [f"--{name.replace('_', '-')}" for name in _OF_A_SCRIPT if getattr(options, name)]:
                raise CommandError(
                    f"{folder.name} is a recorded run, which is read and not run", f"leave out {', '.join(unused)}"
                )
            return _of_run(folder, only, options.json)
        if kind == "script" and sys.stderr.isatty():  # else what the script writes there is all that is there
            warn_of_own(parser, target[1:], target[0])
        return _of_script(options, kind, target, only)


def _of_script(options: argparse.Namespace, kind: str, target: list[str], only: list[str]) -> int:
    from adbg.engine.launch.command_line import is_interpreter, python_command
    from adbg.engine.protocol.messages import Diagnose as Asked
    from adbg.tui.batch.diagnosed import DiagnosedBatch, run_again
    from adbg.tui.batch.writers import JsonWriter, TextWriter
    from adbg.tui.debugger.debugger import Debugger
    from adbg.tui.debugger.findings.kinds import REPEATED
    from adbg.tui.debugger.program import Script, StartedProgram

    command = python_command(kind, target[0], target[1:], options.python)  # type: ignore[arg-type]
    lines = ["record on"] if options.deep else []  # every node, which is what two runs are compared by

    def make(run_dir: str) -> Debugger:
        script = Script(
            command=command,
            title=" ".join(target),
            name="code" if kind == "code" else target[0],
            mode="split",
            run_dir=run_dir,
            python=kind != "command" or is_interpreter(command[0]),
        )
        return Debugger(StartedProgram(script), lines, script.title, False)

    debugger = make(options.run_dir)
    debugger.settings.diagnose(Asked("start", only, options.deep, options.iterations))
    debugger.settings.set_error_stops(False)  # an exception is told by its finding
    writer = JsonWriter(quiet=True) if options.json else TextWriter(quiet=True)
    if not options.json and sys.stderr.isatty():  # the first word may come half a minute later
        title = debugger.title
        print(f"adbg: watching {title}: what is found is told as it is certain, and listed at its end", file=sys.stderr)
    again = partial(run_again, make=make, timeout=options.timeout)
    twice = options.deep and (not only or REPEATED in only)
    return DiagnosedBatch(debugger, writer, options.timeout, again=again if twice else None).run()


def recorded(target: Sequence[str]) -> Path | None:
    """The run directory that the words name; None where they are a script with its arguments."""
    from adbg.engine.record.runs import find_run, is_run

    word = target[0]
    if len(target) > 1 or os.path.isfile(word):
        return None
    script = word.endswith((".py", ".pyz"))  # a run is named after its script: 20261122-1841-train.py
    if os.path.isdir(word):
        if os.path.exists(os.path.join(word, "__main__.py")):
            return None
        if is_run(word):
            return Path(word)
        raise CommandError(f"{word} is no run directory, and has no __main__.py to run", "`adbg runs` lists runs")
    try:
        return find_run(word)
    except CommandError as error:
        if script:
            return None
        raise CommandError(f"no such file, and {error.message}", error.hint) from None


def _of_run(folder: Path, only: list[str], as_json: bool) -> int:
    from adbg.tui.batch.diagnosed import FOUND
    from adbg.tui.batch.recorded import write_json, write_text
    from adbg.tui.debugger.findings.ranking import is_error
    from adbg.tui.debugger.findings.recorded import RecordedFindings

    found = RecordedFindings(folder, only)
    (write_json if as_json else write_text)(found)
    sys.stdout.flush()
    return FOUND if is_error(found.ranked()) else 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of iterations from 1, got {text!r}")
    return int(text)
