"""The one piece of Python that is run in the target. It is constant but for two paths, which are quoted.

It runs on whatever thread comes by, so it only starts one. What a signal handler of the program raises meanwhile is the
program's, and passes; what starting a thread raises is not, and is dropped.
"""

from __future__ import annotations

from pathlib import Path

BEGIN = Path(__file__).resolve().parents[1] / "bootstrap" / "attach.py"
_OUTER = """\
try:
    __import__("_thread").start_new_thread(exec, ({inner!r}, {{}}))
except (RuntimeError, MemoryError) as error:
    if error.__traceback__.tb_next is not None:
        raise
"""
_INNER = """\
try:
    space = {{"__name__": "adbg_attach", "__file__": {file!r}}}
    with __import__("_io").open_code({file!r}) as file:
        code = compile(file.read(), {file!r}, "exec", dont_inherit=True)
    exec(code, space)
    space["begin"]({session!r})
except BaseException:
    pass
"""


def snippet(session_file: Path, begin: Path = BEGIN) -> str:
    """Loads ``begin`` by its path and calls its function ``begin``, in ASCII."""
    inner = _INNER.format(file=_Quoted(str(begin)), session=_Quoted(str(session_file)))
    return _OUTER.format(inner=_Quoted(inner))


class _Quoted(str):
    """A string that is shown as an ASCII literal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return ascii(str(self))
