"""The command line: ``adbg run | attach | log | runs | profile | doctor``.

Only argparse is imported here; everything else comes with the subcommand that needs it (``adbg --help`` must cost
at most 150 ms over bare Python). Exit status: the script's; 2 usage; 125 adbg itself failed; 124 ``--timeout``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from adbg.engine.errors import AdbgError, CommandError

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger
    from adbg.tui.debugger.program import Program

USAGE = 2
FAILED = 125
INTERRUPTED = 130

# Options of `run` and `attach` that take a value: what follows them is not the script.
VALUED = {"-b", "--break", "-e", "--execute", "-x", "--command-file", "--run-dir", "--timeout", "--python"}


class Parser(argparse.ArgumentParser):
    """Errors as "adbg: what, why" with a hint, status 2."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(complain(CommandError(message, f"`{self.prog} --help` shows the options"), USAGE))


class Startup(argparse.Action):
    """``-b``, ``-e`` and ``-x`` in one list, in the order given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        items = list(getattr(namespace, "startup", None) or [])
        items.append((self.const, values))
        namespace.startup = items


def complain(error: AdbgError, status: int) -> int:
    """The one place where a command line's error is printed; returns ``status``."""
    print(f"adbg: {error}", file=sys.stderr)
    return status


# ------------------------------------------------------------------ the parser


def build_parser() -> Parser:
    from adbg import __version__

    parser = Parser(
        prog="adbg",
        description="A debugger for the backward pass: stop at any node of the graph, look, step, change, go on.",
        epilog="Start with `adbg run train.py`. `adbg COMMAND --help` says more about a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"adbg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    _add_run(commands)
    _add_attach(commands)
    _add_log(commands)
    _add_runs(commands)
    profile = commands.add_parser(
        "profile", help="a profile without a debugging session (not in this version)", add_help=False
    )
    profile.add_argument("rest", nargs=argparse.REMAINDER)
    doctor = commands.add_parser("doctor", help="what was found here, what works, what is missing and how to get it")
    doctor.add_argument("--json", action="store_true", help="the same as JSON")
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run a script (or -m MODULE, -c CODE, -- COMMAND) and stop in its backward",
        usage="adbg run [OPTIONS] SCRIPT [ARGS…] | -m MODULE [ARGS…] | -c CODE [ARGS…] | -- COMMAND…",
        description="Everything behind the script belongs to the script. It runs as `python SCRIPT ARGS` runs it.",
        allow_abbrev=False,
    )
    run.add_argument("-m", metavar="MODULE", dest="module", help="run a module, as `python -m MODULE`")
    run.add_argument("-c", metavar="CODE", dest="code", help="run code, as `python -c CODE`")
    run.add_argument(
        "--python", metavar="PATH", default="", help="the interpreter to run it with (default: adbg's own)"
    )
    _add_front_end(run)
    record = run.add_argument_group("recording")
    record.add_argument(
        "--run-dir", metavar="DIR", default="", help="record into DIR (default: a new one, see `adbg runs`)"
    )
    record.add_argument("--no-record", action="store_true", help="record nothing")


def _add_attach(commands: Any) -> None:
    attach = commands.add_parser(
        "attach",
        help="attach to a program that called adbg.listen()",
        usage="adbg attach [OPTIONS] PID",
        allow_abbrev=False,
    )
    attach.add_argument("pid", type=int, metavar="PID")
    _add_front_end(attach)


def _add_front_end(parser: argparse.ArgumentParser) -> None:
    front = parser.add_argument_group("front end").add_mutually_exclusive_group()
    front.add_argument(
        "--tui", dest="front", action="store_const", const="tui", help="the screen (default on a terminal)"
    )
    front.add_argument("--repl", dest="front", action="store_const", const="repl", help="a prompt, line by line")
    front.add_argument(
        "--batch", dest="front", action="store_const", const="batch", help="no prompt: -b, -e and -x, then on"
    )
    first = parser.add_argument_group("before you are asked, in the order given")
    first.add_argument(
        "-b", "--break", action=Startup, const="b", metavar="SPEC", help="set a breakpoint: Mm*, #12, m.py:16, nan"
    )
    first.add_argument("-e", "--execute", action=Startup, const="e", metavar="CMD", help="run a command")
    first.add_argument(
        "-x", "--command-file", action=Startup, const="x", metavar="FILE", help="run the commands of a file"
    )
    batch = parser.add_argument_group("batch mode")
    batch.add_argument("--json", action="store_true", help="JSON lines on stdout, and nothing else there")
    batch.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="end the program after SECONDS, with status 124"
    )
    batch.add_argument(
        "--strict", action="store_true", help="status 2 when a command was refused and the script itself ended with 0"
    )
    stacks = parser.add_argument_group("cost").add_mutually_exclusive_group()
    stacks.add_argument(
        "--stacks",
        action="store_true",
        default=None,
        help="keep forward stack and module path of every node (default for run)",
    )
    stacks.add_argument("--no-stacks", dest="stacks", action="store_false", help="do not (default for attach)")


def _add_log(commands: Any) -> None:
    log = commands.add_parser("log", help="view VLOG / GLOG files: folded, filtered, followed", allow_abbrev=False)
    log.add_argument("files", nargs="+", metavar="FILE")
    log.add_argument("--batch", action="store_true", help="print and end, also on a terminal")
    log.add_argument("--depth", type=int, metavar="N", help="fold what is nested deeper than N")
    log.add_argument("--level", type=int, metavar="N", help="records up to VLOG level N only")
    log.add_argument("--grep", metavar="REGEX", help="records that match only")
    log.add_argument("-f", "--follow", action="store_true", help="go on with what is appended (one file)")


def _add_runs(commands: Any) -> None:
    runs = commands.add_parser("runs", help="recorded runs: list, show one, delete old ones", allow_abbrev=False)
    runs.add_argument(
        "--root", metavar="DIR", help="where they are kept (default: $ADBG_RUNS or the user's state folder)"
    )
    actions = runs.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    listing = actions.add_parser("list", help="list them, newest first (default)")
    listing.add_argument("--all", action="store_true", help="not only the newest 25")
    show = actions.add_parser("show", help="one run: backward calls, stops, files")
    show.add_argument("name", metavar="NAME", help="its name, a unique prefix of it, or a path")
    delete = actions.add_parser("delete", help="delete runs")
    delete.add_argument("names", nargs="*", metavar="NAME")
    delete.add_argument("--older", type=float, metavar="DAYS", help="all runs that ended more than DAYS ago")
    delete.add_argument("--force", action="store_true", help="also one that is still being written")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected seconds, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def split_run(argv: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """(adbg's options, kind, [target, *args]) of the words behind ``adbg run``; kind "" when no target is there.

    The first word that is no option of adbg's is the script; from there on nothing is adbg's.
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
            if word in VALUED and words:
                options.append(words.pop(0))
        else:
            return options, "script", [word, *words]
    return options, "", []


# ------------------------------------------------------------------ subcommands


def main(argv: Sequence[str]) -> int:
    """Run adbg with the words behind its name; returns the exit status. Never raises."""
    try:
        return _main(list(argv))
    except AdbgError as error:
        return complain(error, USAGE if isinstance(error, CommandError) else FAILED)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:
        if os.environ.get("ADBG_TRACEBACK"):
            raise
        problem = AdbgError(
            f"adbg itself failed: {type(error).__name__}: {error}", "please report it; ADBG_TRACEBACK=1 shows where"
        )
        return complain(problem, FAILED)


def _main(argv: list[str]) -> int:
    parser = build_parser()
    if not argv:
        parser.print_help(sys.stderr)
        return USAGE
    if argv[0] == "run":
        return _run(parser, argv[1:])
    options = parser.parse_args(argv)
    if options.command == "attach":
        return _attach(options)
    if options.command == "log":
        from adbg.tui.cli.log import show_logs

        return show_logs(options)
    if options.command == "runs":
        from adbg.tui.cli.runs import show_runs

        return show_runs(options)
    if options.command == "doctor":
        from adbg.engine.launch.doctor import main as diagnose

        return diagnose(["--json"] if options.json else [])
    if options.command == "profile":
        raise CommandError(
            "no profiler is part of this version of adbg",
            "`python -m cProfile SCRIPT` or torch.profiler do it meanwhile",
        )
    parser.print_help(sys.stderr)
    return USAGE


def _run(parser: Parser, argv: list[str]) -> int:
    words, kind, target = split_run(argv)
    options = parser.parse_args(["run", *words])
    if not kind:
        missing = "a command is missing behind --" if "--" in argv else "the script is missing"
        raise CommandError(
            missing, "for example: adbg run train.py, adbg run -m package.train, adbg run -- torchrun train.py"
        )
    check_options(options)
    from adbg.engine.launch.command_line import is_interpreter, python_command
    from adbg.tui.debugger.program import Script, StartedProgram

    command = python_command(kind, target[0], target[1:], options.python)  # type: ignore[arg-type]
    front = choose_front_end(options)
    startup, required = startup_lines(options, front)
    script = Script(
        command=command,
        title=" ".join(target),
        name="code" if kind == "code" else target[0],
        mode="split" if front in ("batch", "pipe") else "pty",
        record=not options.no_record,
        run_dir=options.run_dir,
        stacks=options.stacks is not False,
        python=kind != "command" or is_interpreter(command[0]),
        size=terminal_size(),
    )
    return run_front_end(front, StartedProgram(script), options, startup, required, script.title)


def _attach(options: argparse.Namespace) -> int:
    check_options(options)
    from adbg.tui.debugger.program import FoundProgram

    program = FoundProgram(options.pid, options.stacks)
    program.check()
    front = choose_front_end(options)
    startup, required = startup_lines(options, front)
    return run_front_end(front, program, options, startup, required, f"process {options.pid}")


def check_options(options: argparse.Namespace) -> None:
    """Raises CommandError for options that do not go together."""
    if options.front != "batch":
        for name in ("json", "timeout"):
            if getattr(options, name):
                raise CommandError(f"--{name} belongs to --batch", f"adbg run --batch --{name} …")


def choose_front_end(options: argparse.Namespace) -> str:
    """ "tui", "repl", "batch", or "pipe": the commands of --repl come from stdin, where no terminal is.

    Raises:
        CommandError: no terminal for the screen.
    """
    front: str | None = options.front
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if front == "repl" and not terminal:
        return "pipe"
    if front in ("repl", "batch"):
        return front
    if not terminal:
        raise CommandError(
            "adbg's screen needs a terminal, and there is none here",
            "--batch runs without one (add -b SPEC -e CMD, --json for scripts); --repl reads commands from stdin",
        )
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise CommandError(
            f"adbg's screen cannot be drawn on TERM={os.environ.get('TERM', '')!r}",
            "--repl gives a prompt, --batch none",
        )
    return "tui"


def terminal_size() -> tuple[int, int]:
    """(rows, columns) of the terminal, 24 by 80 without one."""
    try:
        size = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    except (OSError, ValueError):
        return 24, 80
    return (size.lines, size.columns) if size.lines and size.columns else (24, 80)


def startup_lines(options: argparse.Namespace, front: str) -> tuple[list[str], frozenset[int]]:
    """The command lines of -b, -e and -x in order, and which of them are breakpoints of -b (a bad one is a usage
    error)."""
    from adbg.tui.commands.startup import join_blocks, lines_of_file

    lines: list[str] = []
    required = set()
    for kind, text in getattr(options, "startup", None) or []:
        if kind == "b":
            required.add(len(lines))
            lines.append(f"break {text}")
        elif kind == "x":
            lines += lines_of_file(text)
        else:
            lines.append(text)
    if front == "pipe":
        lines += join_blocks(sys.stdin.read().splitlines(), "standard input")
    return lines, frozenset(required)


def run_front_end(
    front: str, program: Program, options: argparse.Namespace, startup: list[str], required: frozenset[int], title: str
) -> int:
    """Make the debugger and hand it to the chosen front end."""
    from adbg.tui.debugger.debugger import Debugger

    # With a breakpoint given, the person waits for that one; without, for something to look at.
    entry = front in ("tui", "repl") and program.launched and not required
    debugger: Debugger = Debugger(program, startup, title, entry)
    if front in ("batch", "pipe"):
        from adbg.tui.batch.batch import Batch
        from adbg.tui.batch.writers import JsonWriter, TextWriter

        writer = JsonWriter() if options.json else TextWriter()
        return Batch(debugger, writer, options.timeout, required, options.strict).run()
    if front == "repl":
        from adbg.tui.repl.repl import run_repl

        return run_repl(debugger)
    from adbg.tui.app.run import run_app

    return run_app(debugger)
