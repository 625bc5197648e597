"""Where in the target the functions and the instructions lie that the injector uses."""

from __future__ import annotations

import contextlib
import os

from adbg.engine.attach import elf
from adbg.engine.attach.injector.machine import Machine
from adbg.engine.attach.injector.page import LIBC, OPTIONAL, PYTHON
from adbg.engine.attach.injector.ptrace import Memory
from adbg.engine.proc import Mapping, Proc

NEEDED = ("Py_IsInitialized", "Py_AddPendingCall", *(name for name in PYTHON if name not in OPTIONAL))
THREADS = ("pthread_create", *LIBC)


class NotThere(Exception):
    """The target lacks what is needed; the text says what."""


def python_functions(process: Proc, maps: list[Mapping]) -> dict[str, int]:
    """Addresses of the interpreter's functions. Raises NotThere, OSError."""
    for mapping in _interpreters(process, maps):
        found = _functions(process, mapping, (*NEEDED, *OPTIONAL))
        if all(name in found for name in NEEDED):
            return found
    raise NotThere(f"no Python interpreter in process {process.pid}")


def python_symbols(process: Proc, maps: list[Mapping], *wanted: str) -> dict[str, int]:
    """The same of other functions, or of any that tells an interpreter; those that there are."""
    found: dict[str, int] = {}
    for mapping in _interpreters(process, maps):
        with contextlib.suppress(NotThere):
            found = _functions(process, mapping, wanted or ("Py_IsInitialized",)) | found
    return found


def _interpreters(process: Proc, maps: list[Mapping]) -> list[Mapping]:
    """What may be one: libpython, or the executable."""
    program = os.readlink(process.folder / "exe")
    files = _first_mappings(maps)
    libraries = [path for path in files if os.path.basename(path).startswith("libpython")]
    return [files[path] for path in (*libraries, program) if path in files]


def libc_functions(process: Proc, maps: list[Mapping]) -> dict[str, int]:
    """Raises NotThere, OSError."""
    found: dict[str, int] = {}
    for path, mapping in _first_mappings(maps).items():
        if os.path.basename(path).startswith(("libc.so", "libc-2", "libpthread")):
            found = _functions(process, mapping, THREADS) | found
    missing = [name for name in THREADS if name not in found]
    if missing:
        raise NotThere(f"no {missing[0]} in process {process.pid}: it has no GNU libc, or is linked statically")
    return found


def _in_vdso(maps: list[Mapping], memory: Memory, wanted: bytes) -> int:
    """The same in the code that the kernel maps into every process; 0 where it is not there either."""
    for mapping in maps:
        if mapping.path == "[vdso]":
            place = memory.read(mapping.start, mapping.end - mapping.start).find(wanted)
            return mapping.start + place if place >= 0 else 0
    return 0


def instructions(process: Proc, maps: list[Mapping], machine: Machine, memory: Memory) -> tuple[int, int]:
    """Where CALL_AND_RETURN and GO_HOME are."""
    found: list[int] = []
    for wanted in (machine.CALL_AND_RETURN, machine.GO_HOME):
        for mapping in maps:
            name = os.path.basename(mapping.path)
            if "x" in mapping.access and name.startswith(("libc.so", "libc-2", "libpthread")):
                length = mapping.end - mapping.start
                place = elf.find_bytes(process.file_of(mapping), wanted, mapping.offset, length)
                if place >= 0:
                    found.append(mapping.start + place - mapping.offset)
                    break
        else:
            place = _in_vdso(maps, memory, wanted)
            if place:
                found.append(place)
                continue
            raise NotThere(f"the libc of process {process.pid} lacks instructions that adbg needs")
    return found[0], found[1]


def _first_mappings(maps: list[Mapping]) -> dict[str, Mapping]:
    """Every mapped file's first byte."""
    found: dict[str, Mapping] = {}
    for mapping in maps:
        if mapping.path.startswith("/") and mapping.offset == 0:
            found.setdefault(mapping.path, mapping)
    return found


def _functions(process: Proc, mapping: Mapping, wanted: tuple[str, ...]) -> dict[str, int]:
    try:
        found = elf.symbols(process.file_of(mapping), wanted)
    except ValueError as error:
        raise NotThere(str(error)) from None
    return {name: mapping.start + value for name, value in found.items()}
