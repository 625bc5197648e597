"""Stand-ins on torch: out of the compiler's way. ``torch.compile`` asks which functions it meets, so torch's own are
back in their places as long as anything compiles."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from adbg.engine.backends.common.observing.stand_ins import After, Before, StandIns
from adbg.engine.backends.torch import private
from adbg.engine.outside import suppress

_is_compiling = torch.compiler.is_compiling
_COMPILER = "torch._dynamo.callback"


class TorchStandIns(StandIns):
    def __init__(self) -> None:
        super().__init__(self._traced)
        self._compiler: Any = None  # torch's list of whom to tell when it compiles

    def restore(self) -> None:
        handler, self._compiler = self._compiler, None
        if handler is not None:
            starts, ends = handler.remove_start_callback, handler.remove_end_callback
            for remove, ours in ((starts, self._compile_begins), (ends, self._compile_ended)):
                with suppress(Exception):  # ``torch._dynamo.reset`` has forgotten them
                    remove(ours)
        super().restore()

    def begins(self, before: Before, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        """No class of the program's is asked of an attribute that is read here."""
        if not self.on or self._traced():
            return None
        with suppress(Exception), private.out_of_sight():
            return before(args, kwargs, frame)
        return None

    @staticmethod
    def ended(after: After, told: Any, result: Any, error: BaseException | None) -> None:
        with suppress(Exception), private.out_of_sight():
            after(told, result, error)

    def _traced(self) -> bool:
        if _is_compiling() or capturing():
            return True
        if self._compiler is None and _COMPILER in sys.modules:
            handler = getattr(sys.modules.get(_COMPILER), "callback_handler", None)
            if handler is not None:
                self._compiler = handler
                handler.register_start_callback(self._compile_begins)
                handler.register_end_callback(self._compile_ended)
        return False

    def _compile_begins(self, facts: object) -> None:
        self.aside(True)

    def _compile_ended(self, facts: object) -> None:
        self.aside(False)


def capturing() -> bool:
    """Whether a CUDA graph is captured: to read a value then would break the capture."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
