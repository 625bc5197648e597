"""Leaves that get gradients and that no optimizer holds, and where a program keeps them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.diagnosis.ledger import Ledger
from adbg.engine.diagnosis.source import assigned
from adbg.engine.diagnosis.values import made_by_node
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs
from adbg.engine.types import SourceLine

_FEW = 16  # nodes that are looked through between a leaf and what was made of it


@dataclass(slots=True, eq=False)
class Leaf:
    """A leaf that gets gradients and that no optimizer holds."""

    ref: weakref.ref[Any]
    name: str
    shape: tuple[int, ...]
    weight: float  # its norm, first seen
    trained: bool  # by its type it is a parameter
    seen: set[int] = field(default_factory=set)  # iterations
    norms: list[float] = field(default_factory=list)
    cleared: bool = False  # a backward found it without a gradient, after it had one
    path: str = ""  # the name as commands take it
    called: str = ""  # where the program keeps it: of one without a name, or in a plain container
    last: bool = False  # every backward came to it after all that are optimized: it is upstream of those
    with_steps: bool = False

    @property
    def words(self) -> str:
        return self.called or self.name or f"a tensor of shape {list(self.shape)}"


def tensors_of(graph: Graph) -> Iterator[Any]:
    """The leaves of a graph, in execution order of their accumulate nodes."""
    for key in graph.order():
        if graph.is_accumulate(key):
            for saved in graph.saved(key):
                if saved.value is not None:
                    yield saved.value


def in_container(ledger: Ledger, found: list[Leaf]) -> tuple[str, SourceLine] | None:
    """The attribute of a module that holds leaves in a plain container, and where it is assigned. Leaves without a name
    are called by their place in it from now on."""
    leaves = {id(leaf.ref()): leaf for leaf in found}
    for module, name, value in _attributes(ledger):
        kind = type(module).__name__
        held = [each for each in _held(value, 3, "") if each[0] in leaves]
        for id_, path in held:
            leaves[id_].called = f"{kind}.{name}{path}"
        line = assigned_in(type(module), name) if held else None
        if line is not None:
            return f"{kind}.{name}", line
    return None


def made_of(ledger: Ledger, backend: Backend, leaf: Leaf) -> tuple[str, SourceLine] | None:
    """The attribute of a module that holds what was made of a leaf (``Parameter(...).unsqueeze(0)``), and where it is
    assigned: the module does not have the leaf itself."""
    for module, name, value in _attributes(ledger):
        if not backend.is_tensor(value) or not backend.has_graph(value):
            continue
        line, (made, _) = assigned_in(type(module), name), made_by_node(backend, value)
        if line is None or made is None or (made.file, made.line) != (line.file, line.line):
            continue  # of what forward keeps, ``__init__`` makes nothing
        graph = backend.graph_of([value])
        try:
            if graph is not None and graph.count() <= _FEW and any(each is leaf.ref() for each in tensors_of(graph)):
                return f"{type(module).__name__}.{name}", line
        finally:
            getattr(graph, "release", lambda: None)()
    return None


def _attributes(ledger: Ledger) -> Iterator[tuple[Any, str, Any]]:
    """(module, name, value) of the attributes of all modules, but for the framework's own."""
    for seen in list(ledger.modules.values()):
        root = seen.ref()
        if root is None:
            continue
        for module in root.modules() if hasattr(root, "modules") else root.sublayers(include_self=True):
            yield from ((module, name, value) for name, value in list(vars(module).items()) if not name.startswith("_"))


def assigned_in(kind: type, attribute: str) -> SourceLine | None:
    """Where the class, or one that it inherits from, gives its instances the attribute; None of a library's class: a
    line there is none to change."""
    for each in kind.__mro__:
        with suppress(Exception):
            code = getattr(each, "__init__").__code__  # noqa: B009  (no type checker lets a class be asked for it)
            line = assigned(os.path.abspath(code.co_filename), attribute, each.__name__)
            if line is not None:
                return line if is_programs(line.file) else None
    return None


def _held(value: Any, depth: int, path: str) -> Iterator[tuple[int, str]]:
    """(id, path) of tensors in containers and in the modules in them: "[0].weight"."""
    inner: list[tuple[Any, Any]]
    if isinstance(value, (list, tuple)):
        inner = list(enumerate(value))
    elif isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, set):
        inner = [("", each) for each in value]
    else:
        return
    for key, each in inner:
        here = f"{path}[{key!r}]" if key != "" else path
        yield id(each), here
        if callable(getattr(each, "named_parameters", None)):
            yield from ((id(tensor), f"{here}.{name}") for name, tensor in each.named_parameters())
        elif depth:
            yield from _held(each, depth - 1, here)
