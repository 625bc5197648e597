"""What every subcommand of ``adbg`` is made of. Imports argparse only: ``adbg --help`` reads all subcommands."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from adbg.engine.errors import AdbgError, CommandError

USAGE = 2  # exit status


class Subcommand(Protocol):
    """One subcommand. Its docstring is its help: the first line in ``adbg --help``, all of it in ``adbg NAME --help``.

    Modules of subcommands are imported for ``adbg --help``, so what is costly is imported inside ``run``.
    """

    @property
    def usage(self) -> str | None:
        """The usage line; None: as argparse makes it."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        """Do it with the words after the subcommand's name; returns the exit status."""


class Parser(argparse.ArgumentParser):
    """Prints errors as adbg does: one line with a hint, exit status 2."""

    def error(self, message: str) -> NoReturn:
        hint = f"`{self.prog} --help` shows the options"
        if found := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            options = [name for action in self._actions for name in action.option_strings]
            close = difflib.get_close_matches(found[1], options, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}? {hint}" if close else hint
        raise SystemExit(complain(CommandError(message, hint), USAGE))


def parser_of(name: str, command: Subcommand) -> Parser:
    parser = Parser(prog=f"adbg {name}", usage=command.usage, description=command.__doc__, allow_abbrev=False)
    command.prepare_parser(parser)
    return parser


def summary(command: Subcommand) -> str:
    """The first line of the help."""
    return (command.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def complain(error: AdbgError, status: int) -> int:
    """The one place where the command line prints an error; returns ``status``."""
    print(f"adbg: {error}", file=sys.stderr)
    return status
