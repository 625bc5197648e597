"""What ``adbg run`` and ``adbg attach`` have in common: the options of the front ends, and starting the chosen one."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from adbg.engine.errors import CommandError

if TYPE_CHECKING:
    from adbg.tui.debugger.program import Program


def add_front_end(parser: argparse.ArgumentParser, then: str = "then the program to its end") -> None:
    """``then``: what batch mode does once the commands are used up."""
    front = parser.add_argument_group("front end").add_mutually_exclusive_group()
    for name, text in (
        ("tui", "full screen (default on a terminal)"),
        ("repl", "a prompt"),
        ("batch", f"no prompt: run -b, -e and -x, {then}"),
    ):
        front.add_argument(f"--{name}", dest="front", action="store_const", const=name, help=text)
    first = parser.add_argument_group("commands to run first, in the order given")
    for short, name, metavar, text in (
        ("-b", "--break", "SPEC", "set a breakpoint: Mm*, #12, m.py:16, nan"),
        ("-e", "--execute", "CMD", "run a command"),
        ("-x", "--command-file", "FILE", "run the commands of a file"),
    ):
        kind = partial(_startup, short)  # all three into one list: their order counts
        first.add_argument(short, name, dest="startup", action="append", type=kind, metavar=metavar, help=text)
    batch = parser.add_argument_group("batch mode")
    batch.add_argument("--json", action="store_true", help="write JSON lines, and nothing else, to stdout")
    batch.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="end the program after SECONDS, or let go of one that was attached to, with exit status 124",
    )
    batch.add_argument(
        "--strict",
        action="store_true",
        help="exit status 2 when a command failed or a -b matched nothing, and the script itself ended with 0",
    )
    first.add_argument(
        "--fail-on",
        dest="startup",
        action="append",
        type=partial(_startup, "--fail-on"),
        metavar="SPEC",
        help="batch mode: a breakpoint as of -b; exit status 3 when it was hit",
    )
    batch.add_argument(
        "--quiet",
        action="store_true",
        help="print answers, warnings and errors: no reports of stops and calls",
    )
    stacks = parser.add_argument_group("cost").add_mutually_exclusive_group()
    stacks.add_argument(
        "--stacks",
        action="store_true",
        default=None,
        help="keep the forward stack and module path of every node (default for run)",
    )
    stacks.add_argument(
        "--no-stacks", dest="stacks", action="store_false", help="do not keep them (default for attach)"
    )


def _startup(option: str, text: str) -> tuple[str, str]:
    return option, text


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected seconds, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def check_options(options: argparse.Namespace) -> None:
    """Raises CommandError for options that exclude each other."""
    if options.front != "batch":
        given = {name for name in ("json", "timeout", "quiet") if getattr(options, name)}
        given |= {"fail-on" for option, _ in options.startup or [] if option == "--fail-on"}
        for name in sorted(given):
            raise CommandError(f"--{name} works with --batch only", f"adbg run --batch --{name} …")


def add_hosts(parser: argparse.ArgumentParser) -> None:
    hosts = parser.add_argument_group("processes on other hosts (docs/hosts.md)")
    hosts.add_argument(
        "--session",
        metavar="DIR",
        default="",
        help="keep the session's socket and session.json in DIR, for `adbg join`",
    )
    hosts.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="",
        help="open that TCP port for `adbg join` (TLS and the session's token; default: no port)",
    )


def check_hosts(options: argparse.Namespace) -> None:
    """Raises CommandError for an address that is none."""
    if options.listen:
        from adbg.engine.launch.hosts.tunnel import parse_address

        parse_address(options.listen)


def choose_front_end(options: argparse.Namespace) -> str:
    """ "tui", "repl", "batch", or "pipe": the commands of --repl come from stdin, which is not a terminal.

    Raises:
        CommandError: the full screen needs a terminal.
    """
    front: str | None = options.front
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if front == "repl" and not terminal:
        return "pipe"
    if front in ("repl", "batch"):
        return front
    if not terminal:
        raise CommandError(
            "the full screen needs a terminal, and there is none",
            "use --batch (with -b SPEC, -e CMD; --json for scripts), or --repl to read commands from stdin",
        )
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise CommandError(
            f"the full screen does not work with TERM={os.environ.get('TERM', '')!r}",
            "use --repl or --batch",
        )
    return "tui"


class Startup(NamedTuple):
    """The command lines of -b, --fail-on, -e and -x in order. ``required``: places of those that set a breakpoint (a
    bad one is a usage error); ``failing``: of those from --fail-on."""

    lines: list[str]
    required: frozenset[int] = frozenset()
    failing: frozenset[int] = frozenset()


def startup_lines(options: argparse.Namespace, front: str) -> Startup:
    """What is to be run first, from the options and for "pipe" from stdin."""
    from adbg.tui.commands.startup import join_blocks, lines_of_file

    lines: list[str] = []
    required, failing = set(), set()
    for option, text in options.startup or []:
        if option in ("-b", "--fail-on"):
            required.add(len(lines))
            if option == "--fail-on":
                failing.add(len(lines))
            lines.append(f"break {text}")
        elif option == "-x":
            lines += lines_of_file(text)
        else:
            lines.append(text)
    if front == "pipe":
        lines += join_blocks(sys.stdin.read().splitlines(), "standard input")
    return Startup(lines, frozenset(required), frozenset(failing))


def run_front_end(front: str, program: Program, options: argparse.Namespace, startup: Startup, title: str) -> int:
    """Make the debugger and hand it to the chosen front end."""
    from adbg.tui.debugger.debugger import Debugger

    # With a breakpoint given, the user waits for that one; without, for something to look at.
    entry = front in ("tui", "repl") and program.launched and not startup.required
    debugger = Debugger(program, startup.lines, title, entry)
    if front in ("batch", "pipe"):
        from adbg.tui.batch.batch import Batch
        from adbg.tui.batch.writers import JsonWriter, TextWriter

        writer = JsonWriter(quiet=options.quiet) if options.json else TextWriter(quiet=options.quiet)
        return Batch(debugger, writer, options.timeout, startup.required, options.strict, startup.failing).run()
    if front == "repl":
        from adbg.tui.repl.repl import run_repl

        return run_repl(debugger)
    from adbg.tui.app.run import run_app

    return run_app(debugger)
