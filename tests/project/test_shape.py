"""The shape of the tree: small folders, files that can be read in one sitting, no class that is spread over many.

A bound that is broken is a sign to look at, not a law: what stays over one is listed in ``EXCEPTIONS`` with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from support.program import ROOT

FOLDERS = ("adbg", "engine", "profiles", "tui")
MODULES, LINES, METHODS = 17, 430, 60  # per folder, per file, per class with all its bases

# What is over a bound today: how far, and why. A smaller number here is progress, a larger one needs a reason.
EXCEPTIONS: dict[str, tuple[int, str]] = {}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the product, by its path."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in files}


def classes() -> dict[str, tuple[str, ast.ClassDef]]:
    """Every class at the top of a module, by its name, with the module's path."""
    tops = ((path, node) for path, tree in modules().items() for node in tree.body)
    return {node.name: (path, node) for path, node in tops if isinstance(node, ast.ClassDef)}


def methods(node: ast.ClassDef) -> set[str]:
    """Names of the methods that a class itself has a body for."""
    found = (part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {part.name for part in found if "abstractmethod" not in map(ast.unparse, part.decorator_list)}


def whole(node: ast.ClassDef, known: dict[str, tuple[str, ast.ClassDef]]) -> set[str]:
    """The same with those that it inherits from classes of the product."""
    found = methods(node)
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if name in known and known[name][1] is not node:
            found |= whole(known[name][1], known)
    return found


def sizes() -> Iterator[tuple[str, int, int]]:
    """(what, its size, the bound) of every folder, file and class."""
    for folder in {path.rpartition("/")[0] for path in modules()}:
        inside = (ROOT / folder).glob("*.py")
        yield folder, sum(path.name != "__init__.py" for path in inside), MODULES
    for path in modules():
        yield path, len((ROOT / path).read_text().splitlines()), LINES
    known = classes()
    for path, node in known.values():
        yield f"{path}: {node.name}", len(whole(node, known)), METHODS


def test_nothing_grows_over_its_bound() -> None:
    over = {what: (size, bound) for what, size, bound in sizes() if size > EXCEPTIONS.get(what, (bound, ""))[0]}
    assert not over, "split it, or add it to EXCEPTIONS with the reason"


def test_exceptions_are_needed() -> None:
    needed = {what for what, size, bound in sizes() if size > bound}
    assert EXCEPTIONS.keys() <= needed, f"take out {sorted(EXCEPTIONS.keys() - needed)}"


def test_the_counts_are_right() -> None:
    """On what can be counted by hand."""
    tree = ast.parse(
        "class A(Outside):\n def a(self): ...\n @abstractmethod\n def b(self): ...\n"
        "class B(A[int]):\n def a(self): ...\n async def c(self): ...\n"
    )
    known = {node.name: ("x.py", node) for node in tree.body if isinstance(node, ast.ClassDef)}
    assert methods(known["A"][1]) == {"a"} and whole(known["B"][1], known) == {"a", "c"}
    found = {what: size for what, size, _ in sizes()}
    door = (ROOT / "adbg" / "__main__.py").read_text()
    assert found["adbg"] == 1 and found["adbg/__main__.py"] == door.count("\n")
