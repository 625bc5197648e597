"""Which files are the user's own. Any thread."""

from __future__ import annotations

import os
import types
from typing import Any

from adbg.engine.frames import local
from adbg.engine.own_files import SHOWN, own_folders
from adbg.engine.types import SourceLine

EXPRESSION = "<adbg>"  #: file name of the code of the user's expressions


class FrameFilter:
    """Tells the user's files from the framework's, adbg's and the interpreter's start-up code. One dict lookup a
    file."""

    def __init__(self, framework: str) -> None:
        """Args: framework: the framework's folder."""
        self._framework = os.path.abspath(framework) + os.sep
        self._own = own_folders()
        self._known: dict[str, str | None] = {}
        self._shown: dict[str, str | None] = {}
        self._cwd = os.getcwd()

    def user_file(self, file: str) -> str | None:
        """The absolute name of a user's file (a pseudo name such as "<string>" as it is), None for a file to leave
        out."""
        try:
            return self._known[file]
        except KeyError:
            return self._known.setdefault(file, self._absolute(file, (self._framework, *self._own)))

    def shown_file(self, file: str) -> str | None:
        """The same for stacks: with ``frames all``, the framework's own files too."""
        if not SHOWN.all:
            return self.user_file(file)
        try:
            return self._shown[file]
        except KeyError:
            return self._shown.setdefault(file, self._absolute(file, self._own))

    def _absolute(self, file: str, left_out: tuple[str, ...]) -> str | None:
        if file.startswith("<frozen") or file == EXPRESSION:
            return None
        if file.startswith("<"):
            return file
        absolute = os.path.normpath(os.path.join(self._cwd, file))
        return None if absolute.startswith(left_out) else absolute

    def live_line(self, frame: types.FrameType | None) -> SourceLine | None:
        """The innermost user line of a running Python stack."""
        frame = self.live_frame(frame)
        if frame is None:
            return None
        return SourceLine(self._known[frame.f_code.co_filename] or "", frame.f_lineno, frame.f_code.co_name)

    def live_place(self, frame: types.FrameType | None) -> tuple[str, int]:
        """Its file and line alone, ("", 0) for none: asked at every backward."""
        frame = self.live_frame(frame)
        return (self._known[frame.f_code.co_filename] or "", frame.f_lineno) if frame is not None else ("", 0)

    def line_of_making(self, frame: types.FrameType | None, made: Any) -> SourceLine | None:
        """The user's line that asks for an object whose ``__init__`` runs: outside of the ``__init__`` of its own
        class, which may call that of a base."""
        at = self.live_frame(frame)
        while at is not None and at.f_code.co_name == "__init__" and _first_argument(at) is made:
            outer = self.live_frame(at.f_back)
            if outer is None:
                break
            at = outer
        return self.live_line(at)

    def live_frame(self, frame: types.FrameType | None) -> types.FrameType | None:
        """The innermost frame of the user's."""
        known = self._known
        while frame is not None:
            file = frame.f_code.co_filename
            if (known[file] if file in known else self.user_file(file)) is not None:
                return frame
            frame = frame.f_back
        return None


def _first_argument(frame: types.FrameType) -> Any:
    code = frame.f_code
    return local(frame, code.co_varnames[0]) if code.co_argcount else None
