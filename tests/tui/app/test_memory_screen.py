"""The screen of memory: asked at a stop, again when it changes, watched, and a line's source shown."""

from __future__ import annotations

import pytest
from support.app_driver import Driver, drive

from adbg.engine.errors import BackendError
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import SourceLine
from adbg.tui.app.screens.memory import MemoryScreen, MemoryText, folded
from adbg.tui.text.memory import MemoryLine

WIDE, NARROW = (160, 45), (80, 24)
LINE = SourceLine(__file__, 12, "step")
OWNER = protocol.Owner("losses[*]", "global", None, LINE, "losses.append(loss)", count=9, graphs=9, bytes=36)
SAMPLES = [protocol.MemorySample(i, (100 + i) << 20) for i in range(1, 31)]


class Remembering:
    def __init__(self) -> None:
        self.asked: list[protocol.Memory] = []
        self.on = False

    def __call__(self, arguments: protocol.Memory) -> protocol.MemoryBody:
        self.asked.append(arguments)
        self.on = self.on if arguments.watch is None else arguments.watch
        growths = [protocol.Growth(OWNER, [(3, 2), (6, 5), (9, 8)])] if self.on else []
        course = protocol.Course(self.on, SAMPLES if self.on else [], float(1 << 20), self.on, growths)
        rows = [
            protocol.RetainedRow(3, "MmBackward0#2", 3 << 20, 512, ["self"], "fc", None, LINE),
            protocol.RetainedRow(2, "ReluBackward0#1", 1 << 20, 0, ["result"], None, None, LINE),
        ]
        figures = protocol.ProcessMemory(200 << 20, 210 << 20, 150 << 20, 160 << 20, 0)
        return protocol.MemoryBody(
            figures, [], [], course, protocol.NodesMemory(False), protocol.Retained(5, 4 << 20, 512, rows)
        )


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])
def test_memory_is_shown_watched_and_left_for_a_line(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        answers = Remembering()
        app.agent.do_memory = answers  # type: ignore[method-assign]
        await app.press("f6")
        text = await app.shows("Memory", "rss 200 MiB", "uss 150 MiB", "not watched", "MmBackward0#2", "3MiB ████████")
        assert max(len(line) for line in text.splitlines()) <= size[0]
        assert "1MiB ███ " in text, "a third of the largest"
        assert app.app.screen.query_one(MemoryText).place() == LINE, "enter has something to show from the first"
        asked = len(answers.asked)
        await app.press("w")
        text = await app.shows("30 iterations", "▁", "█", "losses[*] grows", "losses.append(loss)", "stop watching")
        assert max(len(line) for line in text.splitlines()) <= size[0]
        assert [each.watch for each in answers.asked[asked:]] == [True]
        await app.press("G", "enter")
        await app.until(lambda: not isinstance(app.app.screen, MemoryScreen), "the main screen")
        code = app.app.main.code
        await app.until(lambda: (code.path, code.current) == (__file__, 12), "its source")

    drive(size, body)


def test_a_wide_line_goes_on_below_where_there_is_room() -> None:
    lines = [MemoryLine("title", "title"), MemoryLine("  " + "word " * 12, "warn", LINE)]
    for width, room, rows in ((30, 9, 4), (30, 1, 2), (80, 9, 2)):
        found = folded(lines, width, room)
        assert len(found) == rows and all(line.place == LINE and line.style == "warn" for line in found[1:])
        if rows > 2:
            assert max(len(line.text) for line in found) <= width
            assert " ".join(line.text for line in found).split() == ["title", *["word"] * 12]


def test_what_cannot_be_asked_is_said() -> None:
    async def body(app: Driver) -> None:
        def refuse(arguments: object) -> protocol.MemoryBody:
            raise BackendError("no memory today", "try tomorrow")

        app.agent.do_memory = refuse  # type: ignore[method-assign, assignment]
        await app.press("f6")
        await app.shows("no memory today")
        await app.press("escape")
        assert len(app.app.screen_stack) == 1

    drive(WIDE, body)
