"""Which node names, module paths and files a pattern matches, and short names of ops. Pure functions, any thread.

Frameworks name the backward of one op differently: torch "BmmBackward0" (a custom Function Outer: "OuterBackward"),
Paddle "matmul2GradNode", "MatmulGradNode" or "GradNodePyLayer_Outer". Users type the short op name and mean
all of them.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

FRAMEWORKS = ("torch", "paddle", "mindspore")  # that a user may expect here, with or without a backend

_TORCH = re.compile(r"(?P<plain>(?P<op>.+?)Backward)\d*\Z")
_PADDLE = re.compile(r"(?P<op>.+?)(?:_)?GradNode(?:Final)?\Z")  # Final: written by hand (conv2d, add_n)
_PYLAYER = "GradNodePyLayer_"
_NUMBERED = re.compile(r"(?P<op>[a-z][a-z0-9_]*?)\d+(?:GradNode)?\Z")
_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]{4,16}")
_GLOB = re.compile(r"[*?\[]")


@functools.lru_cache(maxsize=4096)
def short_op(name: str) -> str:
    """The op of a framework name: "Bmm" of "BmmBackward0", "matmul2" of "matmul2GradNode", "Outer" of
    "GradNodePyLayer_Outer"; any other name without its C++ namespace."""
    plain = _plain(name)
    if plain.startswith(_PYLAYER):
        return plain[len(_PYLAYER) :]
    match = _PADDLE.match(plain) or _TORCH.match(plain)
    return match["op"] if match else plain


def is_address(text: str) -> bool:
    """Whether ``text`` names a node by where it is in memory ("0x55d0c4a3e2b0"), as Paddle's log does."""
    return _ADDRESS.fullmatch(text) is not None


def _plain(name: str) -> str:
    return name.rpartition("::")[2].removeprefix("struct ").removeprefix("class ")


@functools.lru_cache(maxsize=4096)
def short_names(name: str) -> tuple[str, ...]:
    """The names by which a user may call a framework name: itself first ("BmmBackward0", "BmmBackward", "Bmm")."""
    plain, op = _plain(name), short_op(name)
    names = [name, plain]
    if match := _TORCH.match(plain):
        names.append(match["plain"])
    if plain.endswith("GradNodeFinal"):
        names.append(plain.removesuffix("Final"))
    names.append(op)
    if _PADDLE.match(plain) and not plain.startswith(_PYLAYER):
        names.append(op.rstrip("0123456789"))  # matmul2GradNode is the second matmul: "matmul2" and "matmul"
    return tuple(dict.fromkeys(n for n in names if n))


@functools.lru_cache(maxsize=4096)
def _candidates(name: str, unique_name: str) -> tuple[str, ...]:
    names = short_names(name)
    base, mark, ordinal = unique_name.rpartition("#")
    if mark:
        names += tuple(f"{short}#{ordinal}" for short in short_names(base))
    elif unique_name and unique_name != name:
        names += short_names(unique_name)
    return names


@functools.lru_cache(maxsize=4096)
def name_matches(pattern: str, name: str, unique_name: str = "", fold: bool = False) -> bool:
    """The one place that decides whether a name pattern (literal or glob) matches a node. ``fold``: ignore case.

    ``unique_name`` "" asks whether a node of that framework name *can* match: an ordinal in the pattern ("#3", Paddle's
    "matmul2") is left aside.
    """
    if not unique_name:
        pattern = pattern.partition("#")[0]
        made = name.removesuffix("Final")
        numbered = _NUMBERED.match(pattern) if made.endswith("GradNode") else None
        if numbered and numbered["op"].replace("_", "").lower() == made.removesuffix("GradNode").lower():
            return True  # "matmul2" is a unique name of a MatmulGradNode
    candidates = _candidates(name, unique_name)
    if fold:
        pattern = pattern.lower()
        candidates = tuple(c.lower() for c in candidates)
    if pattern in candidates:
        return True
    return bool(_GLOB.search(pattern)) and any(fnmatchcase(candidate, pattern) for candidate in candidates)


@functools.lru_cache(maxsize=4096)
def path_matches(pattern: str, path: str) -> bool:
    """A dotted path (module, parameter) or one that encloses it matches: "layers.3" takes "layers.3.attn.q"."""
    while path:
        if path == pattern or fnmatchcase(path, pattern):
            return True
        path = path.rpartition(".")[0]
    return False


@functools.lru_cache(maxsize=4096)
def file_matches(pattern: str, file: str) -> bool:
    """``pattern`` is the file's path or ends it, by whole components: "train/model.py" takes "/me/train/model.py"."""
    wanted = [part for part in pattern.replace("\\", "/").split("/") if part not in ("", ".")]
    have = [part for part in file.replace("\\", "/").split("/") if part not in ("", ".")]
    if pattern.startswith("/"):
        return wanted == have
    return bool(wanted) and wanted == have[-len(wanted) :]


def closest_names(wanted: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like ``wanted`` (short forms compared too, case aside), best first; [] when none is like it."""
    target = _GLOB.sub("", wanted.partition("#")[0]).replace("]", "").lower() or wanted.lower()
    # What the * of "Straigt*" stands for is not compared.
    room = len(target) + 1 if _GLOB.search(wanted) and not _GLOB.match(wanted) else None
    scored = []
    for name in dict.fromkeys(names):
        best = max(_likeness(target, short.lower()[:room]) for short in short_names(name))
        if best >= 0.6:
            scored.append((-best, len(name), name))
    return [name for _, _, name in sorted(scored)[:count]]


def _likeness(target: str, name: str) -> float:
    """1 for equal, at least 0.75 where one contains the other, else difflib's ratio."""
    matcher = difflib.SequenceMatcher(None, target, name)
    if len(target) > 2 and (target in name or (len(name) > 2 and name in target)):
        return max(0.75, matcher.ratio())
    return matcher.ratio() if matcher.real_quick_ratio() >= 0.6 else 0.0


_RANKS = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*\Z", re.ASCII)


def ranks_of(text: str) -> tuple[int, ...] | None:
    """ "0,2-3" -> (0, 2, 3); None for anything else."""
    if not _RANKS.match(text):
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            return None
        found.update(numbers)
    return tuple(sorted(found))


def ranks_text(ranks: Iterable[int]) -> str:
    """(0, 2, 3, 4) -> "0,2-4"; what ``ranks_of`` reads."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in parts)
