"""What several pasted lines are: commands, blocks, and the beginning of another command."""

from __future__ import annotations

import pytest

from adbg.tui.repl.blocks import commands_in


@pytest.mark.parametrize(
    ("text", "commands", "begun"),
    [
        ("p 1\np 2\n", ["p 1", "p 2"], ""),
        ("p 1\r\np 2", ["p 1"], "p 2"),
        ("p 1\rp 2\r", ["p 1", "p 2"], ""),
        ("\n  \np 1\n\n", ["p 1"], ""),
        ("(adbg) p 1\n(adbg) s\n", ["p 1", "s"], ""),
        ("! for i in range(2):\n    print(i)\np 1\n", ["! for i in range(2):\n    print(i)\n", "p 1"], ""),
        ("! for i in x:\n    f(i)\n\n    g(i)\ns\n", ["! for i in x:\n    f(i)\n\n    g(i)\n", "s"], ""),
        ("!if a:\n  b()\nelse:\n  c()\n", ["!if a:\n  b()\nelse:\n  c()\n"], ""),
        ("! x = f(\n1,\n2)\np x\n", ["! x = f(\n1,\n2)\n", "p x"], ""),
        ("! for i in x:\n    f(i)", [], "! for i in x:\n    f(i)"),
        ("commands 1\np 1\nc\nend\ns\n", ["commands 1\np 1\nc", "s"], ""),
        ("p 1", [], "p 1"),
        ("", [], ""),
    ],
)
def test_lines(text: str, commands: list[str], begun: str) -> None:
    assert commands_in(text) == (commands, begun)
