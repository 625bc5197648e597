"""The program's output as the lines a terminal would show: carriage returns, backspaces, cursor up (nested bars),
erasing. Pure.

Colours are dropped; the screen has no height (cursor addressing other than relative is ignored), so full-screen
programs look wrong here.
"""

from __future__ import annotations

import re

MOST_LINES = 20_000
_TOKEN = re.compile(
    r"(?P<csi>\x1b\[(?P<args>[0-9;?]*)(?P<final>[@-~]))|(?P<osc>\x1b\][^\x07\x1b]*(?:\x07|\x1b\\))|(?P<esc>\x1b[@-Z\\-_()][0-9A-Za-z]?)"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])|(?P<text>[^\x00-\x1f\x7f]+)"
)
_PARTIAL = re.compile(r"\x1b(\[[0-9;?]*|\][^\x07\x1b]*)?$")


class ScreenText:
    """Feed text as it comes; ``lines`` are what is on the screen, the last one may be unfinished.

    Attributes:
        dropped: lines that were thrown away at the top (at most ``MOST_LINES`` are kept).
        finished: lines that were ended by a newline, dropped ones included.
    """

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.dropped = 0
        self.touched = 0  # first line, dropped ones counted, that changed since the reader set it to ``finished``
        self._row = 0
        self._column = 0
        self._held = ""

    @property
    def finished(self) -> int:
        return self.dropped + len(self.lines) - 1

    def feed(self, text: str) -> None:
        """Take in output. A control sequence that is cut at the end waits for its rest."""
        text = self._held + text
        self._held = ""
        partial = _PARTIAL.search(text)
        if partial and len(partial[0]) < 256:
            self._held = partial[0]
            text = text[: partial.start()]
        for token in _TOKEN.finditer(text):
            if token["text"] is not None:
                self._write(token["text"])
            elif token["control"] is not None:
                self._control(token["control"])
            elif token["csi"] is not None:
                self._sequence(token["args"], token["final"])
        if len(self.lines) > MOST_LINES + 1000:
            gone = len(self.lines) - MOST_LINES
            del self.lines[:gone]
            self.dropped += gone
            self._row = max(self._row - gone, 0)

    def _write(self, text: str) -> None:
        self.touched = min(self.touched, self.dropped + self._row)
        line = self.lines[self._row]
        if self._column > len(line):
            line = line.ljust(self._column)
        self.lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)

    def _control(self, char: str) -> None:
        if char == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
            self._column = 0
        elif char == "\r":
            self._column = 0
        elif char == "\b":
            self._column = max(self._column - 1, 0)
        elif char == "\t":
            self._write(" " * (8 - self._column % 8))

    def _sequence(self, arguments: str, final: str) -> None:
        first = arguments.split(";")[0]
        number = int(first) if first.isdigit() else 0
        if final == "A":
            self._row = max(self._row - max(number, 1), 0)
        elif final == "B":
            self._row = min(self._row + max(number, 1), len(self.lines) - 1)
        elif final == "C":
            self._column += max(number, 1)
        elif final == "D":
            self._column = max(self._column - max(number, 1), 0)
        elif final == "G":
            self._column = max(number, 1) - 1
        elif final == "K":
            self.touched = min(self.touched, self.dropped + self._row)
            line = self.lines[self._row]
            self.lines[self._row] = {0: line[: self._column], 1: " " * self._column + line[self._column :]}.get(
                number, ""
            )
        elif final == "J" and number in (2, 3):
            self._row, self._column = len(self.lines) - 1, 0
            if self.lines[-1]:
                self._control("\n")
