"""The modules that a program ran, and the names of their parameters. Filled on the threads of the forward, read on any.

Nothing here keeps a module or a parameter alive: a module often holds the last loss, and with it a whole graph.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

from adbg.engine import live_objects
from adbg.engine.outside import own

_MOST_MET = 10_000  # modules that are remembered as met


class SeenModules(abc.ABC):
    """Modules that are part of no other, as far as they were seen. ``kind`` is the framework's class of modules."""

    kind: ClassVar[Any]

    def __init__(self) -> None:
        self._roots: list[weakref.ref[Any]] = []
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._met: dict[int, weakref.ref[Any]] = {}
        self._scanned = False

    @abc.abstractmethod
    def _name_parts(self, root: Any) -> None:
        """Learn the paths of all modules below ``root``. May raise what a module's properties raise."""

    @abc.abstractmethod
    def _prune(self) -> None:
        """Forget what is dead, where there is much of it."""

    def _learn(self, root: Any) -> None:
        """Name everything below ``root``. A part that ran alone before gets its full path; nothing loses one."""
        try:
            self._name_parts(root)
            for path, parameter in root.named_parameters():
                self._names[id(parameter)] = (weakref.ref(parameter), path)
            if not any(known() is root for known in self._roots):
                self._add(root)
        except own(Exception):  # a module with a property that raises: its nodes stay without a path
            return
        self._prune()

    def _add(self, root: Any) -> None:
        """A part that ran alone before, or does so now, is part of the module that has it."""
        roots = [(known, kept) for known in self._roots if (kept := known()) is not None]
        if not any(id(root) in _below(kept) for _, kept in roots):
            parts = _below(root)
            self._roots = [*(known for known, kept in roots if id(kept) not in parts), weakref.ref(root)]

    def meet(self, module: Any, inner: bool) -> None:
        """A module runs. Where the extension takes the stacks it tells of modules that make nodes, and of no other: a
        frozen part, or one that runs without gradients, is told here while its forwards are watched. ``inner``: inside
        another one, which may not know of it: it lies in a plain list there."""
        if self.met(module):
            return
        if len(self._met) >= _MOST_MET:
            self._met = {}
        self._met[id(module)] = weakref.ref(module)
        own_parameters = [each for each in module._parameters.values() if each is not None] if inner else []
        if not inner or any(self.parameter_name(each) is None for each in own_parameters):
            self._learn(module)

    def met(self, module: Any) -> bool:
        known = self._met.get(id(module))
        return known is not None and known() is module

    def parameter_name(self, tensor: Any) -> str | None:
        """The name of a parameter of a module seen so far, None for any other tensor."""
        known = self._names.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def refresh(self) -> None:
        """Once per graph that needs names: parameters may have been added since, or no module was followed (stacks
        off)."""
        roots = [root for root in (known() for known in self._roots) if root is not None]
        if not self._scanned and not (roots and self._followed()):
            self._scanned = True
            roots += [root for root in _outermost(self.kind) if not any(root is known for known in roots)]
        for root in roots:
            self._learn(root)

    def _followed(self) -> bool:
        """Whether modules are told as they run: those that are known are not just what ran at some time before."""
        return True

    def roots(self) -> Iterable[Any]:
        """The outermost modules, in the order in which they were seen."""
        self.refresh()
        for known in list(self._roots):
            root = known()
            if root is not None:
                yield root

    def parameters(self) -> Iterable[tuple[str, Any]]:
        """(name, parameter)."""
        for root in self.roots():
            yield from root.named_parameters()

    def buffers(self) -> Iterable[tuple[str, Any]]:
        """(name, buffer)."""
        for root in self.roots():
            yield from root.named_buffers()

    def kind_among(self, *kinds: Any) -> str:
        """The name of the first of ``kinds`` of which one of the modules is; "" for none."""
        modules = {type(module) for root in self.roots() for module in (root, *root.children())}
        return next((kind.__name__ for kind in kinds if any(issubclass(each, kind) for each in modules)), "")


def _below(module: Any) -> set[int]:
    """Ids of its parts, and of theirs."""
    found: set[int] = set()
    todo = list(module.children())
    for each in todo:  # grows while it is followed
        if id(each) not in found:
            found.add(id(each))
            todo += each.children()
    return found


def _outermost(kind: Any) -> list[Any]:
    """Modules that are part of no other, found through the garbage collector (90-160 ms on torch)."""
    found = [(module, parts) for module in live_objects.of_kind(kind) if (parts := _parts_of(module)) is not None]
    inner = {id(part) for _, parts in found for part in parts}
    return [module for module, _ in found if id(module) not in inner and any(True for _ in module.parameters())]


def _parts_of(module: Any) -> list[Any] | None:
    """None of one that is being made: its parts may be there before it is (``super().__init__(Linear(3, 2))``)."""
    try:
        return list(module.children())
    except own(Exception):
        return None
