"""``adbg attach``: debug a program that runs already."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from adbg.tui.cli.front_end import add_front_end, check_options, choose_front_end, run_front_end, startup_lines


class Attach:
    """Attach to a program that called adbg.listen()."""

    usage = "adbg attach [OPTIONS] PID"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", type=int, metavar="PID")
        add_front_end(parser)

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        options = parser.parse_args(words)
        check_options(options)
        from adbg.tui.debugger.program import FoundProgram

        program = FoundProgram(options.pid, options.stacks)
        program.check()
        front = choose_front_end(options)
        startup = startup_lines(options, front)
        return run_front_end(front, program, options, startup, f"process {options.pid}")
