"""Which Layer a node was made in, and what parameters are called.

While names and stacks are on, the text of every operator's forward stack gets one more line, a comment with the path of
the innermost Layer at work (``native.texts``; 0.2 us). The node keeps the text and so tells its Layer itself: an
address would be used again as soon as a graph is dropped. Nothing here keeps a Layer, a parameter or a
node alive. The wrapper and the listener run in the script's forward, on its threads; answers are given on any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from paddle.nn import BatchNorm, Layer
from paddle.nn.layer.norm import _BatchNormBase

from adbg.engine.backends.common.modules import SeenModules
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.paddle.native.core import core
from adbg.engine.backends.paddle.native.texts import StackTexts

_MARK = "  # in Layer "
_NORMS = BatchNorm, _BatchNormBase


class _Inside(threading.local):
    """The Layers this thread is in, outermost first."""

    def __init__(self) -> None:
        self.layers: list[Any] = []


class Modules(SeenModules):
    """Layer paths and parameter names, learned while the script runs its Layers."""

    kind = Layer

    def __init__(self, texts: StackTexts) -> None:
        super().__init__()
        self._texts = texts
        self._inside = _Inside()
        self._paths: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._original: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None
        self._naming = False
        self._looked = 0
        self._tell: Callable[[bool], None] | None = None

    # ---- in the forward

    def watch(self) -> None:
        """Follow which Layer is at work, for the names of what it makes."""
        if self._naming:
            return
        self._naming = True
        self._put_in()
        self._texts.listen(self._note)

    def unwatch(self) -> None:
        self._naming = False
        if self._tell is None:
            self._take_out()
        self._texts.forget(self._note)

    def tell_outermost(self, tell: Callable[[bool], None] | None) -> None:
        """``tell(True)`` as an outermost Layer is called, ``tell(False)`` as it returns; None: no more."""
        self._tell = tell
        if tell is not None:
            self._put_in()
        elif not self._naming:
            self._take_out()

    def _put_in(self) -> None:
        if self._ours is not None:
            return
        original = self._original = Layer.__call__
        inside, modules = self._inside, self

        def __call__(self: Any, *inputs: Any, **kwargs: Any) -> Any:
            layers = inside.layers
            layers.append(self)
            tell = modules._tell if len(layers) == 1 else None
            try:
                if tell is not None:
                    tell(True)
                return original(self, *inputs, **kwargs)
            except BaseException as error:
                strip_own(error)
                raise
            finally:
                layers.pop()
                if tell is not None:
                    tell(False)

        __call__.__doc__ = original.__doc__
        __call__.__qualname__ = original.__qualname__
        __call__.__module__ = original.__module__
        self._ours = __call__
        setattr(Layer, "__call__", __call__)  # noqa: B010  (typed as one function)

    def _take_out(self) -> None:
        """Paddle's own function back; where somebody wrapped ours meanwhile, ours stays below it."""
        if self._ours is not None and Layer.__call__ is self._ours:
            setattr(Layer, "__call__", self._original)  # noqa: B010
        self._ours = None

    def _note(self, lines: list[str]) -> None:
        """An operator is called."""
        layers = self._inside.layers
        if layers:
            lines.append(f"{_MARK}{self._path(layers[-1])}\n")

    def _path(self, layer: Any) -> str:
        known, layers = self._paths.get(id(layer)), self._inside.layers
        if known is None or known[0]() is not layer or (not known[1] and len(layers) > 1):  # it ran alone before
            self._learn(layers[0] if layers else layer)
            known = self._paths.get(id(layer))
            if known is None or known[0]() is not layer:  # made on the fly, or kept in a plain list: its parameters too
                self._learn(layer)
                known = None
            if known is None or (not known[1] and len(layers) > 1):
                known = self._paths[id(layer)] = (weakref.ref(layer), type(layer).__name__)
        return known[1]

    def _name_parts(self, root: Any) -> None:
        for path, layer in root.named_sublayers(include_self=True):
            known = self._paths.get(id(layer))
            if known is None or known[0]() is not layer or path:
                self._paths[id(layer)] = (weakref.ref(layer), path)

    def _prune(self) -> None:
        if len(self._paths) > 20_000:
            self._paths = {key: entry for key, entry in list(self._paths.items()) if entry[0]() is not None}
            self._names = {key: entry for key, entry in list(self._names.items()) if entry[0]() is not None}

    def refresh(self) -> None:
        self._learn_noted()
        super().refresh()

    def _learn_noted(self) -> None:
        """Layers that the extension met since: they are known by the frames of their calls there, without a wrapper."""
        noted = core()
        latest = noted.latest() if noted is not None else 0
        if noted is None or latest == self._looked:
            return
        first, self._looked = self._looked + 1, latest
        seen: dict[int, Any] = {}
        for number in range(first, latest + 1):
            taken = noted.taken(number)
            layer = taken[2]() if taken is not None and taken[2] is not None else None
            if isinstance(layer, Layer):
                seen.setdefault(id(layer), layer)
        for layer in seen.values():
            self._learn(layer)

    # ---- answers

    def statistics(self) -> dict[str, Any]:
        """The running means and variances of BatchNorm, which Paddle keeps as parameters, by name."""
        found = {}
        for root in self.roots():
            for path, layer in root.named_sublayers(include_self=True):
                for name in ("_mean", "_variance"):
                    value = vars(layer).get("_parameters", {}).get(name)
                    # Code that unfreezes a part sets stop_gradient of all its parameters to False, of these too.
                    if value is not None and (value.stop_gradient or isinstance(layer, _NORMS)):
                        found[f"{path}.{name}" if path else name] = value
        return found

    @staticmethod
    def told(text: str) -> str | None:
        """The path of the Layer in the text of a node's stack."""
        at = text.rfind(_MARK)
        return text[at + len(_MARK) :].partition("\n")[0] if at >= 0 else None
