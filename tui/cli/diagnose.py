"""``adbg diagnose``: run a script and name the causes of what is wrong with its training."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from adbg.engine.errors import CommandError
from adbg.engine.protocol.codec import to_json
from adbg.tui.cli.front_end import seconds
from adbg.tui.cli.run import split_run

VALUED = {"--iterations", "--only", "--run-dir", "--python", "--timeout"}


class Diagnose:
    """Run a script, and name the causes of what is wrong with its training.

    The script's results are the same as without adbg.
    """

    usage = "adbg diagnose [OPTIONS] SCRIPT [ARGS…] | -m MODULE [ARGS…] | -c CODE [ARGS…] | -- COMMAND… | RUN"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-m", metavar="MODULE", dest="module", help="run a module, as `python -m MODULE` does")
        add("-c", metavar="CODE", dest="code", help="run code, as `python -c CODE` does")
        add("--python", metavar="PATH", default="", help="the interpreter to use (default: the one adbg runs on)")
        add("--only", metavar="KIND,…", default="", help="look for these alone")
        add("--deep", action="store_true", help="look closely in every iteration")
        add("--run-dir", metavar="DIR", default="", help="record into DIR (default: a new one, see `adbg runs`)")
        add("--timeout", type=seconds, metavar="SECONDS", help="end the script after SECONDS, with exit status 124")
        add("--json", action="store_true", help="write JSON lines, and nothing else, to stdout")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        own, kind, target = split_run(words, VALUED)
        options = parser.parse_args(own)
        if not kind:
            raise CommandError("the script is missing", "for example: adbg diagnose train.py")
        from adbg.engine.launch.command_line import is_interpreter, python_command
        from adbg.tui.batch.batch import Batch
        from adbg.tui.batch.writers import JsonWriter, TextWriter
        from adbg.tui.debugger import events
        from adbg.tui.debugger.debugger import Debugger
        from adbg.tui.debugger.program import Script, StartedProgram

        command = python_command(kind, target[0], target[1:], options.python)  # type: ignore[arg-type]
        script = Script(
            command=command,
            title=" ".join(target),
            name="code" if kind == "code" else target[0],
            mode="split",
            run_dir=options.run_dir,
            python=kind != "command" or is_interpreter(command[0]),
        )
        line = "diagnose start" + (" deep" if options.deep else "") + (f" {options.only}" if options.only else "")
        debugger = Debugger(StartedProgram(script), [line], script.title, False)
        found = {}

        def note(event: events.Event) -> None:
            if isinstance(event, events.Found):
                found[event.process.number, event.finding.id] = event.finding
                shown = {"type": "finding", **to_json(event.finding)}
                print(json.dumps(shown) if options.json else shown, file=sys.stdout, flush=True)
            elif isinstance(event, events.DiagnosisEnded) and options.json:
                print(json.dumps({"type": "diagnosis", "examined": [dataclasses.asdict(e) for e in event.examined]}))

        debugger.model.subscribe(note)
        writer = JsonWriter(quiet=True) if options.json else TextWriter(quiet=True)
        status = Batch(debugger, writer, options.timeout, frozenset({0})).run()
        return status or int(any(each.severity == "error" for each in found.values()))
