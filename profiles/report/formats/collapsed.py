"""Collapsed stacks, one a line: ``outermost;…;innermost COUNT``, as flamegraph.pl, py-spy's ``raw`` and google-pprof
write them.

A frame is a name, ``name (file:line)`` (py-spy) or ``name (file)``; the file of a native one is a library.
"""

from __future__ import annotations

import re
from pathlib import Path

from adbg.profiles.report.formats.problem import damaged
from adbg.profiles.report.model import DEEPEST, NATIVE, NODE, PYTHON, SAMPLES, SECONDS, Builder, Frame, Profile

_KIND = "file of collapsed stacks"
_WEIGHT = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_THREAD = re.compile(r"thread \((?P<id>[^)]*)\)(?:: \"?(?P<name>[^\"]*)\"?)?$|^thread (?P<other>\S.*)$", re.IGNORECASE)
_LIBRARY = re.compile(r"(^|/)[^/]*\.so(\.[\d.]+)?$|\.pyd$|\.dylib$|\.dll$")
_SOURCE = re.compile(r"\.(pyx|pxd|c|cc|cpp|cxx|cu|cuh|h|hpp|rs|inc|S)$")
_ADDRESS = re.compile(r"0x[0-9a-f]+$")
_MICRO = 1e6  # whole microseconds: tools read whole numbers only


def is_collapsed(head: str) -> bool:
    """By its first lines, all that are whole."""
    found = [_split(line) for line in head.splitlines()[:20] if line.strip()]
    return any(line and line[0] for line in found) and all(found)


def _split(line: str) -> tuple[str, str] | None:
    """(stack, weight) of a line; None for another. Takes the time of one look at it, however many blanks it has."""
    whole = line.rstrip()
    weight = whole.rsplit(None, 1)[-1] if whole else ""
    stack = whole[: len(whole) - len(weight)]
    return (stack.strip(), weight) if stack and _WEIGHT.fullmatch(weight) else None


def read(path: Path) -> Profile:
    builder = Builder()
    known: dict[str, Frame] = {}
    text = path.read_text("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = _split(line)
        if found is None:
            raise damaged(path, _KIND, f"line {number} is not `frame;frame;… COUNT`")
        # py-spy writes no frames for a thread that is in none: its weight counts
        parts = found[0].split(";") if found[0] else []
        thread, threads = "", 0
        while threads < len(parts) and (name := _THREAD.match(parts[threads])):  # "process N" stays a frame
            thread = name["name"] or name["id"] or name["other"] or parts[threads]
            threads += 1
        stack = []
        for part in parts[threads : threads + DEEPEST]:
            frame = known.get(part)
            if frame is None:
                frame = known[part] = frame_of(part)
            stack.append(builder.frame(frame))
        builder.add(stack, float(found[1]), thread)
    return Profile(builder.frames, builder.samples, SAMPLES, meta={"format": "collapsed"})


def frame_of(text: str) -> Frame:
    """The frame that ``name (file:line)`` stands for."""
    text = text.strip()
    for mark in ("_[k]", "_[j]", "_[i]"):  # flamegraph.pl's marks for kernel, JIT and inlined code
        text = text.removesuffix(mark)
    name, file, line = _parts(text)
    if _ADDRESS.match(name) and _LIBRARY.search(file):  # of a function without a symbol: which one is not known
        return Frame(f"{file.rpartition('/')[2]} (no symbol)", "", 0, NATIVE, file)
    if not file:
        return Frame(text, side=NATIVE if "::" in text or text.startswith(("_Z", "0x")) else PYTHON)
    if file == "node" or file.startswith("node "):
        return Frame(name, side=NODE, module=file[5:], line=line)
    if _LIBRARY.search(file):
        return Frame(name, "", line, NATIVE, file)
    return Frame(name, file, line, NATIVE if _SOURCE.search(file) else PYTHON)


def _parts(text: str) -> tuple[str, str, int]:
    """(name, file, line). A native name has parentheses of its own: the last one, after a blank, is the place."""
    if not text.endswith(")"):
        return text, "", 0
    depth = 0
    for at in range(len(text) - 1, 0, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            break
    if depth or text[at - 1] != " " or not text[: at - 1].strip():
        return text, "", 0
    inside = text[at + 1 : -1]
    file, _, line = inside.rpartition(":")
    return (text[: at - 1], file, int(line)) if file and line.isdigit() else (text[: at - 1], inside, 0)


def text_of(frame: Frame) -> str:
    """The other way; no ";" and no line end."""
    if frame.side == NODE:
        text = f"{frame.name} (node {frame.module})" if frame.module else f"{frame.name} (node)"
    elif place := frame.file or frame.module:
        text = f"{frame.name} ({place}:{frame.line})" if frame.line else f"{frame.name} ({place})"
    else:
        text = frame.name
    return text.replace(";", ",").replace("\n", " ")


def write(profile: Profile, path: Path) -> None:
    """Weights are whole numbers: samples (of a profile in seconds too, where their period is known), bytes, or else
    microseconds."""
    texts = [text_of(frame) for frame in profile.frames]
    scale = (1 / profile.period if profile.period > 0 else _MICRO) if profile.unit == SECONDS else 1.0
    named = len({sample.thread for sample in profile.samples}) > 1
    with path.open("w", encoding="utf-8") as file:
        for stack, weight, thread in profile.samples:
            whole = round(weight * scale)
            words = ([f'thread ({thread}): "{thread}"'] if named and thread else []) + [texts[index] for index in stack]
            if whole > 0 and words:
                file.write(f"{';'.join(words)} {whole}\n")
