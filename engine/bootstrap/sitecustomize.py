"""How adbg gets into a Python process: the interpreter imports this while it starts, on the main thread.

``adbg run`` puts this folder on PYTHONPATH. Python imports the first ``sitecustomize`` it finds, so this one runs the
one that it hides, and leaves ``sys.path``, ``sys.modules`` and the script's imports as they would be without it. In
the launched process it starts the agent; in every other Python that inherits the environment it costs one lookup per
import until a framework comes in. It must parse on Python 3.7 and run on it: a child older than 3.10 runs on without
adbg.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs the 5 ms of importing typing
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# As registered in adbg.engine.backends, which is too heavy to import in every child (a test compares the two).
FRAMEWORKS = ("torch", "paddle")
OLDEST = (3, 10)
# Workers that import a framework and never run the program's backward.
QUIET_MODULES = ("torch._inductor.compile_worker",)
_HERE = os.path.dirname(os.path.abspath(__file__))
_AGAIN = "start the program with `adbg run` to debug it"


def _say(text: str) -> None:
    try:
        print("adbg: " + text, file=sys.__stderr__, flush=True)
    except (OSError, ValueError, AttributeError):
        pass  # no stderr


# ------------------------------------------------------------------ leave no trace


def _leave_path() -> None:
    """Off ``sys.path``; the variable stays for the children."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    sys.path_importer_cache.pop(_HERE, None)


def _run_hidden() -> None:
    """Run the ``sitecustomize`` that Python would have found; afterwards ``sys.modules`` has that one. Raises what it
    raises.
    """
    mine = sys.modules.get(__name__)
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", None) if hasattr(finder, "find_spec") else None
        if spec is None or spec.loader is None:
            continue
        from importlib.util import module_from_spec  # 2 ms, not spent where there is nothing to run

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            if mine is not None:
                sys.modules["sitecustomize"] = mine  # the import system expects one there
            raise
        return
    # As if there were none: ``site`` passes over this error, and the import system takes this module out of
    # ``sys.modules``.
    raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")


def _script_folder() -> str | None:
    """What will be ``sys.path[0]``: this code runs before the interpreter puts it there."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    script: str = (getattr(sys, "argv", None) or [""])[0]
    if script in ("", "-", "-c", "-m"):
        try:
            return os.getcwd()
        except OSError:
            return None  # it was deleted
    if os.path.isdir(script):
        return script
    return os.path.dirname(os.path.realpath(script))


def _has_module(folder: str, name: str) -> bool:
    base = os.path.join(folder, name)
    return os.path.isfile(base + ".py") or os.path.isfile(os.path.join(base, "__init__.py"))


def _give_names_back(before: set[str]) -> None:
    """The agent's own imports must not take names from the script: one with a ``secrets.py`` or an ``adbg.py`` beside
    it gets that file, as it would without adbg. The agent keeps the modules it holds.
    """
    folder = _script_folder()
    if folder is None:
        return
    for name in [name for name in sys.modules if "." not in name and name not in before]:
        if _has_module(folder, name) and not _is_from(sys.modules[name], folder):
            del sys.modules[name]


def _is_from(module: ModuleType, folder: str) -> bool:
    path = os.path.realpath(getattr(module, "__file__", None) or "")
    return os.path.dirname(path) in (os.path.realpath(folder), os.path.join(os.path.realpath(folder), module.__name__))


# ------------------------------------------------------------------ adbg, by its files


def read_session(path: str) -> dict[str, Any]:
    """session.json as plain values (``rendezvous.SessionConfig`` is not importable yet), where nobody but this user
    could have made it. A child may live longer than the session, and another user make a folder of the name that
    ADBG_SESSION has: what that one says is to be run here. Raises OSError, ValueError.
    """
    import json
    import stat

    folder = os.path.dirname(path)
    _check_own(os.lstat(folder), stat.S_ISDIR, folder, 0o077)
    _check_own(os.lstat(path), stat.S_ISREG, path, 0o077)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd) as file:
        _check_own(os.fstat(fd), stat.S_ISREG, path, 0o077)
        session = json.load(file)
    if not isinstance(session, dict) or not session.get("engine_path"):
        raise ValueError(path + " is not a session file")
    socket = str(session.get("socket") or "")
    if os.path.dirname(socket) != folder:
        raise PermissionError(f"the socket that {path} names does not lie beside it: not used; {_AGAIN}")
    try:
        state = os.lstat(socket)
    except FileNotFoundError:
        return session  # the front end is gone: the agent says so
    _check_own(state, stat.S_ISSOCK, socket, 0)
    return session


def _check_own(state: os.stat_result, kind: Any, path: str, closed: int) -> None:
    if state.st_uid != os.geteuid() or not kind(state.st_mode) or state.st_mode & closed:
        raise PermissionError(f"{path} is not what adbg made for this user alone: not used; {_AGAIN}")


def load_adbg(package_path: str, engine_path: str) -> None:
    """Put ``adbg`` and ``adbg.engine`` into ``sys.modules`` from their folders, whether or not this Python has adbg
    installed: the agent must be the front end's own version.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    for name, folder in (("adbg", package_path), ("adbg.engine", engine_path)):
        loaded = sys.modules.get(name)
        if loaded is not None and os.path.dirname(os.path.abspath(getattr(loaded, "__file__", None) or "")) == folder:
            continue
        init = os.path.join(folder, "__init__.py")
        spec = spec_from_file_location(name, init, submodule_search_locations=[folder])
        if spec is None or spec.loader is None:
            raise ImportError("cannot load " + init)
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        if name == "adbg.engine":
            sys.modules["adbg"].engine = module  # type: ignore[attr-defined]


def _start_agent(session_path: str, main: bool) -> None:
    session = read_session(session_path)
    load_adbg(session.get("package_path") or os.path.dirname(session["engine_path"]), session["engine_path"])
    from pathlib import Path

    from adbg.engine.agent import agent
    from adbg.engine.protocol.rendezvous import read_config

    agent.start(read_config(Path(session_path)), main=main)


# ------------------------------------------------------------------ children


class ChildFinder:
    """At ``sys.meta_path[0]`` of a child: a tuple lookup per import, until a framework or ``adbg`` itself is asked
    for.
    """

    def __init__(self, session_path: str) -> None:
        self._session_path = session_path
        self._pid = os.getpid()
        self._watcher: Any = None
        self._lock = _thread.allocate_lock()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname == "adbg":
            return self._adbg_spec()
        if fullname not in FRAMEWORKS:
            return None
        try:
            with self._lock:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._watcher = self._watch()
        except Exception as error:  # nothing of adbg's may break the program's import
            _say(f"{fullname} runs undebugged in process {os.getpid()}: {type(error).__name__}: {error}")
        return None if self._watcher is None else self._watcher.find_spec(fullname, path, target)

    def _watch(self) -> Any:
        if not os.path.exists(self._session_path):
            return None  # the front end is gone: no debugger is needed
        session = read_session(self._session_path)
        before = set(sys.modules)
        load_adbg(session.get("package_path") or os.path.dirname(session["engine_path"]), session["engine_path"])
        from adbg.engine.agent import import_watch as importwatch

        _give_names_back(before)
        importwatch.watch(dict.fromkeys(FRAMEWORKS, self._imported))
        return sys.meta_path[0]

    def _imported(self) -> None:
        if _is_forkserver() and os.getpid() == self._pid:
            # It only lends its imports to the processes forked from it; an agent's threads would not survive the fork.
            os.register_at_fork(after_in_child=self._start)
        else:
            self._start()

    def _start(self) -> None:
        try:
            _start_agent(self._session_path, False)
        except Exception as error:  # the program runs on
            _say(f"process {os.getpid()} runs undebugged: {type(error).__name__}: {error}")

    def _adbg_spec(self) -> Any:
        """``import adbg`` in a child gives the running debugger's own, if the script has no adbg.py beside it."""
        try:
            if any(_has_module(entry or ".", "adbg") for entry in sys.path[:1]):
                return None
            from importlib.util import spec_from_file_location

            session = read_session(self._session_path)
            folder = session.get("package_path") or os.path.dirname(session["engine_path"])
            init = os.path.join(folder, "__init__.py")
            return spec_from_file_location("adbg", init, submodule_search_locations=[folder])
        except (OSError, ValueError):
            return None


def _is_forkserver() -> bool:
    return any("multiprocessing.forkserver" in word for word in _original_arguments()[:4])


def _is_quiet() -> bool:
    words = _original_arguments()
    for place, word in enumerate(words[1:4], 1):
        if word == "-m" and words[place + 1 : place + 2] and words[place + 1] in QUIET_MODULES:
            return True
        if any(os.path.join(*name.split(".")) in word for name in QUIET_MODULES):
            return True
    return False


def _original_arguments() -> list[str]:
    return list(getattr(sys, "orig_argv", None) or ())


# ------------------------------------------------------------------ entry


def _enter() -> None:
    _leave_path()
    session_path = os.environ.get("ADBG_SESSION", "")
    main = os.environ.pop("ADBG_MAIN", "") == "1"
    failure = None
    try:
        _run_hidden()
    except Exception as error:  # raised again below: Python reports it as it does without adbg
        failure = error
    if session_path and sys.version_info >= OLDEST:
        if main:
            _enter_main(session_path)
        elif os.path.exists(session_path) and not _is_quiet():
            sys.meta_path.insert(0, ChildFinder(session_path))
    elif main and session_path:
        _say(f"this Python is {sys.version.split()[0]}, adbg needs 3.10 or newer: the script runs undebugged")
    if failure is not None:
        raise failure


def _enter_main(session_path: str) -> None:
    before = set(sys.modules)
    try:
        _start_agent(session_path, True)
    except Exception as error:  # the script runs on
        _say(f"the script runs undebugged: {type(error).__name__}: {error}")
    _give_names_back(before)


if __name__ == "sitecustomize":  # not when a tool reads it by its path
    _enter()
