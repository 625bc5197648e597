"""``adbg run``: start a program and debug it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from adbg.engine.errors import CommandError
from adbg.tui.cli.front_end import (
    add_front_end,
    add_hosts,
    check_hosts,
    check_options,
    choose_front_end,
    run_front_end,
    startup_lines,
)

# Options that take a value: what follows them is not the script.
VALUED = {
    *("-b", "--break", "-e", "--execute", "-x", "--command-file", "--fail-on"),
    *("--run-dir", "--timeout", "--python", "--record-limit", "--keep-gradients", "--session", "--listen"),
}


class Run:
    """Run a script (or -m MODULE, -c CODE, -- COMMAND) and stop in its backward pass.

    Everything after the script belongs to the script, which runs as `python SCRIPT ARGS` would run it.
    """

    usage = "adbg run [OPTIONS] SCRIPT [ARGS…] | -m MODULE [ARGS…] | -c CODE [ARGS…] | -- COMMAND…"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-m", metavar="MODULE", dest="module", help="run a module, as `python -m MODULE` does")
        add("-c", metavar="CODE", dest="code", help="run code, as `python -c CODE` does")
        add("--python", metavar="PATH", default="", help="the interpreter to use (default: the one adbg runs on)")
        add_front_end(parser)
        record = parser.add_argument_group("recording")
        record.add_argument(
            "--run-dir", metavar="DIR", default="", help="record into DIR (default: a new one, see `adbg runs`)"
        )
        record.add_argument(
            "--record-limit",
            type=_size,
            metavar="SIZE",
            help="keep at most SIZE of each process, the newest (500M, 4G, off; default: 2G)",
        )
        record.add_argument("--no-record", action="store_true", help="record nothing")

        add_hosts(parser)
        memory = parser.add_argument_group("memory")
        memory.add_argument(
            "--keep-gradients",
            type=_size,
            metavar="SIZE",
            help="of the last stops of a backward, keep copies of the gradients up to SIZE (off: none; default: 256M)",
        )

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        own, kind, target = split_run(words)
        options = parser.parse_args(own)
        if not kind:
            missing = "the command after -- is missing" if "--" in words else "the script is missing"
            raise CommandError(
                missing, "for example: adbg run train.py, adbg run -m package.train, adbg run -- torchrun train.py"
            )
        check_options(options)
        check_hosts(options)
        from adbg.engine.launch.command_line import is_interpreter, python_command
        from adbg.engine.protocol.rendezvous import KEEP
        from adbg.engine.record.budget import LIMIT
        from adbg.tui.debugger.program import Script, StartedProgram
        from adbg.tui.repl.passthrough import terminal_size

        command = python_command(kind, target[0], target[1:], options.python)  # type: ignore[arg-type]
        if kind == "script" and sys.stderr.isatty():  # else what the script writes there is all that is there
            warn_of_own(parser, target[1:], target[0])
        front = choose_front_end(options)
        startup = startup_lines(options, front)
        script = Script(
            command=command,
            title=" ".join(target),
            name="code" if kind == "code" else target[0],
            mode="split" if front in ("batch", "pipe") else "pty",
            record=not options.no_record,
            run_dir=options.run_dir,
            record_limit=LIMIT if options.record_limit is None else options.record_limit,
            keep_gradients=KEEP if options.keep_gradients is None else options.keep_gradients,
            stacks=options.stacks is not False,
            python=kind != "command" or is_interpreter(command[0]),
            size=terminal_size() or (24, 80),
            session=options.session,
            listen=options.listen,
        )
        return run_front_end(front, StartedProgram(script), options, startup, script.title)


def warn_of_own(parser: argparse.ArgumentParser, words: Sequence[str], script: str) -> None:
    """An option of adbg's behind the script goes to the script, which seldom was meant where its text has none such."""
    own = {name for action in parser._actions for name in action.option_strings} - {"-h", "--help", "-m", "-c"}
    meant = [name for word in words if (name := word.partition("=")[0]) in own]
    if not meant:
        return
    try:
        text = Path(script).read_text("utf-8", "replace")
    except OSError:  # said when it is started
        return
    for name in meant:
        if not re.search(rf"(?<![\w-]){name}(?![\w-])", text):
            told = f"{name} stands after {script} and belongs to it; adbg's options come first"
            print(f"adbg: warning: {told}: {parser.prog} {name} … {script}", file=sys.stderr)


def _size(text: str) -> int:
    from adbg.engine.record.budget import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a size of 1M or more, or off, got {text!r}") from None


def split_run(argv: Sequence[str], valued: Collection[str] = VALUED) -> tuple[list[str], str, list[str]]:
    """(adbg's options, kind, [target, *args]) of the words after ``adbg run``; kind "" when there is no target.

    The first word that is not an option of adbg is the script; everything from there on belongs to it.
    """
    options: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return options, "command" if words else "", words
        for flag, kind in (("-m", "module"), ("-c", "code")):
            if word == flag and words:
                return options, kind, words
            if word.startswith(flag) and len(word) > 2 and not word.startswith("--"):
                return options, kind, [word[2:], *words]
        if word.startswith("-") and word != "-":
            options.append(word)
            if word in valued and words:
                options.append(words.pop(0))
        else:
            return options, "script", [word, *words]
    return options, "", []
