"""What the program's variables lead to: a walk from its modules and running functions along what objects refer to.

No code of the program's runs: not even ``__class__`` or ``__dict__`` is asked of an object. The objects that were met
are held until the walk is let go of, so ids stay theirs. What C++ keeps (what nodes saved) is not reached this way:
``holders`` looks for that.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends import REGISTRY
from adbg.engine.frames import locals_elsewhere, locals_of
from adbg.engine.python.user_code import USER, framework_roots, owner_of, source_line
from adbg.engine.types import SourceLine

MOST_OBJECTS = 2_000_000
MOST_SECONDS = 3.0
_BATCH = 2_000  # objects between two looks at the clock
MOST_EDGES = 64  # variables remembered of one tensor
_MRO = type.__dict__["__mro__"]
_CLASS_DICT = type.__dict__["__dict__"]
# Leads nowhere, or to what is reached by its own name.
_ATOMS = (
    int, float, complex, bool, str, bytes, bytearray, type(None), type(...), type(NotImplemented), range, slice,
    types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType,
)  # fmt: skip
LIBRARIES = ("site-packages", "dist-packages")
_OTHERS = {"adbg", *REGISTRY, "sitecustomize", "usercustomize"}


@dataclass(slots=True, eq=False)
class Root:
    """Variables by name. ``frame``: where a running function is; ``bound``: the file that gives them their values."""

    kind: str  # "global", "local"
    names: dict[str, Any]
    name: str  # of a module other than the script: its name; of a function: its name
    file: str
    line: SourceLine | None = None
    thread: str = ""


def mro(kind: type) -> tuple[type, ...]:
    """Past a metaclass with an attribute of that name."""
    return _MRO.__get__(kind)  # type: ignore[no-any-return]


def class_dict(kind: type) -> Any:
    return _CLASS_DICT.__get__(kind)


def defined_in(kind: type) -> str:
    """The module of a class, "" where it has none."""
    name = class_dict(kind).get("__module__")
    return name if type(name) is str else ""


class Reach:
    """The walk. ``objects`` and ``parents`` run side by side: -1 - n stands for root n, any other number is the place
    of the object that refers to this one."""

    def __init__(
        self,
        is_tensor_type: Callable[[type], bool],
        innermost: types.FrameType | None,
        is_node_type: Callable[[type], bool] = lambda kind: False,
    ) -> None:
        self.objects: list[Any] = []
        self.parents: list[int] = []
        self.tensors: dict[int, Any] = {}
        self.nodes: dict[int, Any] = {}  # nodes of graphs
        self.edges: dict[int, list[int]] = {}  # by id of a tensor or of what was asked for: places that refer to it
        self.cut = False
        self.ms = 0.0
        self._is_tensor_type = is_tensor_type
        self._is_node_type = is_node_type
        self._kinds: dict[type, int] = {}
        self._sought: set[int] = set()
        self.roots = list(_roots(innermost))

    def walk(self, sought: Iterable[Any] = ()) -> Reach:
        """``sought``: objects beside the tensors of which all references are remembered."""
        began = time.perf_counter()
        self._sought = {id(value) for value in sought}
        seen = {id(vars(module)) for module in list(sys.modules.values()) if type(module) is types.ModuleType}
        seen.update(map(id, (self.objects, self.parents, self.tensors, self.edges, self._kinds, self.roots)))
        seen.update(id(root.names) for root in self.roots)
        for number, root in enumerate(self.roots):
            for value in list(root.names.values()):
                self._meet(value, -1 - number, seen)
        place = 0
        while place < len(self.objects):
            end = min(place + _BATCH, len(self.objects))
            while place < end:
                holder = self.objects[place]
                stands = type(holder) in _STANDING
                for value in gc.get_referents(holder):
                    # Up to Python 3.12 the dict in which a frame's locals were read stays with it, emptied by adbg
                    # (``frames``): held here, it could not be emptied the next time.
                    if not (stands and type(value) is dict and not value):
                        self._meet(value, place, seen)
                place += 1
            if len(self.objects) > MOST_OBJECTS or time.perf_counter() - began > MOST_SECONDS:
                self.cut = True
                break
        self.ms = (time.perf_counter() - began) * 1e3
        return self

    def release(self) -> None:
        """Let go of everything that was met."""
        self.tensors.clear()
        self.nodes.clear()
        self.edges.clear()
        self.roots.clear()
        self.objects.clear()
        self.parents.clear()

    def _meet(self, value: Any, place: int, seen: set[int]) -> None:
        kind = self._kinds.get(type(value))
        if kind is None:
            kind = self._kinds[type(value)] = self._kind(type(value))
        at = id(value)
        if kind == _NODE:
            self.nodes[at] = value
        below = kind == _NODE and place >= 0 and self._kinds.get(type(self.objects[place])) == _TENSOR
        if at in self._sought or kind == _TENSOR or (kind == _NODE and not below):  # a tensor stands for its own node
            places = self.edges.setdefault(at, [])
            if len(places) < MOST_EDGES:
                places.append(place)
            if kind == _TENSOR:
                self.tensors[at] = value
        elif kind == _ATOM:
            return
        if at in seen or (kind == _CLASS and not self._is_of_user(value)):
            return
        seen.add(at)
        self.objects.append(value)
        self.parents.append(place)

    def _kind(self, kind: type) -> int:
        if self._is_tensor_type(kind):
            return _TENSOR
        if self._is_node_type(kind):
            return _NODE
        bases = mro(kind)
        if type in bases:
            return _CLASS
        if kind in _ATOMS or types.ModuleType in bases or defined_in(kind).partition(".")[0] == "adbg":
            return _ATOM
        return _OTHER

    def _is_of_user(self, kind: type) -> bool:
        """A class of the program's own: what other classes hold is the libraries' business."""
        module = sys.modules.get(defined_in(kind))
        return module is not None and is_users(module)

    # ---- ways back

    def way(self, place: int) -> list[Any]:
        """The objects from a variable of a root down to the object at ``place``; empty: the root itself."""
        found = []
        while place >= 0:
            found.append(self.objects[place])
            place = self.parents[place]
        return found[::-1]

    def root_of(self, place: int) -> Root:
        while place >= 0:
            place = self.parents[place]
        return self.roots[-1 - place]


_TENSOR, _NODE, _CLASS, _ATOM, _OTHER = range(5)
_STANDING = (types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def _roots(innermost: types.FrameType | None) -> Iterator[Root]:
    """The script and the user's modules, then running functions, this thread's first."""
    modules = [module for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    main = sys.modules.get("__main__")
    for module in sorted((each for each in modules if is_users(each)), key=lambda each: each is not main):
        name = "" if module is main else str(vars(module).get("__name__", ""))
        yield Root("global", vars(module), name, file_of(module))
    here = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {thread: frame for thread, frame in sys._current_frames().items() if thread != here}
    roots = framework_roots()
    mains = {id(vars(module)) for module in modules}
    for frame in _outwards(innermost):
        if owner_of(frame, roots) == USER and (held := locals_of(frame)) is not None:
            if id(frame.f_globals) in mains and frame.f_code.co_name == "<module>":
                continue
            line = source_line(frame)
            yield Root("local", held, frame.f_code.co_name, line.file if line else "", line, "")
    for thread, top in frames.items():
        if names.get(thread, "").startswith("adbg-"):
            continue
        for frame in _outwards(top):
            if owner_of(frame, roots) != USER or frame.f_code.co_name == "<module>":
                continue
            line = source_line(frame)
            held = locals_elsewhere(frame, top)
            yield Root("local", held, frame.f_code.co_name, line.file if line else "", line, names.get(thread, ""))


def _outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def file_of(module: types.ModuleType) -> str:
    """Where its source is, also of a script that something else reads and runs; "" where that is not known."""
    names = vars(module)
    file = names.get("__file__")
    if type(file) is str:
        return file
    for value in list(names.values()):
        parts = list(class_dict(value).values()) if type in mro(type(value)) else [value]
        for part in parts:
            if type(part) is types.FunctionType and part.__globals__ is names:
                return part.__code__.co_filename
    return ""


def is_users(module: types.ModuleType) -> bool:
    """The script, and modules that lie neither in a library nor in Python itself."""
    if sys.modules.get("__main__") is module:
        return True
    name = vars(module).get("__name__")
    package = name.partition(".")[0] if type(name) is str else ""
    if not package or package in _OTHERS or package in sys.stdlib_module_names:
        return False
    file = file_of(module)  # of most modules it is not asked: it was 9 s of 22 s in here (cProfile)
    return bool(file) and not any(f"/{each}/" in file for each in LIBRARIES)
