"""What a file is, by its content, and the module that reads or writes it. Names decide only how a file is written."""

from __future__ import annotations

import gzip
import json
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

from adbg.profiles.report.formats import chrome, collapsed, gperftools, nodes, pprof, pstats, speedscope
from adbg.profiles.report.formats.problem import FormatError, damaged
from adbg.profiles.report.formats.soundness import printable, printable_meta, sound
from adbg.profiles.report.model import Profile
from adbg.profiles.report.node_groups import with_stacks

_HEAD = 64 << 10
_LONGEST = 16 << 20  # bytes of a first line: one stack of py-spy's, 900 calls deep, is 125 KB

# ending: the module that writes it; the longest that fits
WRITERS = {
    ".pstats": "pstats",
    ".collapsed": "collapsed",
    ".folded": "collapsed",
    ".collapsed.txt": "collapsed",
    ".speedscope.json": "speedscope",
    ".speedscope": "speedscope",
    ".trace.json": "chrome",
    ".pb.gz": "pprof",
    ".pprof": "pprof",
    ".pb": "pprof",
    ".svg": "svg",
    ".html": "html",
}
KINDS = "pstats, gperftools .prof, collapsed stacks, speedscope, Chrome trace, pprof, and adbg's own folders"


def kind_of(path: Path) -> str | None:
    """The name of the module that reads it; None for anything else. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if len(head) == _HEAD and b"\n" not in head and b"\0" not in head and head.lstrip()[:1] not in (b"{", b"["):
            head += file.readline(_LONGEST)
    if head[:2] == b"\x1f\x8b":
        head = _unzipped(path)
        if pprof.is_pprof(head):
            return "pprof"
    if pstats.is_pstats(head):
        return "pstats"
    if gperftools.is_gperftools(head):
        return "gperftools"
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    if text.lstrip()[:1] in ("{", "["):
        return _kind_of_json(text.lstrip())
    if b"\0" not in head and collapsed.is_collapsed(text[: text.rfind("\n") + 1] or text):
        return "collapsed"
    return "pprof" if pprof.is_pprof(head) else None


def _kind_of_json(text: str) -> str | None:
    for module in (nodes, speedscope, chrome):
        if module.is_kind(text):
            return module.__name__.rpartition(".")[2]
    return None


def _unzipped(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return b""


def artifact_of(folder: Path) -> Path | None:
    """The tool's file of an artifact's folder, which its meta.json names; None for any other folder."""
    meta = _meta(folder)
    name = str(meta.get("file") or "")
    return folder / name if name and os.path.basename(name) == name else None


def _meta(folder: Path) -> dict[str, object]:
    """{} where there is none."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        known = isinstance(meta, dict) and "profiler" in meta
        return printable_meta(meta) if known else {}  # type: ignore[return-value]
    except (OSError, ValueError, RecursionError):  # nested a thousand deep
        return {}


def is_profile(path: Path) -> bool:
    """Whether ``read`` would know it; never raises."""
    try:
        if path.is_dir():
            return artifact_of(path) is not None
        return path.is_file() and kind_of(path) is not None
    except OSError:
        return False


def read(path: Path) -> Profile:
    """Raises FormatError."""
    if path.is_dir():
        inside = artifact_of(path)
        if inside is None:
            raise FormatError(f"{path} is a folder without a profile", "name a file, or a folder <run>/profiles/NNN-…")
        path = inside
    # An artifact's own words say more than its tool's file: which profiler, which region, whether it is whole
    meta = _meta(path.parent) if artifact_of(path.parent) == path else {}
    profile = _read(path, str(meta.get("format") or ""))
    return replace(profile, meta={**profile.meta, **meta}) if meta else profile


def _read(path: Path, told: str = "") -> Profile:
    """``told``: the format that adbg wrote beside it, where its content says none."""
    try:
        if path.exists() and not path.is_file():
            raise FormatError(f"{path} is no profile: it is not a file", f"adbg reads {KINDS}")
        kind = kind_of(path)
        if kind is None and told in _READERS and path.stat().st_size:
            kind = told
        if kind is None:
            why = "it is empty" if path.stat().st_size == 0 else "none of the known formats"
            raise FormatError(f"{path} is no profile: {why}", f"adbg reads {KINDS}")
        reader: Callable[[Path], Profile] = _module(kind).read
        return sound(reader(path))
    except FormatError:
        raise
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror or error}") from None
    except (RecursionError, MemoryError) as error:
        raise damaged(path, "profile", type(error).__name__) from None
    except _NOT_AS_WRITTEN as error:  # a reader's own words come first: these are of what it did not expect
        raise damaged(path, "profile", printable(f"{error or type(error).__name__}")) from None


_READERS = ("pstats", "gperftools", "collapsed", "chrome", "nodes")  # formats of adbg's own artifacts
_NOT_AS_WRITTEN = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, struct.error)


def write(profile: Profile, path: Path) -> None:
    """In the format that the file's name ends with. Raises FormatError."""
    name = path.name.lower()
    endings = [ending for ending in WRITERS if name.endswith(ending)]
    if not endings:
        raise FormatError(f"{path}: which format?", "end the name in one of " + " ".join(WRITERS))
    writer: Callable[[Profile, Path], None] = _module(WRITERS[max(endings, key=len)]).write
    try:
        writer(with_stacks(profile), path)
    except OSError as error:
        raise FormatError(f"cannot write {path}: {error.strerror or error}", "choose another folder") from None


def _module(name: str) -> ModuleType:
    return import_module(f"adbg.profiles.report.formats.{name}")
