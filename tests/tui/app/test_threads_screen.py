"""The screen of threads: read again, folded, all frames, and a frame's source shown in the source panel."""

from __future__ import annotations

import pytest
from support.app_driver import Driver, drive

from adbg.engine.attach import stacks_pyspy, stacks_read
from adbg.engine.errors import BackendError
from adbg.engine.protocol.messages import AllThreadsBody, ThreadFacts, ThreadFrame
from adbg.tui.app.screens.threads import ThreadsScreen

WIDE, NARROW = (160, 45), (80, 24)
FRAMES = [
    ThreadFrame("get", "/lib/python3.11/queue.py", 171, "library", 3),
    ThreadFrame("load", __file__, 12, "user", 2),
    ThreadFrame("<module>", __file__, 14, "user", 1),
]


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid of the scripted program is nobody's."""
    monkeypatch.setattr(stacks_pyspy, "find", lambda: "")
    monkeypatch.setattr(stacks_read, "threads_of", lambda pid, gap=0: [])


def threads(*names: str) -> AllThreadsBody:
    return AllThreadsBody([ThreadFacts(i, 0, name, False, "running", FRAMES) for i, name in enumerate(names, 70)])


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])
def test_threads_are_read_folded_and_left_for_their_source(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        answers = [threads("MainThread")]
        app.agent.do_allThreads = lambda arguments: answers[-1]  # type: ignore[attr-defined]
        await app.press("W")
        text = await app.shows("Threads", "1  MainThread", "load  ", "test_threads_screen.py:12", "v all frames")
        assert "queue.py" not in text
        assert max(len(line) for line in text.splitlines()) <= size[0]
        await app.press("v")
        await app.shows("queue.py:171", "v own frames")
        await app.press("v")
        await app.until(lambda: "queue.py" not in app.text, "own frames")

        answers.append(threads("MainThread", "loader"))
        await app.press("r")
        await app.shows("2  loader")
        await app.press("j", "j", "space")  # below the title and a note: the first thread
        await app.until(lambda: app.text.count("test_threads_screen.py:12") == 1, "one thread folded")
        await app.press("space")
        await app.until(lambda: app.text.count("test_threads_screen.py:12") == 2, "unfolded")

        await app.press("j", "enter")
        await app.until(lambda: not isinstance(app.app.screen, ThreadsScreen), "the main screen")
        code = app.app.main.code
        await app.until(lambda: (code.path, code.current) == (__file__, 12), "its source")
        assert app.app.main.focused_panel == "source"

    drive(size, body)


def test_what_cannot_be_read_is_said() -> None:
    async def body(app: Driver) -> None:
        def refuse(arguments: object) -> AllThreadsBody:
            raise BackendError("no threads today", "try tomorrow")

        app.agent.do_allThreads = refuse  # type: ignore[attr-defined]
        await app.press("W")
        await app.shows("did not answer within")
        await app.press("escape")
        assert len(app.app.screen_stack) == 1

    drive(WIDE, body)
