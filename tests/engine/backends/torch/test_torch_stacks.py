"""Forward stacks, module paths and parameter names; and the script's own anomaly mode as if adbg were not there."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from adbg.engine.backends.base import HookPlan
from tests.engine.backends.torch.test_torch_features import run_python
from tests.support.torch_watch import Watch, watching


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        y = self.norm(self.first(x))
        return y * 2  # @times


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.free = nn.Parameter(torch.ones(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x + self.free


def line_of(marker: str) -> int:
    with open(__file__, encoding="utf-8") as source:
        return next(number for number, line in enumerate(source, 1) if line.rstrip().endswith(f"# @{marker}"))


def described(watch: Watch, run) -> dict:
    found: dict = {}
    watch.begin = lambda call: found.update(
        {call.describe(key).unique_name: call.describe(key) for key in call.order()}
    )
    run()
    return found


def test_module_paths_parameters_and_lines():
    model = Model()
    watch = Watch()
    with watching(watch, stacks=True):
        nodes = described(watch, lambda: model(torch.randn(2, 4)).sum().backward())
    assert nodes["AddmmBackward0#1"].module == "blocks.0.first"
    assert nodes["AddmmBackward0#2"].module == "blocks.1.first"
    assert nodes["NativeLayerNormBackward0#2"].module == "blocks.1.norm"
    assert nodes["MulBackward0#1"].module == "blocks.0"
    assert nodes["AddBackward0#1"].module == ""  # the outermost module itself
    assert nodes["SumBackward0#1"].module is None
    parameters = {info.parameter: info.module for info in nodes.values() if info.accumulate}
    assert parameters == {
        "free": "",
        "blocks.0.first.weight": "blocks.0.first",
        "blocks.0.first.bias": "blocks.0.first",
        "blocks.0.norm.weight": "blocks.0.norm",
        "blocks.0.norm.bias": "blocks.0.norm",
        "blocks.1.first.weight": "blocks.1.first",
        "blocks.1.first.bias": "blocks.1.first",
        "blocks.1.norm.weight": "blocks.1.norm",
        "blocks.1.norm.bias": "blocks.1.norm",
    }
    line = nodes["MulBackward0#2"].forward
    assert (line.file, line.line, line.function) == (__file__, line_of("times"), "forward")
    # torch's own frames are left out: the innermost line of a Linear is the user's call of it
    assert nodes["AddmmBackward0#1"].forward.file == __file__
    assert all(info.seq is None for info in nodes.values() if info.accumulate)


def test_stack_is_innermost_first_and_says_why_there_is_none():
    stacks: dict = {}

    def begin(call):
        for key in call.order():
            stacks[call.describe(key).unique_name] = call.forward_stack(key)

    def outer(x):
        def inner(x):
            return x.exp()

        return inner(x)

    watch = Watch()
    watch.begin = begin
    a = torch.randn(2, requires_grad=True)
    with watching(watch) as backend:
        before = a.sin()
        backend.set_stacks(True)
        (outer(a) + before).sum().backward()
        lines, why = stacks["ExpBackward0#1"]
        assert [line.function for line in lines][:3] == [
            "inner",
            "outer",
            "test_stack_is_innermost_first_and_says_why_there_is_none",
        ]
        assert why == ""
        assert stacks["SinBackward0#1"] == ((), "made before stacks were on, or inside torch.compile")
        backend.set_stacks(False)
        a.cos().sum().backward()
        assert stacks["CosBackward0#1"][0] == () and "off" in stacks["CosBackward0#1"][1]


def test_parameter_names_without_stacks():
    """After an attach nothing was followed: modules are found through the garbage collector."""
    model = Model()
    watch = Watch()
    with watching(watch) as backend:
        nodes = described(watch, lambda: model(torch.randn(2, 4)).sum().backward())
        assert "blocks.1.norm.weight" in {info.parameter for info in nodes.values()}
        assert "blocks.1.norm.weight" in {name for name, _ in backend.parameters()}


def test_tensor_that_is_no_parameter_has_no_name():
    watch = Watch()
    with watching(watch, stacks=True):
        nodes = described(watch, lambda: torch.ones(3, requires_grad=True).sum().backward())
    info = nodes["AccumulateGrad#1"]
    assert info.accumulate and info.parameter is None and info.module is None


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_keep_their_full_path(reentrant):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=reentrant))

    model = Outer()
    watch = Watch()
    found: dict = {}
    watch.begin = lambda call: found.update(
        {call.describe(key).unique_name: call.describe(key).module for key in call.order()}
    )
    with watching(watch, stacks=True):
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert found["TanhBackward0#1"] == "body.1"
    assert len(watch.calls) == (2 if reentrant else 1)


def test_module_stack_survives_exceptions_and_threads():
    class Breaks(nn.Module):
        def __init__(self, error):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.error = error

        def forward(self, x):
            self.inner(x)
            raise self.error

    watch = Watch()
    model = nn.Sequential(nn.Linear(2, 2))
    results: list = []

    def work():
        found = described(watch, lambda: model(torch.ones(1, 2)).sum().backward())
        results.append(found["AddmmBackward0#1"].module)

    with watching(watch, stacks=True):
        for error in (ValueError(), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                Breaks(error)(torch.ones(1, 2))
            work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(30)
    assert results == ["0", "0", "0"]


def test_nothing_of_the_model_or_its_graph_is_kept():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            self.loss = self.layer(x).exp()
            return self.loss

    watch = Watch()
    with watching(watch, stacks=True) as backend:
        model = Keeps()
        out = model(torch.ones(1, 2))
        alive = [weakref.ref(model), weakref.ref(out), weakref.ref(model.layer.weight)]
        out.sum().backward()
        del model, out
        gc.collect()
        assert [ref() for ref in alive] == [None, None, None]
        assert list(backend.parameters()) == [] or all("layer" not in name for name, _ in backend.parameters())


def failing() -> None:
    a = torch.ones(2, requires_grad=True)
    b = a.exp()
    c = b * b
    b.add_(1)
    c.sum().backward()


@pytest.mark.parametrize("filters", ["default", "always", "error"])
def test_no_warning_of_a_mode_the_script_did_not_ask_for(filters):
    watch = Watch(HookPlan())
    for armed in (False, True):
        with watching(watch, armed=armed, stacks=True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(filters)
                with pytest.raises(RuntimeError, match="modified by an inplace"):
                    failing()
                before = list(warnings.filters)
            assert caught == []
            assert not any("Error detected" in str(entry[1]) for entry in before)
    assert [call.failed[0][0] for call in watch.calls] == ["MulBackward0#1"] * 2


class FailingInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad(), pytest.raises(RuntimeError, match="modified by an inplace"):
            failing()
        return gradient


@pytest.mark.parametrize("wished", [False, True])
def test_both_warnings_of_an_error_inside_a_backward(wished):
    """torch warns of the node and of the one whose backward made it: of a mode that the script switched on alone."""
    with (
        watching(Watch(), armed=False, stacks=True),
        warnings.catch_warnings(record=True) as caught,
        torch.autograd.set_detect_anomaly(wished),
    ):
        warnings.simplefilter("always")
        FailingInside.apply(torch.ones(2, requires_grad=True)).sum().backward()
    texts = [str(warning.message).split(" ")[0:3] for warning in caught]
    starts = [["Error", "detected", "in"], ["\n\nPrevious", "calculation", "was"]]
    assert [text for text in texts if text in starts] == (starts if wished else [])
    assert wished or not texts


def test_the_scripts_anomaly_mode_is_its_own():
    with watching(Watch(), armed=False, stacks=True) as backend:
        assert not torch.is_anomaly_enabled()
        with torch.autograd.detect_anomaly():
            assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
            a = torch.zeros(1, requires_grad=True)
            b = (a * 0).sqrt()
            strings = b.grad_fn.metadata["traceback_"]
            assert all(isinstance(text, str) for text in strings) and "(a * 0).sqrt()" in strings[-1]
            with pytest.raises(RuntimeError, match="returned nan values"):
                b.backward()
        assert not torch.is_anomaly_enabled()
        c = (a * 0).sqrt()
        c.backward()  # check_nan is off again
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
        backend.set_stacks(False)
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
        backend.set_stacks(True)
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
        torch.autograd.set_detect_anomaly(False)
        assert not torch.is_anomaly_enabled()
        d = (a * 2).exp()
        assert len(backend.graph_of([d]).forward_stack(0)[0]) > 0
    assert not torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def test_failing_call_keeps_its_message_with_the_scripts_own_anomaly_mode():
    with (
        watching(Watch(), armed=False, stacks=True),
        warnings.catch_warnings(record=True) as caught,
        torch.autograd.set_detect_anomaly(True),
    ):
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError):
            failing()
    assert len(caught) == 1
    assert "Error detected in MulBackward0" in str(caught[0].message) and "c = b * b" in str(caught[0].message)


def test_double_backward_nodes_have_stacks():
    watch = Watch()
    stacks: dict = {}

    def begin(call):
        for key in call.order():
            stacks[call.describe(key).unique_name] = call.forward_stack(key)

    watch.begin = begin
    with watching(watch, stacks=True):
        a = torch.ones(2, requires_grad=True)
        (g,) = torch.autograd.grad(a.exp().sum(), a, create_graph=True)
        stacks.clear()
        g.sum().backward()
    assert stacks["MulBackward0#1"][0][0].function == "test_double_backward_nodes_have_stacks"


def test_reading_stacks_does_not_import_the_compiler(tmp_path: Path) -> None:
    """torch's symbolizer would bring torch._inductor into the script: 823 modules, 0.7 s at the first stop."""
    code = """
import sys, torch
from adbg.engine.backends.torch.backend import TorchBackend
class Sink:
    def backward_begin(self, call):
        print([line.line for line in call.forward_stack(call.order()[0])[0]])
    def backward_end(self, call, error): pass
backend = TorchBackend()
backend.install(Sink())
backend.set_stacks(True)
backend.arm(True)
torch.ones(2, requires_grad=True).sum().backward()
print(any(name.startswith("torch._inductor") for name in sys.modules), "_inductor" in vars(torch))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["[12]", "False False"], done.stdout + done.stderr


FORKS = """
import os, sys, threading, time, torch
from adbg.engine.backends.torch.backend import TorchBackend

backend = TorchBackend()
backend.install(object())
stop = threading.Event()

def flip():
    while not stop.is_set():
        backend.set_stacks(True); backend.set_stacks(False)

original = torch.fx.traceback.format_stack, torch.set_anomaly_enabled
os.register_at_fork(after_in_child=backend.abandon)
thread = threading.Thread(target=flip); thread.start()
held = 0
for _ in range(60):
    held += backend._stacks._lock.locked()
    pid = os.fork()
    if pid == 0:
        same = original == (torch.fx.traceback.format_stack, torch.set_anomaly_enabled)
        os._exit(0 if same and not torch.is_anomaly_enabled() else 1)
    end = time.monotonic() + 5
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done: break
        if time.monotonic() > end:
            os.kill(pid, 9); os.waitpid(pid, 0); status = "hung"; break
        time.sleep(0.001)
    if status: break
stop.set(); thread.join()
print(status, held > 0)
"""


def test_fork_while_another_thread_switches_stacks():
    done = run_python(FORKS)
    assert done.stdout == "0 True\n", (done.stdout, done.stderr[-2000:])
