"""How a program ended, in words."""

from __future__ import annotations

import pytest

from adbg.engine.types import ExitStatus
from adbg.tui.text.formatting import exit_sentence, exit_text

KEEPER = "ended, its status is unknown: its keeper process was killed"


@pytest.mark.parametrize(
    ("status", "shell", "text", "sentence"),
    [
        (ExitStatus(3), 3, "exited with status 3", "The program exited with status 3."),
        (ExitStatus(signal=11), 139, "killed by SIGSEGV", "The program was killed by SIGSEGV."),
        (ExitStatus(signal=63), 191, "killed by signal 63", "The program was killed by signal 63."),
        (ExitStatus(), 125, KEEPER, f"The program {KEEPER}."),
        (ExitStatus(reason="the connection was lost"), 0, "the connection was lost", "The connection was lost."),
    ],
)
def test_every_ending(status: ExitStatus, shell: int, text: str, sentence: str) -> None:
    assert (status.status, exit_text(status), exit_sentence(status)) == (shell, text, sentence)
