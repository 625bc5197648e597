"""Commands of findings in the words of the program at hand: a detector, which does not know how the program was
started, writes ``adbg diagnose --deep SCRIPT``. Pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from adbg.engine.launch.command_line import is_interpreter, program_python, without_interpreter
from adbg.engine.protocol.messages import Finding

_SCRIPT = re.compile(r"\b(adbg (?:run|diagnose)\b[^`]*?)SCRIPT\b")


def in_own_words(finding: Finding, words: str) -> Finding:
    """``finding`` with ``words`` for the script in its commands, also in those that its sentences name."""
    if not words or not any("SCRIPT" in text for text in (*finding.next, *finding.evidence, finding.message)):
        return finding

    def own(text: str) -> str:
        return _SCRIPT.sub(lambda found: found[1] + words, text)

    return replace(
        finding,
        message=own(finding.message),
        evidence=[own(each) for each in finding.evidence],
        next=[own(each) for each in finding.next],
        advice=[own(each) for each in finding.advice],
    )


def words_of(argv: Sequence[str], cwd: str = "") -> str:
    """What stands for the program behind ``adbg run`` and ``adbg diagnose``, quoted for a shell: its script and
    arguments, the interpreter where that is not the one that adbg would take. ``cwd``: where it was started, if not
    here. "" where the program is not known."""
    words = without_interpreter(argv)
    if not words or words == ["-"]:
        return ""  # a prompt, or a script from stdin
    if not is_interpreter(argv[0]) or words != list(argv[1:]):  # options of the interpreter's own are kept
        return shlex.join(["--", *argv])
    options = [] if os.path.abspath(argv[0]) == os.path.abspath(program_python()) else ["--python", argv[0]]
    if cwd and not words[0].startswith("-") and cwd != os.getcwd():
        words[0] = os.path.join(cwd, words[0])
    return shlex.join([*options, *words])


def is_shells(command: str) -> bool:
    """It is for a shell, where all others are for adbg's prompt."""
    return command.startswith("adbg ")
