"""Which part of a training step a stack belongs to: forward, backward, optimizer, data; by the frames that begin them.

The outermost frame that begins a part decides, and what Python's import does is "other". A stack with none is forward
where a framework's frame is in it, and "other" where none is. The autograd engine's threads have the engine's function
outermost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from adbg.profiles.report.model import NATIVE, Frame

FORWARD, BACKWARD, OPTIMIZER, DATA, OTHER = "forward", "backward", "optimizer", "data", "other"
PHASES = (FORWARD, BACKWARD, OPTIMIZER, DATA, OTHER)

_PYTHON = (  # (the end of the file's path, the function), as the frameworks name them
    (BACKWARD, re.compile(r"(torch/_tensor|torch/autograd/__init__|paddle/base/dygraph/tensor_patch_methods|"
                          r"paddle/autograd/(autograd|backward_mode|backward_utils)|paddle/base/dygraph/base)\.py$"),
     re.compile(r"^(backward|grad|run_backward)$")),
    (OPTIMIZER, re.compile(r"(torch/optim/.*|paddle/optimizer/.*)\.py$"),
     re.compile(r"^(step|wrapper|minimize|zero_grad|clear_grad|clear_gradients|_foreach\w*|_single_tensor\w*)$")),
    (DATA, re.compile(r"(torch/utils/data/.*|paddle/io/.*)\.py$"), re.compile(r"^(__next__|next|_next_data|fetch)$")),
)  # fmt: skip
_NATIVE = (
    (BACKWARD, re.compile(r"torch::autograd::(Engine|python::PythonEngine)::|THPEngine_run_backward|egr::(RunBackward|"
                          r"Backward|Grad)\b|run_backward|eager_api_run_\w*backward")),
)  # fmt: skip
_MODULES = {f"paddle.{phase}": phase for phase in (FORWARD, BACKWARD, OPTIMIZER, DATA)}  # formats/paddle_trace.py
_FRAMEWORK = "framework"
_IMPORT = "<frozen importlib._bootstrap>"


def begins(frame: Frame) -> str | None:
    """The part that this function begins."""
    if frame.file == _IMPORT:
        return OTHER
    if frame.module in _MODULES:
        return _MODULES[frame.module]
    if frame.side == NATIVE:
        return next((phase for phase, names in _NATIVE if names.search(frame.name)), None)
    file = frame.file.replace("\\", "/")
    name = frame.name.rpartition(".")[2]
    return next((phase for phase, files, names in _PYTHON if files.search(file) and names.match(name)), None)


class Phases:
    """Asks each frame once."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._begins = [begins(frame) for frame in frames]
        self._framework = [frame.origin == _FRAMEWORK for frame in frames]

    def of(self, stack: Sequence[int]) -> str:
        for index in stack:
            if phase := self._begins[index]:
                return phase
        framework = self._framework
        return FORWARD if any(framework[index] for index in stack) else OTHER
