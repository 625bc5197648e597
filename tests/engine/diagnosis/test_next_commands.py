"""What a finding says to type next is typed: every breakpoint of it meets a node, and the rest is answered."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from support.diagnosing import diagnose, findings
from support.frameworks import on_frameworks
from support.program import adbg, commands
from support.small_net import small_net

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis import values
from adbg.engine.diagnosis.next_commands import NodeLines, told_apart
from adbg.engine.types import SourceLine

# The line to change records no node, nor does the one that restores.
BACKUP = """
kept = {}
for step in range(8):
    (net(noise(6, 4)) - 1).square().mean().backward()
    with framework.no_grad():
        for name, weight in net.named_parameters():
            kept[name] = weight.detach()  # CAUSE
            weight.add_(0.1 * weight.grad)
    (net(noise(6, 4)) - 1).square().mean().backward()
    with framework.no_grad():
        for name, weight in net.named_parameters():
            put(weight, kept[name])
    optimizer.step()
    clear()
"""
# The line to change records nodes: it can be stopped at.
BROADCAST = """
for step in range(8):
    loss = (net(noise(6, 4)).sum(1, keepdim=True) - noise(6)).square().mean()  # CAUSE
    loss.backward()
    optimizer.step()
    clear()
"""
PROGRAMS = {"backup": (BACKUP, "list"), "broadcast": (BROADCAST, "b")}


def typed(script: Path, lines: Sequence[str]) -> None:
    """Raises AssertionError where a breakpoint meets no node, or a command is refused."""
    breaks = [word for each in lines if each.startswith("b ") for word in ("-b", each[2:])]
    rest = [each for each in lines if not each.startswith(("b ", "adbg "))]
    done = adbg("run", "--batch", "--strict", "--no-record", *breaks, *commands(*rest), script)
    assert done.status == 0, f"{lines}\n{done}"


@on_frameworks()
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_said_to_be_typed_shows_something(tmp_path: Path, framework: str, name: str) -> None:
    text, first = PROGRAMS[name]
    found = findings(diagnose(tmp_path, small_net(framework, outputs=4, rate=0.01) + text))[0]
    assert "# CAUSE" in found["cause"]["text"], found
    assert found["next"][0].split()[0] == first, found
    typed(tmp_path / "train.py", found["next"])


def test_a_line_that_recorded_a_node_is_stopped_at_however_its_file_is_named() -> None:
    class Recorded:
        @staticmethod
        def has_graph(value: object) -> bool:
            return True

    lines = NodeLines(Recorded())  # type: ignore[arg-type]
    line = SourceLine("/home/me/train.py", 7, "main")
    lines.tell("operator", OperatorCall("add", (), (), (object(),), (line,), True))
    assert lines.shown(["b train.py:7", "b /home/me/train.py:7"]) == ["b train.py:7", "b /home/me/train.py:7"]
    assert lines.shown(["b train.py:8", "info node"]) == ["list train.py:8"]


# The same line of two files of one name, each of which records a node: "b losses.py:2" would stop at both.
LOSSES = "def difference(given, wanted):\n    return (given - wanted).square().mean()\n"
TWO_FILES = """
import sys
sys.path.insert(0, {folder!r})
import one.losses, two.losses
for step in range(8):
    given = net(noise(6, 4))
    loss = one.losses.difference(given, noise(6, 4)) + two.losses.difference(given.sum(1, keepdim=True), noise(6))
    loss.backward()
    optimizer.step()
    clear()
"""


@on_frameworks()
def test_files_of_one_name_are_told_apart(tmp_path: Path, framework: str) -> None:
    for package in ("one", "two"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "losses.py").write_text(LOSSES)
    program = small_net(framework, outputs=4, rate=0.01) + TWO_FILES.format(folder=str(tmp_path))
    found = findings(diagnose(tmp_path, program))[0]
    assert found["kind"] == "loss-broadcast", found
    assert found["cause"]["file"] == str(tmp_path / "two" / "losses.py")
    assert "b two/losses.py:2" in found["next"], found
    typed(tmp_path / "train.py", found["next"])


def test_as_much_of_a_path_is_told_as_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in {"a": "/job/a/net.py", "b": "/job/b/net.py", "c": "/b/net.py", "d": "/other.py"}.items():
        module = ModuleType(f"_told_apart_{name}")
        module.__file__ = file
        monkeypatch.setitem(sys.modules, module.__name__, module)
    lines = [("/job/b/net.py", 7), ("/other.py", 3), ("/b/net.py", 9)]
    ours = ModuleType("_told_apart_ours")
    ours.__file__ = values.__file__  # adbg's own is no file of the program's
    monkeypatch.setitem(sys.modules, ours.__name__, ours)
    assert told_apart(["b values.py:3"], [("/job/values.py", 3)]) == ["b values.py:3"]
    assert told_apart(["b net.py:7"], [("/job/my b/net.py", 7)]) == ["b net.py:7"]  # a place has no space
    asked = ["b net.py:7 after", "list other.py:3", "b net.py:8", "b net.py:9", "info node", "b Sqrt#1 after"]
    wanted = ["b job/b/net.py:7 after", "list other.py:3", "b net.py:8", "b /b/net.py:9", "info node", "b Sqrt#1 after"]
    assert told_apart(asked, lines) == wanted
