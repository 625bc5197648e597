"""Console commands: each runs on a thread, since it may take minutes and must hold up neither the panels nor leaving;
what comes of it is shown in the console. UI thread, but for the threads."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from adbg.engine.errors import AdbgError
from adbg.tui.app.messages import CommandBegins, CommandDone
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.commands.startup import SETTLED, run_startup
from adbg.tui.commands.table import CommandResult, execute, repeatable
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.signals import Interrupts
from adbg.tui.debugger.stop_view import as_error

CTRL_C = "ctrl+c"
TRIAL = "\0trial "
TOLD = 2.0  # seconds at most that a command waits for the stop before it to be shown, and for its own line

Run = Callable[[], CommandResult]


class CommandQueue:
    """Command lines, one after the other; ``post`` gets a ``CommandDone`` of each, on a daemon thread.

    Attributes:
        pending: lines that have not ended.
    """

    def __init__(self, post: Callable[[CommandDone], object]) -> None:
        self._post = post
        self._lines: queue.SimpleQueue[tuple[str, Run] | None] = queue.SimpleQueue()
        self.pending = 0
        threading.Thread(target=self._work, name="adbg-commands", daemon=True).start()

    def put(self, line: str, run: Run) -> None:
        """Have ``run`` called once those before it are done."""
        self.pending += 1
        self._lines.put((line, run))

    def at_once(self, line: str, run: Run) -> None:
        """Have ``run`` called now, whatever is running: it may be there to end that."""
        threading.Thread(target=lambda: self._post(_done(line, run)), daemon=True).start()

    def close(self) -> None:
        self._lines.put(None)

    def _work(self) -> None:
        while (item := self._lines.get()) is not None:
            done = _done(*item)
            self.pending -= 1
            self._post(done)


def _done(line: str, run: Run) -> CommandDone:
    try:
        return CommandDone(line, run(), None)
    except Exception as problem:
        error: AdbgError = as_error(problem)
        return CommandDone(line, None, error)


def completions(debugger: Debugger, line: str) -> list[str]:
    """Lines that ``line`` may become; called in a worker thread."""
    from adbg.tui.repl.completion import complete_line

    with contextlib.suppress(AdbgError):
        return list(complete_line(debugger, line))
    return []


class CommandRunner:
    """Runs lines for ``debugger`` and shows what they say on ``main``; ``post`` brings messages to the app."""

    def __init__(
        self, debugger: Debugger, main: MainScreen, post: Callable[[CommandBegins | CommandDone], object]
    ) -> None:
        self.debugger = debugger
        self.main = main
        self._post = post
        self._queue = CommandQueue(post)
        self._cancelled = threading.Event()
        self.told: Callable[[], bool] = lambda: True  # the stop at hand is on its way to the screen
        self._last_line = ""  # an empty one repeats it
        self._waiting = 0  # commands whose turn did not come yet
        self._begun: list[str] = []  # and those that run now
        self._above = ""  # the last command that stands in the console
        self._interrupts = Interrupts(debugger)
        self._trials: dict[int, Callable[[str], None]] = {}  # who waits for the answer to ``try_all``

    @property
    def busy(self) -> bool:
        """A command has not ended."""
        return self._queue.pending > 0

    def start_program(self) -> None:
        """Start the program and run the commands of the command line, on a thread of their own."""
        if self.debugger.state is State.NEW:
            threading.Thread(target=self._start, name="adbg-startup", daemon=True).start()

    def _start(self) -> None:
        def report(line: str, result: CommandResult | AdbgError) -> None:
            error = result if isinstance(result, AdbgError) else None
            self._post(CommandDone("(adbg) " + line, None if error else result, error))

        try:
            run_startup(self.debugger, report, self._cancelled)
        except AdbgError as error:
            self._post(CommandDone("", None, error))

    def close(self) -> None:
        self._cancelled.set()
        self._queue.close()

    def entered(self, line: str, pasted: bool = False) -> None:
        """A line that was typed or pasted; an empty one repeats the last, if that may be repeated. ``/TEXT`` searches
        what is in the console."""
        if not line.strip():
            line = self._last_line
            if not line.startswith("/") and not repeatable(line):
                return
        self._last_line = line
        if line.startswith("/") and len(line) > 1:
            if not self.main.transcript.search(line[1:], -1):
                self.main.not_found(line[1:])
            return
        self.main.entered()
        self.run(line, waits=pasted)

    def run(self, line: str, echo: bool = True, waits: bool = False) -> None:
        """Run a console command; its output follows. ``waits``: until the program stands still, as one of several lines
        that follow each other."""

        def work() -> CommandResult:
            while waits and self.debugger.state is State.RUNNING and not self._cancelled.is_set():
                self.debugger.model.wait_state(*SETTLED, timeout=0.2)
            if echo:
                until = time.monotonic() + TOLD
                while not self.told() and time.monotonic() < until:
                    time.sleep(0.002)
                begins = CommandBegins(line, threading.Event())
                self._post(begins)
                begins.shown.wait(TOLD)
            return execute(self.debugger, line)

        self._wait_for(1 if echo else 0)
        put = self._queue.at_once if line.split(None, 1)[:1] in (["pause"], ["interrupt"]) else self._queue.put
        put(line, work)

    def begins(self, line: str) -> None:
        """Its turn came: the line is shown only now, so that answers of those before it stand above it."""
        self._wait_for(-1)
        self._begun.append(line)
        self._echo(f"(adbg) {line.rstrip()}")

    def _echo(self, text: str) -> None:
        self.main.say(text, "echo")
        self._above = text

    def _wait_for(self, more: int) -> None:
        self._waiting += more
        late = self._waiting if self._waiting > 1 or self._queue.pending else 0
        self.main.transcript.hint("waiting", f"{late} command{'s' * (late > 1)} waiting" if late else "")

    def try_all(self, lines: list[str], then: Callable[[str], None]) -> None:
        """Run lines up to the first that is refused; ``then`` gets "" or what was wrong, on the UI thread. What is
        accepted is told in the console."""

        def work() -> CommandResult:
            for line in lines:
                result = execute(self.debugger, line)
                self._post(CommandDone("(adbg) " + line, result, None))
            return CommandResult()

        self._trials[id(then)] = then
        self._queue.put(f"{TRIAL}{id(then)}", work)

    def _tried(self, done: CommandDone) -> None:
        then = self._trials.pop(int(done.line.removeprefix(TRIAL)))
        error = done.error
        then("" if error is None else f"{error.message}\n{error.hint}".strip())

    def interrupt(self) -> None:
        """Ctrl-C, whatever is running."""
        self._queue.at_once(CTRL_C, lambda: CommandResult(self._interrupts.press(lambda: self.busy)))

    def show(self, done: CommandDone) -> CommandResult | None:
        """Show output or error of a command; its result, for what else it asks for."""
        if done.line.startswith(TRIAL):
            self._tried(done)
            return None
        if done.line.startswith("(adbg) "):
            self._echo(done.line)
        elif done.line in self._begun:
            self._begun.remove(done.line)
            shown = f"(adbg) {done.line.rstrip()}"
            if self._above != shown and (done.result is None or done.result.text):
                self._echo(shown)  # another one ran meanwhile: whose answer this is
        if done.error is not None:
            self.main.say_error(done.error)
            self.main.answered(f"{done.error.message}\n{done.error.hint}".strip())
            return None
        result: CommandResult | None = done.result
        if result is None:
            return None
        self.main.answered("" if result.action else result.text)
        if result.text and not result.action:  # help and reports have screens
            self.main.say_answer(result.text)
        if done.line == CTRL_C:
            self.main.notify(result.text, timeout=3, markup=False)
        if done.line.removeprefix("(adbg) ").startswith("vlog") and isinstance(result.value, dict):
            self.main.vlog.levels = result.text.removeprefix("vlog ").partition("\n→")[0]
            self.main.retitle()
        return result

    def show_candidates(self, lines: Sequence[str]) -> None:
        """Several completions: their last words, in one line."""
        words = [line.split()[-1] for line in lines[:24]]
        more = f"  … {len(lines) - 24} more" if len(lines) > 24 else ""
        self.main.say("  ".join(words) + more, "dim")
