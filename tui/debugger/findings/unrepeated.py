"""What may make two runs of a script differ, read from its source: generators that nothing seeds, clocks, and sets
whose order is another one in each process."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.places import parsed
from adbg.engine.protocol.messages import Cause

_MOST_FILES = 50
_SEEDS = {"seed", "manual_seed", "manual_seed_all", "seed_everything", "set_seed", "fix_seed", "seed_all"}
_OWN = {"default_rng", "RandomState", "Random", "SystemRandom"}  # generators of their own: seeded by an argument
_FRAMEWORK = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal", "uniform",
}  # fmt: skip
_CLOCKS = {"time.time", "time.time_ns", "time.perf_counter", "time.monotonic", "uuid.uuid4", "uuid.uuid1", "os.urandom"}


@dataclass(frozen=True, slots=True)
class Source:
    """``what``: in words. ``sure``: a generator or a clock; a set is in order often enough."""

    what: str
    cause: Cause
    sure: bool


def sources(files: Iterable[str]) -> list[Source]:
    """Of these files, and of the modules beside them that they import; in the order of files and lines, one a line."""
    trees = dict(_trees(files))
    calls = [(file, node, _dotted(node.func)) for file, tree in trees.items() for node in _of(tree, ast.Call)]
    seeds = (name for _, node, name in calls if name.rpartition(".")[2] in _SEEDS and (node.args or node.keywords))
    seeded = {_family(name) for name in seeds}
    found: dict[tuple[str, int], Source] = {}
    for file, node, name in calls:
        what = _call(node, name, seeded)
        if what:
            found.setdefault((file, node.lineno), Source(what, _cause(file, node), True))
    for file, tree in trees.items():
        for made in _of(tree, ast.Set, ast.SetComp):
            words = "a set: its order is another one in each process"
            found.setdefault((file, made.lineno), Source(words, _cause(file, made), False))
    return [found[key] for key in sorted(found)]


def likely(files: Iterable[str]) -> Source | None:
    """The only one there is; a set only where there is nothing else."""
    every = sources(files)
    some = [each for each in every if each.sure] or every
    return some[0] if len(some) == 1 else None


def _call(node: ast.Call, name: str, seeded: set[str]) -> str:
    family, last = _family(name), name.rpartition(".")[2]
    if name in _CLOCKS:
        return f"{name}()"
    if last in _OWN and family in ("numpy", "python"):
        return f"{name}() without a seed" if not node.args and not node.keywords else ""
    if last in _SEEDS or not family or family in seeded or "any" in seeded:
        return ""
    if family == "framework" and last not in _FRAMEWORK:
        return ""
    return f"{name}(), and nothing seeds {'that generator' if family == 'framework' else name.rpartition('.')[0]}"


def _family(name: str) -> str:
    """Whose generator a dotted name is about; "any" of a helper that seeds all."""
    parts = name.split(".")
    if parts[0] in ("np", "numpy") and (parts[1:2] == ["random"] or parts[-1] in _OWN):
        return "numpy"
    if parts[0] == "random" and len(parts) == 2:
        return "python"
    if parts[0] in ("torch", "paddle", "pt"):
        return "framework"
    return "any" if parts[-1] in _SEEDS and len(parts) == 1 else ""


def _trees(files: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    """(file, its tree), the modules beside a file that it imports too."""
    work, seen = list(dict.fromkeys(files)), set[str]()
    while work and len(seen) < _MOST_FILES:
        file = work.pop(0)
        if file in seen:
            continue
        seen.add(file)
        try:
            with open(file, encoding="utf-8") as source:
                tree = parsed(source.read())
        except (OSError, SyntaxError, ValueError):
            continue
        yield file, tree
        for node in _of(tree, ast.Import, ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            beside = (os.path.join(os.path.dirname(file), *name.split(".")) + ".py" for name in names if name)
            work += [path for path in beside if os.path.isfile(path)]


def _of(tree: ast.Module, *kinds: type[ast.AST]) -> Iterator[Any]:
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


def _dotted(node: ast.expr) -> str:
    """ "np.random.rand"; "" of what is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        whole = _dotted(node.value)
        return f"{whole}.{node.attr}" if whole else ""
    return ""


def _cause(file: str, node: ast.expr) -> Cause:
    with open(file, encoding="utf-8") as source:
        lines = source.read().splitlines()
    return Cause(file, node.lineno, "", lines[node.lineno - 1].strip() if node.lineno <= len(lines) else "")
