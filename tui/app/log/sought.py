"""What a search or a filter looks for: in the bytes of the file, and in the lines that the panel makes of them. Pure.

A record of several lines, and a marker, is shown as one line in other words ("kernel call cast", "Forward
cast1(x f32[2,3]) → …"). To make that line costs 20 to 100 us, so it is made only where the file has the words of the
pattern that are not the panel's own.
"""

from __future__ import annotations

import re

from adbg.engine.glog import DUMP, KERNEL_INPUTS, LAYER_STACK, NODE_INPUTS
from adbg.tui.app.log.summary import SHORT_DTYPES

# Where a record is that is shown in other words than it is written in.
_MARKS = "|".join(map(re.escape, (DUMP, NODE_INPUTS, KERNEL_INPUTS, LAYER_STACK)))
REWORDED = re.compile(f"=(?:Running|Finish)_|{_MARKS}".encode())
_OWN = ("Forward", "kernel call", "end", "grad", "Input", "nothing", "none", "uninitialized", "more", *SHORT_DTYPES)
_OWN_WORDS = " ".join(_OWN).lower()
_WORD = re.compile(r"\w+")


class Sought:
    """``text`` is a regular expression, or what is written exactly so ("C++_API"). Smart case: without a capital, case
    does not matter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.shown = compile_pattern(text)
        self.raw = re.compile(self.shown.pattern.encode(), (self.shown.flags & re.IGNORECASE) | re.MULTILINE)
        plain = not re.search(r"[][\\^$.|?*+(){}]", text)
        words = _WORD.findall(text.lower()) if plain else []
        self._words = [word.encode() for word in words if word not in _OWN_WORDS and not word.isdigit()]

    def may_show(self, record: bytes) -> bool:
        """The line of ``record`` may match though its bytes do not."""
        if not self._words:
            return True
        lowered = record.lower()
        return all(word in lowered for word in self._words)


def compile_pattern(text: str) -> re.Pattern[str]:
    """Matches as ``Sought`` says."""
    flags = 0 if text != text.lower() else re.IGNORECASE
    exact = re.escape(text)
    for pattern in (f"(?:{text})|{exact}" if exact != text else text, text):
        try:
            return re.compile(pattern, flags)
        except re.error:  # no regular expression, or one that does not go into brackets
            continue
    return re.compile(exact, flags)
