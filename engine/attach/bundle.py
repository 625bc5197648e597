"""Everything that the agent is loaded from, in one file beside the session's.

Python may give its lock up at every file operation, and an import has about twelve of them. Beside a thread that keeps
the lock in C calls of a second, an attach took 40 s without this and takes 12 with it (and more than 100 without
``bootstrap/attach._Turns``). It also spares the process the compiling: 0.2 of 0.45 s where no ``.pyc`` lies there.

What is in it is what the import system would find at the same paths; where anything differs (another version of Python,
another installation of it), ``bootstrap/attach`` does not use it, and imports are slow but right.
"""

from __future__ import annotations

import marshal
import os
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path

from adbg.engine.protocol.rendezvous import CODE

ENGINE = Path(__file__).resolve().parents[1]
_FRONT = ("attach", "bootstrap", "hang", "launch")  # rooms of the engine that no agent loads

#: Of the standard library, what an agent imports into a process that has imported nothing: a test compares.
LIBRARY = frozenset((
    "_ast", "_bisect", "_blake2", "_bz2", "_compression", "_ctypes", "_datetime", "_hashlib", "_heapq", "_json",
    "_locale", "_lzma", "_opcode", "_opcode_metadata", "_posixsubprocess", "_queue", "_random", "_sha2", "_sha512",
    "_socket",
    "_struct", "_symtable", "_typing", "_weakrefset", "array", "ast", "atexit", "base64", "binascii", "bisect",
    "bz2", "collections.abc", "contextlib", "copy", "ctypes", "ctypes._endian", "dataclasses", "datetime", "difflib",
    "dis",
    "faulthandler", "fcntl", "hashlib", "heapq", "hmac", "html", "html.entities", "inspect", "json",
    "json.decoder", "json.encoder", "json.scanner", "linecache", "locale", "lzma", "math", "mmap", "opcode",
    "platform", "queue", "random", "resource", "secrets", "select", "selectors", "shutil", "signal", "socket",
    "struct", "subprocess", "symtable", "sysconfig", "tempfile", "threading", "token", "tokenize", "typing",
    "weakref", "zlib",
))  # fmt: skip


def write(session_file: Path) -> None:
    """Beside ``session_file``, unless it is there; readable by its owner only. Raises OSError."""
    path = session_file.with_name(CODE)
    if path.exists():
        return
    import adbg

    package = Path(adbg.__file__ or "").resolve()
    modules = {"adbg": (str(package), True, _code("adbg", package))}
    modules.update((name, (str(file), file.name == "__init__.py", _code(name, file))) for name, file in _engine())
    library = {name: found for name in LIBRARY if (found := _of_library(name)) is not None}
    data = MAGIC_NUMBER + marshal.dumps((modules, sys.version, os.__file__, library))
    unfinished = path.with_name(f"{CODE}-{threading.get_ident()}")  # the ranks of a job are entered side by side
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _engine() -> Iterator[tuple[str, Path]]:
    for file in sorted(ENGINE.rglob("*.py")):
        parts = file.relative_to(ENGINE).with_suffix("").parts
        if parts[0] not in _FRONT:
            yield ".".join(("adbg", "engine", *(part for part in parts if part != "__init__"))), file


def _code(name: str, file: Path) -> bytes:
    return marshal.dumps(SourceFileLoader(name, str(file)).get_code(name))


def _of_library(name: str) -> tuple[str, bool, bytes | None] | None:
    """None: it is built in, or not of this version."""
    spec: ModuleSpec | None
    try:
        spec = find_spec(name)
    except ImportError:
        return None
    if spec is not None and spec.name != name:  # collections.abc puts another module in its own place (3.13)
        parent = sys.modules[name.rpartition(".")[0]]
        spec = PathFinder.find_spec(name, list(parent.__path__))
    if spec is None or spec.origin is None:
        return None
    package = spec.submodule_search_locations is not None
    if isinstance(spec.loader, SourceFileLoader):
        return spec.origin, package, _code(name, Path(spec.origin))
    return (spec.origin, package, None) if isinstance(spec.loader, ExtensionFileLoader) else None
