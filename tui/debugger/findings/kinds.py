"""Which kinds of findings there are, and what is known of their detectors, without importing any of them.

Detectors run in the program and import what only belongs there. Their modules are read, not run: ``@detector("kind")``
above a class, and the docstring of that class.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from adbg import engine
from adbg.engine.errors import CommandError
from adbg.engine.places import parsed

REPEATED = "run-differs"  # of two runs that are compared here: no detector's
CRASHED = "crash"  # of a process that cannot tell any more: nor this one
LABELS = ("Evidence", "Mistaken for", "Cost")  # of the paragraphs of a detector's docstring behind the first
_WORDS = re.compile(r"[A-Z][a-z]*")
_DETECTORS = Path(engine.__path__[0]) / "diagnosis" / "detectors"


@dataclass(frozen=True, slots=True)
class DetectorText:
    """A detector as it stands in its file. ``family`` is the folder: numbers, graphs, ... ``title``: the words of its
    class's name, by which those of one kind are told apart."""

    kinds: tuple[str, ...]
    family: str
    docstring: str
    title: str = ""

    def parts(self) -> tuple[str, dict[str, str]]:
        """What is found, and what stands behind each of ``LABELS``."""
        text = " ".join(self.docstring.split())
        found = re.split(rf"(?:^| )({'|'.join(LABELS)}): ", text)
        return found[0].strip(), {label: said.strip() for label, said in zip(found[1::2], found[2::2])}


@cache
def detectors() -> tuple[DetectorText, ...]:
    """All, by family and main kind."""
    files = sorted(_DETECTORS.rglob("*.py"))
    found = [each for path in files for each in read(path.read_text("utf-8"), path.parent.name)]
    return tuple(sorted(found, key=lambda each: (each.family, each.kinds)))


def read(source: str, family: str) -> Iterator[DetectorText]:
    """The detectors of one module."""
    for node in parsed(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "detector":
                kinds = tuple(str(each.value) for each in mark.args if isinstance(each, ast.Constant))
                title = " ".join(_WORDS.findall(node.name)).lower()
                yield DetectorText(kinds, family, ast.get_docstring(node) or "", title)


def kinds() -> tuple[str, ...]:
    """All kinds, in the order of the alphabet."""
    return tuple(sorted({REPEATED, CRASHED, *(kind for each in detectors() for kind in each.kinds)}))


def check(asked: list[str]) -> list[str]:
    """``asked``, where all of them are kinds.

    Raises:
        CommandError: one is not, with the closest names.
    """
    known = kinds()
    for kind in asked:
        if kind not in known:
            close = difflib.get_close_matches(kind, known, 3, 0.55)
            hint = f"closest: {', '.join(close)}" if close else f"one of: {', '.join(known)}"
            raise CommandError(f"unknown kind of finding {kind!r}", hint)
    return list(dict.fromkeys(asked))
