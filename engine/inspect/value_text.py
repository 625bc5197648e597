"""Texts of values for one line of a panel: bounded, and harmless whatever the value is.

Runs on the parked thread. A ``__repr__`` that raises, is huge or prints whole tensors must not hurt: tensors are
described ("f32 [4, 8] cpu norm 0.02134"), containers elided, everything else cut at ``LIMIT`` characters.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import reprlib
import types
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.outside import own, suppress
from adbg.engine.types import TensorMeta, ValueState

LIMIT = 300  # characters of one value
NORM_ELEMENTS = 1 << 20  # vector_norm: about 0.1 ms here on one CPU core; above it a listing shows no norm
_FLOATING = ("f", "bf", "c")
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque, collections.abc.MappingView)


def figure(value: float) -> str:
    """Four significant digits, as the front end writes them: "0.02134", "0", "nan", "-inf"."""
    return f"{value:.4g}"


def is_tensor(backend: Backend | None, value: Any) -> bool:
    """Never raises: a proxy whose ``__class__`` raises is not a tensor."""
    try:
        return backend is not None and backend.is_tensor(value)
    except own(Exception):
        return False


def floating(meta: TensorMeta) -> bool:
    """True for element types that have a norm ("f32", "bf16", "c64")."""
    return meta.dtype.startswith(_FLOATING)


def norm_of(backend: Backend, value: Any, meta: TensorMeta, limit: int = NORM_ELEMENTS) -> float | None:
    """2-norm, or None where there is none, it would cost too much, or the framework cannot tell (sparse, meta
    device).
    """
    if meta.shape is None or meta.numel > limit or not floating(meta) or meta.state is ValueState.NO_DATA:
        return None
    try:
        return float(backend.norm(value))
    except own(Exception):
        return None


def tensor_text(meta: TensorMeta, norm: float | None = None) -> str:
    """ "f32 [4, 8] cpu norm 0.02134", or the note of an undefined one."""
    if meta.shape is None:
        return meta.remark
    parts = [meta.dtype, str(list(meta.shape)), meta.device]
    if norm is not None:
        parts.append(f"norm {figure(norm)}")
    if meta.remark:
        parts.append(f"({meta.remark})")
    return " ".join(part for part in parts if part)


def type_name(value: Any) -> str:
    return type(value).__qualname__


def one_line(text: str, limit: int = LIMIT) -> str:
    """White space folded, the middle elided when longer than ``limit``."""
    # Only the ends can show: folding a text of 100 MB would take a second.
    if len(text) > 8 * limit:
        text = text[: 4 * limit] + " ... " + text[-4 * limit :]
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 5]} ... {text[-tail:]}"


def _generated_repr(kind: type) -> bool:
    """True when the dataclass decorator wrote ``__repr__``: it prints every element of every field."""
    written = getattr(kind.__dict__.get("__repr__"), "__wrapped__", None)
    code = getattr(written, "__code__", None)
    return dataclasses.is_dataclass(kind) and code is not None and code.co_filename == "<string>"


def _own_repr(kind: type) -> bool:
    """True for a subclass of a container that writes itself in its own way."""
    builtin: tuple[Any, ...] = (list.__repr__, tuple.__repr__, dict.__repr__, set.__repr__, frozenset.__repr__)
    return kind.__repr__ not in builtin


class ValueText(reprlib.Repr):
    """``reprlib.Repr`` that knows tensors, subclasses of containers and dataclasses, and survives every
    ``__repr__``.
    """

    def __init__(
        self, backend: Backend | None, items: int = 6, characters: int = LIMIT, levels: int = 3, fold: bool = True
    ) -> None:
        """``fold`` False: a value whose own text has several lines (a module) keeps them."""
        super().__init__()
        self.fold = fold
        self.backend = backend
        self.items = items
        self.characters = characters
        self.maxlevel = levels
        self.maxstring = self.maxother = characters // 2

    def __call__(self, value: Any) -> str:
        """The text of one value, about ``characters`` long at most."""
        if is_tensor(self.backend, value):
            return self.tensor(value)
        return self._cut(self.repr(value), self.characters)

    def _cut(self, text: str, limit: int) -> str:
        if self.fold:
            return one_line(text, limit)
        return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"

    def tensor(self, value: Any) -> str:
        """ "f32 [4, 8] cpu norm 0.02134"; of a single number the number itself."""
        assert self.backend is not None
        meta = self.backend.meta(value)
        if meta.numel == 1 and meta.layout == "strided":
            with suppress(Exception):
                return f"{tensor_text(meta)} = {value.item()!r}"
        return tensor_text(meta, norm_of(self.backend, value, meta))

    def repr1(self, x: Any, level: int) -> str:
        try:
            return self._text(x, level)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit from a __repr__ too
            return f"<{type_name(x)}: its repr raised {type(error).__name__}>"

    def _text(self, x: Any, level: int) -> str:
        if is_tensor(self.backend, x):
            return self._number(x) or f"<{self.tensor(x)}>"
        kind = type(x)
        if kind is int and x.bit_length() > 1024:  # its decimal text takes quadratic time, and Python refuses it
            return f"<int of {x.bit_length()} bits>"
        if kind in (int, float, complex, bool, type(None)):
            return str(super().repr1(x, level))
        if isinstance(x, str):
            return self.repr_str(x, level)
        if isinstance(x, (bytes, bytearray)):
            return repr(bytes(x[: self.maxstring])) + (f"... ({len(x)} bytes)" if len(x) > self.maxstring else "")
        if isinstance(x, _NAMED):
            return self._named(x)
        if _generated_repr(kind):
            return self._dataclass(x, level)
        if isinstance(x, _CONTAINERS):
            return self._container(x, level)
        return self._cut(repr(x), self.maxother)

    def _number(self, x: Any) -> str:
        """A tensor without dimensions as its framework writes it, as it is written alone: "tensor(69)"."""
        assert self.backend is not None
        meta = self.backend.meta(x)
        if meta.shape != () or meta.layout != "strided":
            return ""
        shown = self.backend.text(x)
        return shown if len(shown) <= 80 and "\n" not in shown else ""

    def _named(self, x: Any) -> str:
        kind = "class" if isinstance(x, type) else type_name(x).replace("builtin_function_or_method", "builtin")
        return f"<{kind} {x.__qualname__}>"  # the usual repr has an address, which differs from run to run

    def _dataclass(self, x: Any, level: int) -> str:
        if level <= 0:
            return f"{type_name(x)}(...)"
        fields = [f for f in dataclasses.fields(x) if f.repr]
        shown = [f"{f.name}={self.repr1(getattr(x, f.name, None), level - 1)}" for f in fields[: self.items]]
        return f"{type_name(x)}({', '.join(shown)}{', ...' if len(fields) > self.items else ''})"

    def _container(self, x: Any, level: int) -> str:
        """The first items and the count. The length decides the work, never the content."""
        count = len(x)
        if _own_repr(type(x)) and count <= self.items and all(isinstance(i, (int, float, str)) for i in x):
            return self._cut(repr(x), self.maxother)  # torch.Size([2, 3])
        name = "" if type(x) in (list, tuple, dict, set) else type_name(x)
        left, right = (
            ("{", "}") if isinstance(x, (dict, set, frozenset)) else ("(", ")") if isinstance(x, tuple) else ("[", "]")
        )
        if level <= 0 and count:
            inner = "..."
        else:
            inner = ", ".join(self._items(x, level))
            if count > self.items:
                inner += f", ... {count} in all"
        if type(x) is tuple and count == 1:
            inner += ","
        if isinstance(x, tuple) and hasattr(type(x), "_fields"):
            return f"{name}({inner})"
        if type(x) is set and not count:
            return "set()"
        return f"{name}({left}{inner}{right})" if name else f"{left}{inner}{right}"

    def _items(self, x: Any, level: int) -> list[str]:
        texts = []
        pairs = isinstance(x, dict)
        fields = getattr(type(x), "_fields", ()) if isinstance(x, tuple) else ()
        for number, item in enumerate(x):
            if number >= self.items:
                break
            if pairs:
                texts.append(f"{self.repr1(item, level - 1)}: {self.repr1(dict.get(x, item), level - 1)}")
            else:
                field = f"{fields[number]}=" if number < len(fields) else ""
                texts.append(field + self.repr1(item, level - 1))
        return texts
