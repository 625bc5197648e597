"""``adbg attach``: debug a program that runs already, whoever started it and however."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from adbg.engine.errors import AdbgError, CommandError
from adbg.tui.cli.front_end import (
    add_front_end,
    add_hosts,
    check_hosts,
    check_options,
    choose_front_end,
    run_front_end,
    startup_lines,
)
from adbg.tui.cli.subcommand import USAGE, complain

INTERRUPTED = 130


def process_number(word: str) -> int:
    """A process number above 0."""
    if not (word.isascii() and word.isdecimal()) or int(word) == 0:
        raise argparse.ArgumentTypeError(f"{word!r} must be the number of a process, as `ps` shows it")
    return int(word)


class Attach:
    """Attach to a running Python program that nobody prepared, or to a job of many ranks.

    Without PID, the Python processes of the user are listed, to pick one from. Leaving adbg, `detach` and whatever ends
    adbg leave the program running as it was.
    """

    usage = "adbg attach [OPTIONS] [--job] [PID]"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", type=process_number, nargs="?", metavar="PID")
        parser.add_argument(
            "--job",
            action="store_true",
            help="PID is a launcher (torchrun, accelerate, paddle.distributed.launch, mpirun, a shell) or one of its "
            "ranks: attach to all ranks",
        )
        add_front_end(parser, "then let go of the program")
        add_hosts(parser)

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        options = parser.parse_args(words)
        from adbg.engine.errors import AttachError
        from adbg.tui.attach.way_in import Cancelled

        try:
            return self._run(options)
        except Cancelled as error:
            return complain(error, INTERRUPTED)
        except AttachError as error:
            return complain(error, USAGE)

    def _run(self, options: argparse.Namespace) -> int:
        from adbg.engine.launch.hosts.openings import Openings
        from adbg.tui.attach.found import FoundProgram

        pid, job = options.pid, options.job
        if pid is None:
            chosen = self._choose(options)
            if chosen is None:
                return 0 if options.json else USAGE
            pid, job = chosen[0], job or chosen[1]
        check_options(options)
        check_hosts(options)
        program = FoundProgram(pid, options.stacks, job, Openings(options.session, options.listen))
        program.check()
        front = choose_front_end(options)
        startup = startup_lines(options, front)
        return run_front_end(front, program, options, startup, program.title)

    def _choose(self, options: argparse.Namespace) -> tuple[int, bool] | None:
        """(pid, whether it is a job's) that the user picked; None when they were only listed."""
        from adbg.tui.attach.picker import pick
        from adbg.tui.cli.attach_list import print_json, print_list

        if options.json:
            print_json()
            return None
        if options.front == "batch" or not (sys.stdin.isatty() and sys.stdout.isatty()):
            print_list()
            complain(CommandError("no PID was given", "adbg attach PID, or adbg attach --job PID for all ranks"), USAGE)
            return None
        picked = pick()
        if picked is None:
            raise AdbgError("no process was picked", "`adbg attach PID` names one")
        return picked
