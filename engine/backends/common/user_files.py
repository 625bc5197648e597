"""Which files are the user's own. Any thread."""

from __future__ import annotations

import os
import types

from adbg.engine.own_files import own_folders
from adbg.engine.types import SourceLine

EXPRESSION = "<adbg>"  #: file name of the code of the user's expressions


class FrameFilter:
    """Tells the user's files from the framework's, adbg's and the interpreter's start-up code. One dict lookup a
    file."""

    def __init__(self, framework: str) -> None:
        """Args: framework: the framework's folder."""
        self._folders = (os.path.abspath(framework) + os.sep, *own_folders())
        self._known: dict[str, str | None] = {}
        self._cwd = os.getcwd()

    def user_file(self, file: str) -> str | None:
        """The absolute name of a user's file (a pseudo name such as "<string>" as it is), None for a file to leave
        out."""
        try:
            return self._known[file]
        except KeyError:
            shown: str | None = file
            if file.startswith("<frozen") or file == EXPRESSION:
                shown = None
            elif not file.startswith("<"):
                shown = os.path.normpath(os.path.join(self._cwd, file))
                if shown.startswith(self._folders):
                    shown = None
            self._known[file] = shown
            return shown

    def live_line(self, frame: types.FrameType | None) -> SourceLine | None:
        """The innermost user line of a running Python stack."""
        while frame is not None:
            file = self.user_file(frame.f_code.co_filename)
            if file is not None:
                return SourceLine(file, frame.f_lineno, frame.f_code.co_name)
            frame = frame.f_back
        return None
