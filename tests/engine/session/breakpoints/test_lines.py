"""Why a line made no node: what stands on it, in words."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from adbg.engine.session.breakpoints.lines import loaded_file, why_none

SOURCE = '''\
    """What the file does,
    in two lines."""
    import math

    # a remark
    @staticmethod
    def forward(
        x,
    ):
        """# not a comment"""
        n = len(x)
        y = x.exp(
            # said of the operand
        ) + n
        # before the end
        return y

    def unused(x):
        return x.sin()

    class Model:
        width = 3
'''
MADE = {13}  # of the statement of lines 12 to 14


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (1, "text, a docstring"),
        (2, "text, a docstring"),
        (3, "an import"),
        (4, "is empty"),
        (5, "is a comment"),
        (6, "only defines the function forward"),
        (8, "only defines the function forward"),
        (10, "text, a docstring"),
        (11, "nothing on that line computes what needs a gradient"),
        (14, "part of the statement of lines 12 to 14"),
        (15, "is a comment"),
        (19, "no line of unused() did: it did not run"),
        (21, "only defines the class Model"),
        (22, "nothing on that line"),
        (99, "that file has 22 lines"),
    ],
)
def test_what_stands_there(tmp_path: Path, line: int, said: str) -> None:
    file = tmp_path / "model.py"
    file.write_text(textwrap.dedent(SOURCE))
    assert said in why_none(str(file), line, MADE)


def test_what_cannot_be_read_is_not_explained(tmp_path: Path) -> None:
    assert why_none("<nowhere>", 1, {2}) == "" and why_none(str(tmp_path / "none.py"), 1, ()) == ""
    (tmp_path / "broken.py").write_text("x = (\n1 +\n")
    assert why_none(str(tmp_path / "broken.py"), 1, ()) == ""


def test_the_file_of_a_module_that_made_no_node() -> None:
    assert loaded_file("breakpoints/lines.py").endswith("engine/session/breakpoints/lines.py")
    assert loaded_file("no_such_file.py") == ""
