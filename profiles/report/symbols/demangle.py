"""C++ names as people write them: by c++filt, else by the C++ library's own function, else as they are."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

_LONGEST = 4096  # mangled; the demangler is recursive, and what is longer is no name that anybody reads
_ABI_TAGS = re.compile(r"\[abi:\w+\]")


def demangled(names: Sequence[str]) -> dict[str, str]:
    """By mangled names; those that are no C++ names, or that cannot be demangled, are their own."""
    mangled = [name for name in names if name.startswith(("_Z", "__Z")) and len(name) <= _LONGEST]
    plain = _by_tool(mangled) or _by_library(mangled) if mangled else []
    found = {name: name for name in names}
    found.update((name, _ABI_TAGS.sub("", text)) for name, text in zip(mangled, plain) if text)
    return found


def _by_tool(names: Sequence[str]) -> list[str]:
    """One process for all of them: 5,000 names take 0.1 s."""
    tool = shutil.which("c++filt") or shutil.which("llvm-cxxfilt")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool], input="\n".join(names) + "\n", capture_output=True, text=True, timeout=60, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = done.stdout.splitlines()
    return lines if done.returncode == 0 and len(lines) == len(names) else []


def _by_library(names: Sequence[str]) -> list[str]:
    """``__cxa_demangle`` of the C++ run-time library, which is wherever a framework is."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        convert: Any = library.__cxa_demangle
        free: Any = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return []
    convert.restype = ctypes.c_void_p
    convert.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    status = ctypes.c_int()
    plain = []
    for name in names:
        address = convert(name.encode("latin1"), None, None, ctypes.byref(status))
        text = ctypes.string_at(address).decode("utf-8", "replace") if address else ""
        if address:
            free(address)
        plain.append(text)
    return plain
