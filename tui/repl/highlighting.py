"""Highlighting of a command line while it is typed, for prompt_toolkit. Main thread."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples, to_formatted_text
from prompt_toolkit.formatted_text.pygments import PygmentsTokens
from prompt_toolkit.formatted_text.utils import split_lines
from prompt_toolkit.lexers import Lexer
from pygments import lex
from pygments.lexers.python import PythonLexer

from adbg.engine.errors import AdbgError
from adbg.tui.commands.table import resolve, split

PYTHON = ("expression", "statement", "spec", "breakpoint")


class CommandLexer(Lexer):
    """The command word in bold, or in red when it is unknown; Python code after the commands that take it."""

    def __init__(self) -> None:
        self._python = PythonLexer(ensurenl=False)

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        text = document.text
        lines = list(split_lines(self._styled(text)))

        def line(number: int) -> StyleAndTextTuples:
            return lines[number] if number < len(lines) else []

        return line

    def _styled(self, text: str) -> StyleAndTextTuples:
        word, _ = split(text.split("\n", 1)[0])
        start = text.find(word) + len(word) if word else 0
        try:
            row = resolve(word)
        except AdbgError:
            return [("class:unknown-command fg:ansired", text[:start]), ("", text[start:])]
        rest = text[start:]
        styled: StyleAndTextTuples = [("bold", text[:start])]
        if row.completes in PYTHON:
            styled += to_formatted_text(PygmentsTokens(list(lex(rest, self._python))))
        else:
            styled.append(("", rest))
        return styled
