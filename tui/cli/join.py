"""``adbg join``: start a command on this host that belongs to a debugging session on another."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

from adbg.engine.errors import CommandError
from adbg.tui.cli.attach import process_number


class Join:
    """Have processes of this host join a session that runs on another: those of a command, or ones that run already.

    SESSION is a copy of that session's session.json (`adbg run --session DIR` puts it into DIR). They are reached
    through a unix socket that ssh forwards (`--via SOCKET`), or the port of `adbg run --listen`. docs/hosts.md has
    both, step by step.
    """

    usage = "adbg join [OPTIONS] SESSION -- COMMAND… | adbg join [OPTIONS] [--job] --pid PID SESSION"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("session", metavar="SESSION", help="a copy of session.json, or the folder that has it")
        parser.add_argument(
            "--via", metavar="SOCKET|HOST:PORT", default="", help="the way there (default: as session.json says)"
        )
        parser.add_argument("--pid", type=process_number, metavar="PID", help="a process that runs already")
        parser.add_argument("--job", action="store_true", help="PID is a launcher: all ranks below it")
        record = parser.add_mutually_exclusive_group()
        record.add_argument(
            "--run-dir", metavar="DIR", default="", help="record on this host into DIR (default: a new one)"
        )
        record.add_argument("--no-record", action="store_true", help="record nothing on this host")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        own, dashes, command = list(words), "--" in words, []
        if dashes:
            place = own.index("--")
            own, command = own[:place], own[place + 1 :]
        options = parser.parse_args(own)
        if options.pid is not None:
            if dashes:
                raise CommandError("--pid and a command exclude each other", "leave one of them out")
            from adbg.engine.launch.hosts.join import Joining
            from adbg.tui.attach.far import join_running

            return join_running(Joining(options.session, via=options.via), options.pid, options.job)
        if not command:
            raise CommandError(
                "the command after -- is missing", "for example: adbg join session.json -- torchrun --node-rank 1 …"
            )
        from adbg.engine.launch.hosts.join import Joining, join

        run_dir = str if options.no_record else partial(_run_dir, options.run_dir, command)
        return join(Joining(options.session, command, options.via, run_dir))


def _run_dir(chosen: str, command: Sequence[str]) -> str:
    """A run directory of this host: that of the session may not exist here."""
    from adbg.engine.record.runs import new_run_dir, prepare_run_dir

    made = prepare_run_dir(os.path.abspath(chosen)) if chosen else new_run_dir([os.path.basename(command[0])])
    print(f"adbg: processes of this host record into {made} on {os.uname().nodename}", file=sys.stderr)
    return str(made)
