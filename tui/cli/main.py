"""The command line: ``adbg SUBCOMMAND …``. A subcommand is a class in a module of its own and a row of ``SUBCOMMANDS``.

Exit status: the script's; 2 usage; 125 adbg itself failed; 124 ``--timeout``; 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from adbg.engine.errors import AdbgError, CommandError
from adbg.tui.cli.attach import Attach
from adbg.tui.cli.diagnose import Diagnose
from adbg.tui.cli.doctor import Doctor
from adbg.tui.cli.join import Join
from adbg.tui.cli.log import Log
from adbg.tui.cli.profile import Profile
from adbg.tui.cli.run import Run
from adbg.tui.cli.runs import Runs
from adbg.tui.cli.subcommand import USAGE, Parser, Subcommand, complain, parser_of, summary

FAILED = 125
INTERRUPTED = 130
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what a file or a device says that takes no more

SUBCOMMANDS: dict[str, Subcommand] = {
    "run": Run(),
    "attach": Attach(),
    "join": Join(),
    "log": Log(),
    "runs": Runs(),
    "profile": Profile(),
    "diagnose": Diagnose(),
    "doctor": Doctor(),
}


def main(argv: Sequence[str]) -> int:
    """Run adbg with the words after its name; returns the exit status. Never raises."""
    _open_standard_streams()
    status = _guarded(list(argv))
    reason = _stdout_trouble()  # at its end Python would write what waits, and fail with words of its own
    if reason and status == 0:
        return complain(AdbgError(f"cannot write to standard output: {reason}"), FAILED)
    return status


def _guarded(argv: list[str]) -> int:
    try:
        return _main(argv)
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
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
            _stdout_trouble()
            return complain(AdbgError(f"cannot write to standard output: {error.strerror}"), FAILED)
        if os.environ.get("ADBG_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("adbg"):
            from adbg.engine.launch.launch import install_command

            return complain(AdbgError(f"{error.name} is not installed", f"install it with {install_command()}"), FAILED)
        problem = AdbgError(
            f"adbg itself failed: {type(error).__name__}: {error}", "please report it; ADBG_TRACEBACK=1 shows where"
        )
        return complain(problem, FAILED)


def _open_standard_streams() -> None:
    """Where the shell closed one (``>&-``) it is /dev/null: a socket would get its number, Python has None for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  for the life of the process, as the others
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _stdout_trouble() -> str:
    """Why standard output cannot be written, "" where it can; what waits for it is dropped then."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return error.strerror or str(error)
    except ValueError:  # closed
        pass
    return ""


def _main(argv: list[str]) -> int:
    if argv[:1] == ["help"] and len(argv) <= 2:  # a word that everybody tries
        argv = [*argv[1:], "--help"]
    name, words = argv[0] if argv else "", argv[1:]
    if name in SUBCOMMANDS:
        command = SUBCOMMANDS[name]
        return command.run(parser_of(name, command), words)
    parser = _overview()
    if argv and parser.parse_args(argv).version:  # or --help, or an error
        import adbg

        print(f"adbg {adbg.__version__} from {adbg.__path__[0]}")
        return 0
    parser.print_help(sys.stderr)
    return USAGE


def _overview() -> Parser:
    """``adbg --help``: every subcommand in one line."""
    parser = Parser(
        prog="adbg",
        description="A debugger for the backward pass: stop at any node of the graph, inspect, step, change values.",
        epilog="Start with `adbg run train.py`. `adbg SUBCOMMAND --help` shows the options of a subcommand.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version, and where this adbg is")
    rows = parser.add_subparsers(metavar="SUBCOMMAND", parser_class=Parser)
    for name, command in SUBCOMMANDS.items():
        rows.add_parser(name, help=summary(command))
    return parser
