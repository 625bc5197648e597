"""The README's pictures are those that ``make pictures`` takes, and show programs that are there."""

from __future__ import annotations

import ast
import re
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CELL = (9, 18)  # pixels, as docs/pictures.py draws one


def made() -> dict[str, ast.expr]:
    """The pictures of docs/pictures.py by name. Read, not imported: it needs Pillow."""
    tree = ast.parse((ROOT / "docs" / "pictures.py").read_text())
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "PICTURES" for target in node.targets)
    )
    assert isinstance(table, ast.Dict)
    return {ast.literal_eval(key): value for key, value in zip(table.keys, table.values) if key is not None}


def test_each_picture_of_the_readme_is_taken_and_each_one_taken_is_shown() -> None:
    shown = set(re.findall(r"!\[[^\]]*\]\(docs/([^)]+\.png)\)", (ROOT / "README.md").read_text()))
    assert shown == set(made()) == {path.name for path in (ROOT / "docs").glob("*.png")}


def test_the_pictures_have_the_size_of_their_screens() -> None:
    for name, picture in made().items():
        assert isinstance(picture, ast.Call)
        rows, cols = (ast.literal_eval(argument) for argument in picture.args[:2])
        width, height = struct.unpack(">II", (ROOT / "docs" / name).read_bytes()[16:24])
        assert (width, height) == (cols * CELL[0], rows * CELL[1]), f"{name} is of another screen: make pictures"
