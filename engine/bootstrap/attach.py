"""How adbg gets into a Python process that runs already: something has it run ``begin`` (``engine/attach``).

``begin`` only starts a thread: it may be called on any thread, between any two instructions of the program, which is
not held. The thread, "adbg-attach", connects to the front end first; only then is anything of adbg loaded, by the
paths in session.json. Nothing of the program's environment, folder or ``sys.path`` is asked. Where anything goes wrong
the process is as it was, and the front end hears why.

This file is run by itself, by its path, before adbg is there: it imports nothing but the standard library, and what it
imports at its top is part of every interpreter. To the point where the front end can be told that something is wrong it
uses modules in C alone (``_socket``, ``_json``), and those that every interpreter has imported before the program
began: a program may have a ``socket.py`` and a ``json.py`` of its own.
"""

from __future__ import annotations

import _thread
import posix
import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs the 5 ms of importing typing
if TYPE_CHECKING:
    import socket as sockets
    from collections.abc import Iterator, Sequence
    from typing import Any

THREAD = "adbg-attach"
OLDEST = (3, 10)
_ENGINE = "adbg.engine"
_LARGEST = 1 << 20  # bytes of a session file
_INTERVAL = 0.0001  # seconds after which a busy program's thread hands Python's lock on, while adbg is loaded
_PATIENCE = 10.0  # seconds that the front end's socket has to take a connection, and a refusal


def begin(session_file: str) -> None:
    """Dial the front end that made ``session_file``, on a thread of its own. Never raises; once per session."""
    try:
        _thread.start_new_thread(_arrive, (session_file,))
    except RuntimeError:  # no thread can be had: nobody can be told
        return


def _arrive(session_file: str) -> None:
    """On a thread that Python's ``threading`` does not know: whoever asks for its name there leaves an entry in the
    module's table. So the work is done on one that it does know."""
    try:
        thread = _threading().Thread(target=_enter, args=(session_file,), name=THREAD, daemon=True)
    except BaseException:  # the program has something else of that name; to be said
        thread = None
    try:
        if thread is None:
            _enter(session_file)
        else:
            thread.start()
    except BaseException:  # a raw thread that raises writes to the program's stderr
        return


def _threading() -> Any:
    """The module. The thread that imports it first is its main thread (until Python 3.13): where the program has not
    imported it, this one is not to be that."""
    known = "threading" in sys.modules
    with _Finder():
        import threading
    if not known and sys.version_info < (3, 13):
        _make_main(threading, next(reversed(sys._current_frames())))
    return threading


def _make_main(threading: Any, ident: int) -> None:
    """Have ``threading`` take thread ``ident`` for the main one. Python lists threads in order of their making, the
    latest first: ``ident`` is the first one's."""
    main = threading._main_thread
    if main.ident != _thread.get_ident() or ident == main.ident:
        return
    with threading._active_limbo_lock:
        threading._active.pop(main.ident, None)
        main._ident = ident
        main._native_id = posix.getpid()
        threading._active[ident] = main
    with threading._shutdown_locks_lock:
        threading._shutdown_locks.discard(main._tstate_lock)
        main._tstate_lock = _thread.allocate_lock()  # the old one is released as this thread ends
        main._tstate_lock.acquire()
        threading._shutdown_locks.add(main._tstate_lock)


def _enter(session_file: str) -> None:
    """On "adbg-attach": the front end, then adbg, then the agent. Nothing stays behind where one of them fails."""
    sys.settrace(None)  # of this thread alone: a program that traces its threads (coverage) does not mean this one
    sys.setprofile(None)
    session: dict[str, str] = {}
    # Loading takes Python's lock some thousand times, and beside a busy thread waits that long for it each time: 10 s
    # with Python's 5 ms.
    interval = ours = sys.getswitchinterval()
    with _Finder() as finder:
        try:
            session = _trusted_session(session_file)
            path = session["socket"]
            _connected(path).close()  # it hears from us when all is loaded; where the lock is held, that may be long
            if sys.version_info < OLDEST:
                raise RuntimeError(f"this Python is {sys.version.split()[0]}, adbg needs 3.10 or newer")
            sys.setswitchinterval(min(interval, _INTERVAL))
            ours = sys.getswitchinterval()  # 0.0001 comes back as 9.999999999999999e-05
            finder.serve(session["package_path"], session["engine_path"])
            aside = _aside(session)
            from adbg.engine.agent.arrival import arrive

            arrive(session_file, lambda: _dialled(path), aside)
        except BaseException as error:
            if session:
                _refuse(session, error)
        finally:
            if sys.getswitchinterval() == ours != interval:  # else the program has chosen another one meanwhile
                sys.setswitchinterval(interval)


# ------------------------------------------------------------------ the front end


def _trusted_session(path: str) -> dict[str, str]:
    """Texts of session.json, where nobody but this user could have made it: neither folder, file nor socket is a link
    or another user's, and nobody else may enter the folder or read the file. Raises OSError, ValueError."""
    import os
    import stat

    folder = os.path.dirname(path)
    _check_own(os.lstat(folder), stat.S_ISDIR, folder)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, encoding="utf-8") as file:
        _check_own(os.fstat(fd), stat.S_ISREG, path)
        text = file.read(_LARGEST)
    session = {name: _text_of(text, name) for name in ("socket", "token", "engine_path", "package_path")}
    if not all(session[name] for name in ("socket", "token", "engine_path")):
        raise ValueError(path + " is not a session file")
    session["package_path"] = session["package_path"] or os.path.dirname(session["engine_path"])
    if os.path.dirname(session["socket"]) != folder:
        raise ValueError("the socket does not lie beside " + path)
    _check_own(os.lstat(session["socket"]), stat.S_ISSOCK, session["socket"], 0)
    return session


def _text_of(text: str, name: str) -> str:
    """The string that a flat JSON object, as ``json.dump`` writes it, has under ``name``, "" for none. Inside a string
    every quotation mark has a backslash before it, so this is found nowhere else."""
    from _json import scanstring

    key = f'"{name}": "'
    place = text.find(key)
    found: str = scanstring(text, place + len(key))[0] if place >= 0 else ""
    return found


def _check_own(state: Any, kind: Any, path: str, closed: int = 0o077) -> None:
    if state.st_uid != posix.geteuid() or not kind(state.st_mode) or state.st_mode & closed:
        raise ValueError(path + " is not this user's alone")


def _connected(path: str) -> Any:
    """A ``_socket.socket``. Raises OSError when nobody listens there any more, or it is another user."""
    import _socket

    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(_PATIENCE)
        sock.connect(path)
        peer = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, user, group
        if int.from_bytes(peer[4:8], sys.byteorder) != posix.geteuid():
            raise PermissionError("another user listens at " + path)
    except BaseException:
        sock.close()
        raise
    return sock


def _dialled(path: str) -> sockets.socket:
    """The same for the agent. Raises OSError."""
    import socket

    sock = socket.socket(fileno=_connected(path).detach())
    sock.settimeout(_PATIENCE)
    return sock


def _refuse(session: dict[str, str], error: BaseException) -> None:
    """Tell the front end why no agent comes. adbg's own codec may be what could not be loaded."""
    try:
        from _json import encode_basestring_ascii as quoted

        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        for name, file in _stand_ins():
            text += f"; the program's own {name} ({file}) stands in for the standard library's"
        body = f'{{"token": {quoted(session["token"])}, "pid": {posix.getpid()}, "reason": {quoted(text)}}}'
        data = f'{{"seq": 1, "type": "event", "event": "adbg/refused", "body": {body}}}'.encode()
        sock = _connected(session["socket"])
        try:
            sock.sendall(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        finally:
            sock.close()
    except BaseException:  # nobody is there to be told
        return


def _stand_ins() -> Iterator[tuple[str, str]]:
    """(name, file) of modules of the program's that it has imported under a name of the standard library's."""
    import os

    library = os.path.dirname(os.path.realpath(os.__file__)) + "/"
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in sys.stdlib_module_names and isinstance(file, str):
            path = os.path.realpath(file)
            if not path.startswith(library) or "/site-packages/" in path:
                yield name, file


# ------------------------------------------------------------------ adbg, by its files


class _Finder:
    """At ``sys.meta_path[0]`` while adbg is loaded (``with``), for this thread alone. It finds adbg by its folders, and
    the standard library in its own: a program whose folder has a ``queue.py`` beside it must not have that run by
    adbg."""

    def __init__(self) -> None:
        self._thread = _thread.get_ident()
        self._folders: dict[str, str] = {}
        self._library: Sequence[str] | None = None

    def __enter__(self) -> _Finder:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def serve(self, package_path: str, engine_path: str) -> None:
        self._folders = {"adbg": package_path, _ENGINE: engine_path}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if _thread.get_ident() != self._thread:
            return None
        from _frozen_importlib_external import PathFinder, spec_from_file_location

        folder = self._folders.get(fullname)
        if folder is not None:
            return spec_from_file_location(fullname, folder + "/__init__.py", submodule_search_locations=[folder])
        if path is None and fullname in sys.stdlib_module_names:
            return PathFinder.find_spec(fullname, self._library_path())
        return None

    def _library_path(self) -> Sequence[str]:
        """Where ``os`` came from, and the extension modules beside it, by the interpreter's own word."""
        if self._library is None:
            name = f"{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}"
            folders = [f"{root}/{name}" for root in (sys.base_prefix, sys.base_exec_prefix)]
            folders += [f"{folder}/lib-dynload" for folder in folders]
            self._library = [entry for entry in sys.path if entry in folders] or list(dict.fromkeys(folders))
        return self._library


def _aside(session: dict[str, str]) -> dict[str, Any]:
    """Take out what the program knows as ``adbg``, where that is not this adbg: it gets it back when this one leaves.
    Raises RuntimeError where that one is at work."""
    import os

    wanted = session["package_path"]
    other = sys.modules.get("adbg")
    where = os.path.dirname(os.path.abspath(getattr(other, "__file__", None) or ""))
    if other is None or os.path.realpath(where) == os.path.realpath(wanted):
        return {}
    agents = sys.modules.get("adbg.engine.agent.agent")
    if agents is not None and agents.current() is not None:
        raise RuntimeError(f"another adbg, of {where}, debugs this process already")
    mine = [name for name in list(sys.modules) if name == "adbg" or name.startswith("adbg.")]
    return {name: sys.modules.pop(name) for name in mine}
