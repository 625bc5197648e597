"""How adbg gets into a Python process that runs already: something has it run ``begin`` (``engine/attach``).

``begin`` only starts a thread: it may be called on any thread, between any two instructions of the program, which is
not held. The thread connects to the front end first; only then is adbg loaded, by the paths in session.json. Nothing of
the program's environment, folder or ``sys.path`` is asked. Where anything goes wrong the front end hears why.

This file is run by itself, by its path, before adbg is there. Until the front end can be told that something is wrong
it uses modules in C alone (``_socket``, ``_json``), and those that every interpreter has imported at its start.
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
_LARGEST = 64 << 20  # bytes of a file of the session: its code has 4 MB
_CODE = "attach.code"  # protocol.rendezvous.CODE
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
    sys.settrace(None)  # of this thread alone: a program that traces its threads (coverage) does not mean this one
    sys.setprofile(None)
    gate = _Gate.of_process()
    gate.close()
    entry = _Entry(gate)
    try:
        entry.look(session_file)
        thread = entry.threading().Thread(target=entry.enter, args=(session_file,), name=THREAD, daemon=True)
    except BaseException as error:
        if entry.session:
            _refuse(entry.session, error)
        entry.leave()
        return
    try:
        thread.start()
    except BaseException:  # a raw thread that raises writes to the program's stderr
        entry.leave()


class _Turns:
    """How long a thread of this program keeps Python's lock when another one wants it: as long as the others keep it,
    while adbg is loaded.

    That takes 0.3 s of Python and some file operations; after each of these the lock has to be had again. Beside a busy
    Python thread they count: 10 s with Python's 5 ms. Beside one that keeps the lock in C calls, whatever anybody
    wants, each turn of ours is followed by a whole call: 120 s beside calls of 1 s with those 5 ms."""

    SHORT = 0.0001  # seconds
    LONG = 0.25
    LOOK = 0.005  # seconds: a waiting thread gets its turn within

    def __init__(self) -> None:
        self._before = sys.getswitchinterval()
        self._set(min(self._before, self.SHORT))

    def _set(self, seconds: float) -> None:
        sys.setswitchinterval(seconds)
        self._ours = sys.getswitchinterval()  # 0.0001 comes back as 9.999999999999999e-05

    def choose(self) -> None:
        """As the others show: a gap between two looks at the clock is a turn of theirs."""
        from time import monotonic

        longest = self.SHORT
        begun = last = monotonic()
        while last - begun < self.LOOK:
            now = monotonic()
            if now - last > longest:
                longest = now - last
            last = now
        self._set(min(longest, self.LONG))

    def leave(self) -> None:
        if sys.getswitchinterval() == self._ours != self._before:  # else the program has chosen another one meanwhile
            sys.setswitchinterval(self._before)


class _Entry:
    """Two threads do it, one after the other. ``session`` is empty until the front end can be told of an error."""

    def __init__(self, gate: _Gate) -> None:
        self.session: dict[str, str] = {}
        self._gate, self._turns, self._finder = gate, _Turns(), _Finder()
        gate.entry = self

    def look(self, session_file: str) -> None:
        """Raises OSError, ValueError: nobody is there, or it may be somebody else."""
        session = _trusted_session(session_file)
        _connected(session["socket"]).close()  # it hears from us when all is loaded: where the lock is held, late
        self.session = session
        self._turns.choose()
        if sys.version_info < OLDEST:
            raise RuntimeError(f"this Python is {sys.version.split()[0]}, adbg needs 3.10 or newer")
        self._finder.serve(session)

    def threading(self) -> Any:
        """The module. Until Python 3.13 the thread that imports it first is its main thread: not to be this one."""
        known = "threading" in sys.modules
        with self._finder:
            import threading
        if not known and sys.version_info < (3, 13):
            _make_main(threading, next(reversed(sys._current_frames())))
        return threading

    def enter(self, session_file: str) -> None:
        """On "adbg-attach": adbg, then the agent. Nothing stays behind where one of them fails."""
        sys.settrace(None)
        sys.setprofile(None)
        try:
            with self._finder:
                aside = _aside(self.session)
                from adbg.engine.agent.arrival import arrive

                path = self.session["socket"]
                arrive(session_file, lambda: _dialled(path), aside)
        except BaseException as error:
            _refuse(self.session, error)
        finally:
            self.leave()

    def leave(self) -> None:
        self._turns.leave()
        self._gate.open()

    def forked(self) -> None:
        """In a child that could not wait for this: nobody loads anything there."""
        self._turns.leave()
        self._finder.__exit__()


class _Gate:
    """A fork waits while adbg is loaded: a lock of a module that another thread imports is never released in the child
    (7 of 147 stood at an import for ever). One for the life of the process: Python takes no callback back."""

    NAME = "_adbg_attach"
    PATIENCE = 10.0  # seconds: what is loaded may need a lock that the forking thread has

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._forking: set[int] = set()
        self.entry: _Entry | None = None

    @classmethod
    def of_process(cls) -> Any:
        kept = sys.modules.get(cls.NAME)
        if kept is None:
            kept = type(sys)(cls.NAME)
            gate = kept.gate = cls()  # type: ignore[attr-defined]
            posix.register_at_fork(before=gate._before, after_in_parent=gate._in_parent, after_in_child=gate._in_child)
            sys.modules[cls.NAME] = kept
        return kept.gate

    def close(self) -> None:
        """Before loading; another one that loads, or a fork that is under way, is waited for."""
        self._lock.acquire()

    def open(self) -> None:
        self.entry = None
        self._lock.release()

    def _before(self) -> None:
        if self._lock.acquire(timeout=self.PATIENCE):
            self._forking.add(_thread.get_ident())

    def _in_parent(self) -> None:
        if _thread.get_ident() in self._forking:
            self._forking.remove(_thread.get_ident())
            self._lock.release()

    def _in_child(self) -> None:
        self._lock = _thread.allocate_lock()
        self._forking.clear()
        entry, self.entry = self.entry, None
        if entry is not None:
            entry.forked()


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


def _trusted_session(path: str) -> dict[str, str]:
    """Texts of session.json, where nobody but this user could have made it: neither folder, file nor socket is a link
    or another user's, and nobody else may enter the folder or read the file. Raises OSError, ValueError."""
    import os
    import stat

    folder = os.path.dirname(path)
    _check_own(os.lstat(folder), stat.S_ISDIR, folder)
    text = _own_file(path).decode()
    session = {name: _text_of(text, name) for name in ("socket", "token", "engine_path", "package_path")}
    if not all(session[name] for name in ("socket", "token", "engine_path")):
        raise ValueError(path + " is not a session file")
    session["package_path"] = session["package_path"] or os.path.dirname(session["engine_path"])
    if os.path.dirname(session["socket"]) != folder:
        raise ValueError("the socket does not lie beside " + path)
    _check_own(os.lstat(session["socket"]), stat.S_ISSOCK, session["socket"], 0)
    return session


def _own_file(path: str) -> bytes:
    """With as few operations as can be (``_Turns``). Raises OSError, ValueError."""
    import os
    import stat

    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(fd)
        _check_own(state, stat.S_ISREG, path)
        if state.st_size > _LARGEST:
            raise ValueError(path + " is too large")
        data = b""
        while len(data) < state.st_size:
            part = os.read(fd, state.st_size - len(data))
            if not part:
                raise ValueError(path + " is not complete")
            data += part
        return data
    finally:
        os.close(fd)


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

        text = getattr(error, "message", "") or f"{type(error).__name__}: {error}".removesuffix(": ")
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


class _Finder:
    """At ``sys.meta_path[0]`` while adbg is loaded (``with``), for this thread alone. It finds adbg by its folders, and
    the standard library in its own: a program whose folder has a ``queue.py`` beside it must not have that run by
    adbg. What ``engine/attach/bundle.py`` has brought along is not read again."""

    def __init__(self) -> None:
        self._thread = 0
        self._folders: dict[str, str] = {}
        self._library: Sequence[str] | None = None
        self._brought: dict[str, tuple[str, bool, bytes | None]] = {}

    def __enter__(self) -> _Finder:
        self._thread = _thread.get_ident()
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def serve(self, session: dict[str, str]) -> None:
        self._folders = {"adbg": session["package_path"], _ENGINE: session["engine_path"]}
        try:
            self._bring(session["socket"].rpartition("/")[0] + "/" + _CODE)
        except (OSError, ValueError, EOFError, TypeError):
            self._brought = {}  # imports are slow then, and right

    def _bring(self, path: str) -> None:
        """Code of another version of Python is not touched; the standard library's is used where both have the same
        one."""
        import marshal
        import os
        from _frozen_importlib_external import MAGIC_NUMBER

        data = _own_file(path)
        if not data.startswith(MAGIC_NUMBER):
            return
        modules, version, place, library = marshal.loads(memoryview(data)[len(MAGIC_NUMBER) :])
        self._brought = {**library, **modules} if (version, place) == (sys.version, os.__file__) else modules

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if _thread.get_ident() != self._thread:
            return None
        from _frozen_importlib_external import PathFinder, spec_from_file_location

        if fullname in self._brought:
            return self._spec_of(fullname)
        folder = self._folders.get(fullname)
        if folder is not None:
            return spec_from_file_location(fullname, folder + "/__init__.py", submodule_search_locations=[folder])
        if path is None and fullname in sys.stdlib_module_names:
            return PathFinder.find_spec(fullname, self._library_path())
        return None

    def _spec_of(self, fullname: str) -> Any:
        """What ``PathFinder`` would have found; its loader has the code in its hands, once."""
        from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader, spec_from_file_location

        path, package, code = self._brought[fullname]
        if code is None:
            return spec_from_file_location(fullname, path, loader=ExtensionFileLoader(fullname, path))
        loader = SourceFileLoader(fullname, path)
        folders = [path.rpartition("/")[0]] if package else None
        spec = spec_from_file_location(fullname, path, loader=loader, submodule_search_locations=folders)

        def given(_name: str) -> Any:
            import marshal

            del loader.get_code
            return marshal.loads(code)

        loader.get_code = given  # type: ignore[method-assign,assignment]
        return spec

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
