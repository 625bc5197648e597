"""What torch.profiler leaves when it has ended: a file, a count, and nothing in memory."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
from support.frameworks import only_here

from adbg.profiles.profilers.torch_profiler import TorchProfiler
from adbg.profiles.region import Region

torch = pytest.importorskip("torch")
pytestmark = only_here("torch", "Paddle's profiler writes its file itself, and adbg counts nothing in it")


def test_operators_are_counted_and_none_of_them_is_kept(tmp_path: Path) -> None:
    """Witnesses: the events in the trace, and torch's own objects in the collector's lists."""
    from torch.autograd.profiler_util import FunctionEvent

    profiler = TorchProfiler()
    profiler.start(Region("iterations", 3), str(tmp_path))
    for _ in range(3):
        torch.tanh(torch.ones(4, requires_grad=True)).sum().backward()
    measured = profiler._profile.profiler
    made = profiler.stop()
    events = json.loads((tmp_path / made.file).read_text())["traceEvents"]
    assert made.meta["operators"] == sum(event.get("cat") == "cpu_op" for event in events) > 10
    assert measured._function_events is None, "an object of each operator"
    del measured
    gc.collect()
    left = [each for each in gc.get_objects() if type(each) in (FunctionEvent, torch.profiler.profile)]
    assert not left


def test_where_nothing_ran_there_is_no_file(tmp_path: Path) -> None:
    profiler = TorchProfiler()
    profiler.start(Region("backward"), str(tmp_path))
    made = profiler.stop()
    assert (made.file, made.meta["operators"], list(tmp_path.iterdir())) == ("", 0, [])
