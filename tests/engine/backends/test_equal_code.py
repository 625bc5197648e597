"""Functions of two files that are equal (a copied module): what adbg says of one is not told of the other."""

from __future__ import annotations

import sys
from types import FrameType

from adbg.engine.backends.common.observing.user_lines import UserLines

SOURCE = "def here(get):\n    return get()\n"


def test_lines_of_equal_code_have_their_own_file() -> None:
    found = []
    lines = UserLines("/no/framework")
    codes = []
    for name in ("/job/one/model.py", "/job/two/model.py"):
        space: dict[str, object] = {}
        exec(compile(SOURCE, name, "exec"), space)
        here = space["here"]
        codes.append(here.__code__)  # type: ignore[attr-defined]
        frame: FrameType = here(sys._getframe)  # type: ignore[operator]
        found.append(lines(frame)[0])
    assert codes[0] == codes[1]  # Python compares neither the file nor where in it a column is
    assert [each.file for each in found] == ["/job/one/model.py", "/job/two/model.py"]
    assert [each.line for each in found] == [2, 2]
