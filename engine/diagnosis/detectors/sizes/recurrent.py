"""Recurrent cells that are one node: their gates saturate as sigmoid and tanh do, out of sight."""

from __future__ import annotations

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.types import SourceLine

#: Nodes of torch on CPUs, on GPUs, and of Paddle.
RECURRENT = frozenset({"mkldnnrnnlayer", "cudnnrnn", "miopenrnn", "thnnfusedlstmcell", "thnnfusedgrucell", "rnn"})
WHY = "its cells are saturated: every gate is 0 or 1 for every row, as inputs or weights that are too large make it"
_OPERATORS = frozenset({"lstm", "gru", "rnn", "rnn_tanh", "lstm_cell", "gru_cell"})
_MOST = 64  # lines


class Inputs:
    """What recurrent operators were given, the first time at each line: the node does not keep it beyond its run."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._ranges: dict[SourceLine, str] = {}

    def look(self, call: OperatorCall) -> None:
        if call.name not in _OPERATORS or not call.operands or not call.lines or len(self._ranges) >= _MOST:
            return
        line = call.lines[0]
        if line in self._ranges:
            return
        read = values.stats(self._facts.backend, call.operands[0])
        if read is not None and read.min is not None and read.max is not None:
            what = values.shape_text(self._facts.backend, call.operands[0])
            self._ranges[line] = f"its input {what} goes from {read.min:.6g} to {read.max:.6g}"

    def of(self, line: SourceLine | None) -> tuple[str, ...]:
        text = self._ranges.get(line) if line is not None else None
        return (text,) if text else ()
