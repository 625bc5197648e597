"""One table of commands: it serves the REPL, batch mode, the app's console and palette, ``help``, and the README's
reference.

Pure lookup and argument splitting; a command's function runs on the caller's thread and may wait for the agent, so
the app calls ``execute`` from a worker thread. All input errors are CommandError; nothing else but AdbgError leaves
``execute``.
"""

from __future__ import annotations

import difflib
import importlib
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import AdbgError, CommandError
from adbg.tui.debugger.stop_view import as_error

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

GROUPS = ("running", "breakpoints", "data", "stack", "graph", "information", "session")
_MODULES = (
    "running", "breakpoints", "data", "stack", "threads", "graph", "capture", "information", "profile", "session",
    "ranks", "diagnosis.diagnose",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command.

    Args:
        text: for the user, without a trailing newline; may be empty.
        value: for scripts: plain JSON values.
        columns, rows: a table, if the answer is one (``text`` has it too).
        running: the program was resumed: a line-oriented front end now waits for ``Stopped`` or ``Exited``.
        background: with ``running``: do not wait (``continue &``).
        quit: leave adbg.
        action: something only a front end can do, e.g. "help" (the app opens its help), "palette".
        exact: what tells this answer from another one where ``value`` and ``text`` are rounded.
    """

    text: str = ""
    value: Any = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    running: bool = False
    background: bool = False
    quit: bool = False
    action: str = ""
    exact: Any = None


Run = Callable[["Debugger", str], CommandResult]


@dataclass(frozen=True, slots=True)
class Command:
    """One row. ``args`` is the usage after the name; ``help`` begins with one sentence; ``completes`` says what
    its argument is: "", "spec", "breakpoint", "node", "expression", "statement", "file", "directory", "command",
    "info", "diagnose", "dump", "vlog", "process"."""

    name: str
    aliases: tuple[str, ...]
    group: str
    args: str
    help: str
    completes: str
    run: Run
    repeats: bool = False  # an empty line after it does it again

    @property
    def summary(self) -> str:
        """The first paragraph of ``help``, in one line."""
        return " ".join(self.help.split("\n\n", 1)[0].split())


_LOADING = threading.RLock()


@dataclass(slots=True)
class Table:
    """Filled by the modules of this package, in the order of the reference; loaded on first use."""

    rows: dict[str, Command] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    loaded: bool = False

    def commands(self) -> list[Command]:
        self.load()
        return list(self.rows.values())

    def load(self) -> None:
        """From any thread: one that comes while another loads waits, and never sees half of the commands."""
        if self.loaded:
            return
        with _LOADING:
            for module in _MODULES:
                importlib.import_module(f"adbg.tui.commands.{module}")
            order = {f"adbg.tui.commands.{module}": place for place, module in enumerate(_MODULES)}
            rows = sorted(self.rows.items(), key=lambda each: order.get(each[1].run.__module__, len(order)))
            self.rows = dict(rows)  # one that somebody needed by itself was imported first
            self.loaded = True

    def add(self, command: Command) -> None:
        if command.group not in GROUPS:
            raise ValueError(f"{command.name}: unknown group {command.group}")
        for name in (command.name, *command.aliases):
            if name in self.aliases:
                raise ValueError(f"two commands are called {name}")
            self.aliases[name] = command.name
        self.rows[command.name] = command


TABLE = Table()


def command(
    name: str, *aliases: str, group: str, args: str = "", completes: str = "", repeats: bool = False
) -> Callable[[Run], Run]:
    """Make a function (debugger, argument text) a command; its docstring is the help."""

    def register(run: Run) -> Run:
        lines = (run.__doc__ or "").strip().splitlines()
        text = "\n".join([lines[0], *(line.removeprefix("    ") for line in lines[1:])]) if lines else ""
        TABLE.add(Command(name, aliases, group, args, text, completes, run, repeats))
        return run

    return register


# Commands of gdb, pdb and lldb that are called otherwise here.
ELSEWHERE = {
    "clear": "`delete N` removes breakpoint N, `info breakpoints` lists them",
    "cl": "`delete N` removes breakpoint N, `info breakpoints` lists them",
    "return": "`finish` runs to the end of this backward, `after` to the end of this node",
    "locals": "`info locals` shows the variables of the selected frame",
    "args": "`info locals` shows the variables of the selected frame",
    "pp": "`print EXPR` shows a value",
    "ptype": "`print type(EXPR)` shows a type",
    "whatis": "`print type(EXPR)` shows a type",
    "backtrace": "`where` shows the stack",
    "interact": "`! STATEMENT` runs Python where the program stands",
}


def resolve(word: str) -> Command:
    """The command called ``word``, by name, alias or unique prefix.

    Raises:
        CommandError: unknown (with the closest names) or ambiguous (with the candidates).
    """
    TABLE.load()
    if word in TABLE.aliases:
        return TABLE.rows[TABLE.aliases[word]]
    if not word:
        raise CommandError("no command given", "`help` lists the commands")
    found = [name for name in TABLE.rows if name.startswith(word)]
    found = found or sorted({TABLE.aliases[alias] for alias in TABLE.aliases if alias.startswith(word)})
    shortest = min(found, key=len, default="")
    if found and all(name.startswith(shortest) for name in found):  # "fra" is frame, though there is frames
        return TABLE.rows[shortest]
    if found:
        raise CommandError(f"ambiguous command {word!r}: {', '.join(found)}", "add a letter")
    close = difflib.get_close_matches(word, TABLE.aliases, 3, 0.5)
    if word in ELSEWHERE:
        raise CommandError(f"unknown command {word!r}", ELSEWHERE[word])
    hint = (
        f"closest: {', '.join(close)}; `help` lists all"
        if close
        else "`help` lists them; `print EXPR` or `! STATEMENT` run Python"
    )
    raise CommandError(f"unknown command {word!r}", hint)


def split(line: str) -> tuple[str, str]:
    """(command word, argument text). ``!x`` and ``p/s x`` need no blank; ``/s`` stays with the argument. A ``:`` in
    front is a habit of the hand, and means nothing."""
    line = line.strip().removeprefix(":").lstrip()
    if line.startswith("!"):
        return "!", line[1:].strip()
    if line.startswith("?"):
        return "help", line[1:].strip()
    end = 0
    while end < len(line) and (line[end].isalnum() or line[end] in "-_"):
        end += 1
    if end == 0:
        end = len(line.split(None, 1)[0]) if line else 0
    return line[:end], line[end:].strip()


def execute(debugger: Debugger, line: str) -> CommandResult:
    """Run one command line.

    Raises:
        AdbgError: what went wrong, in the user's words.
    """
    if not line.strip() or line.lstrip().startswith("#"):
        return CommandResult()
    word, argument = split(line)
    try:
        row = resolve(word)
        return row.run(debugger, argument)
    except Exception as error:
        raise _placed(as_error(error), getattr(line, "place", "")) from error


def _placed(error: AdbgError, place: str) -> AdbgError:
    """With the place where the command was written, for one of a file."""
    if place:
        error.message = f"{place}: {error.message}"
        error.args = (error.message,)
    return error


def repeatable(line: str) -> bool:
    """Whether an empty line after ``line`` does it again (the stepping commands, ``list``, ``up``, ``down``)."""
    try:
        return resolve(split(line)[0]).repeats
    except CommandError:
        return False


# ------------------------------------------------------------------ arguments


def no_argument(argument: str, name: str) -> None:
    if argument:
        raise CommandError(f"`{name}` takes no argument, got {argument!r}")


def need(argument: str, what: str, example: str) -> str:
    if not argument:
        raise CommandError(f"{what} is missing", f"for example: {example}")
    return argument


def count_of(argument: str, default: int = 1) -> int:
    """A count from 1."""
    if not argument:
        return default
    if not argument.isdigit() or int(argument) < 1:
        raise CommandError(f"expected a count from 1, got {argument!r}")
    return int(argument)


def numbers_of(argument: str, example: str) -> list[int]:
    """ "1 3-5" -> [1, 3, 4, 5]."""
    numbers: list[int] = []
    for word in need(argument, "a number", example).replace(",", " ").split():
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise CommandError(f"expected numbers, got {word!r}", f"for example: {example}")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def words_of(argument: str) -> list[str]:
    """Split as a shell does."""
    try:
        return shlex.split(argument)
    except ValueError as error:
        raise CommandError(f"{argument!r} cannot be split into words: {error}") from None


def choice_of(word: str, choices: Sequence[str], what: str) -> str:
    """A unique prefix of one of ``choices``."""
    if word in choices:
        return word
    found = [choice for choice in choices if choice.startswith(word)] if word else []
    if len(found) == 1:
        return found[0]
    options = "one of: " + ", ".join(choices)
    if not word:
        raise CommandError(f"{what}: a word is missing", options)
    wrong = f"{word!r} is ambiguous ({', '.join(found)})" if found else f"unknown word {word!r}"
    raise CommandError(f"{what}: {wrong}", options)


def table_result(
    columns: Iterable[str], rows: Iterable[Iterable[Any]], head: str = "", value: Any = None
) -> CommandResult:
    """A CommandResult with the table as text too."""
    from adbg.tui.text.formatting import table_text

    heads = tuple(columns)
    cells = tuple(tuple(row) for row in rows)
    text = table_text(heads, cells) if cells else ""
    parts = [part for part in (head, text) if part]
    return CommandResult("\n".join(parts), value, heads, cells)
