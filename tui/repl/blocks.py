"""Several lines as commands: what a paste means. Pure; any thread."""

from __future__ import annotations

import codeop
import re
import warnings

from adbg.tui.commands.startup import opens_block

_GOES_ON = re.compile(r"(?:else|elif|except|finally|case)\b|[)\]}]")
_PROMPT = "(adbg) "  # of a session that lines were copied from


def incomplete(source: str) -> bool:
    """Whether Python expects more lines; a block ends with an empty one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(source, "<adbg>", "single") is None
    except (SyntaxError, ValueError, OverflowError):
        return False


def python_of(line: str) -> str:
    """The statements behind ``!``."""
    return line.lstrip()[1:].lstrip(" ")


def commands_in(text: str) -> tuple[list[str], str]:
    """The commands of the complete lines, and the last line, which has no end yet ("": none is begun).

    A Python block behind ``!`` goes to the line in front of the next one that is not indented, ``commands N`` to its
    ``end``; either is one command with line ends in it.
    """
    *lines, begun = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    commands: list[str] = []
    block: list[str] = []
    for line in lines:
        line = line.removeprefix(_PROMPT)
        if block and not block[0].lstrip().startswith("!"):
            if line.strip() == "end":
                commands.append("\n".join(block))
                block = []
            else:
                block.append(line)
            continue
        if block:
            if _belongs(block, line):
                block.append(line)
                continue
            commands.append(_closed(block))
            block = []
        text = line.strip()
        if (text.startswith("!") and incomplete(python_of(line))) or opens_block(text):
            block = [line]
        elif text:
            commands.append(text)
    if block and block[0].lstrip().startswith("!") and not incomplete(python_of("\n".join(block)) + "\n"):
        commands.append(_closed(block))
        block = []
    return commands, "\n".join([*block, begun]) if block else begun


def _belongs(block: list[str], line: str) -> bool:
    """``line`` goes on with the Python block."""
    if not line.strip() or line[0] in " \t" or _GOES_ON.match(line):
        return True
    return incomplete(python_of("\n".join(block)) + "\n")  # a bracket or a string is open


def _closed(block: list[str]) -> str:
    return "\n".join(block).rstrip() + "\n"
