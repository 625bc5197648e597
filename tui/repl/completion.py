"""Completion of a command line: for prompt_toolkit, and as whole lines for the app's console. Runs on worker
threads."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from adbg.tui.debugger.debugger import Debugger
from adbg.tui.repl.candidates import Candidates

_SHARED: weakref.WeakKeyDictionary[Debugger, Candidates] = weakref.WeakKeyDictionary()


def candidates_of(debugger: Debugger) -> Candidates:
    """The one completer of a debugger, with its cached names."""
    if debugger not in _SHARED:
        _SHARED[debugger] = Candidates(debugger)
    return _SHARED[debugger]


def complete_line(debugger: Debugger, line: str) -> list[str]:
    """The lines that ``line`` may become, the likeliest first."""
    return [line[: len(line) - found.length] + found.text for found in candidates_of(debugger).of(line)]


class CommandCompleter(Completer):
    """The same as prompt_toolkit wants it."""

    def __init__(self, debugger: Debugger) -> None:
        self._candidates = candidates_of(debugger)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for found in self._candidates.of(document.text_before_cursor):
            yield Completion(found.text, -found.length, display_meta=found.meta[:60])
