"""Diagnosis changes nothing of a program: what its own classes of tensors, its modes and its functions see, the random
numbers that come next. Witness: what the program itself counts, and its results to the bit, beside a run without adbg.
"""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import random
import numpy
import torch
from torch import nn
torch.manual_seed(0)
Function, fixed, noise = torch.autograd.Function, torch.tensor, torch.randn
from torch.utils.checkpoint import checkpoint
def recompute(function, x):
    return checkpoint(function, x, use_reentrant=False)
def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.01)
""",
    "paddle": """
import random
import numpy
import paddle
from paddle import nn
paddle.seed(0)
Function, fixed, noise = paddle.autograd.PyLayer, paddle.to_tensor, lambda *shape: paddle.randn(shape)
from paddle.distributed.fleet.utils import recompute as region
def recompute(function, x):
    return region(function, x, use_reentrant=False)
def sgd(net):
    return paddle.optimizer.SGD(0.01, parameters=net.parameters())
""",
}
LOOP = """
net = nn.Linear(4, 4)
optimizer = sgd(net)
for step in range(12):
    loss = OurFunction.apply(net(noise(8, 4))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.CLEAR()
"""

# Its forward draws of Python and of NumPy.
DRAWS = """
class OurFunction(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = random.random() + numpy.random.rand()
        return x * ctx.scale
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale
"""
DRAWS_WRONG = DRAWS.replace("grad * ctx.scale", "grad * ctx.scale * 2  # CAUSE")
# What it keeps outside of its call changes what it computes next.
COUNTS = """
class Mean:
    def __init__(self):
        self.value = fixed(0.0)
    def count(self, x):
        self.value = 0.9 * self.value + 0.1 * x.detach().abs().mean()
SEEN = Mean()

class OurFunction(Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.count(x)
        ctx.scale = 1 / (1 + float(SEEN.value))
        return x * ctx.scale
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale
"""
# The same one call further away, and in a list.
COUNTS_BY_HELPER = """
CALLS = []
def remember(x):
    CALLS.extend([x.detach().abs().mean()])

class OurFunction(Function):
    @staticmethod
    def forward(ctx, x):
        remember(x)
        return x * len(CALLS)
    @staticmethod
    def backward(ctx, grad):
        return grad * len(CALLS)
"""
# What its helpers only compute is no reason not to look.
HELPED_WRONG = """
class Settings:
    def __init__(self):
        self.scale = 3.0
SETTINGS, OFFSET = Settings(), fixed([1.0, 2.0, 3.0, 4.0])
def scaled(x):
    return x * SETTINGS.scale + OFFSET

class OurFunction(Function):
    @staticmethod
    def forward(ctx, x):
        return scaled(x)
    @staticmethod
    def backward(ctx, grad):
        return grad  # CAUSE
"""
# A region of a checkpoint has an object around it that raises what no object should.
SETTINGS = """
class Settings(dict):
    def __getattr__(self, name):
        return self[name]
SETTINGS = Settings(scale=2.0)
net = nn.Linear(4, 4)
optimizer = sgd(net)
def run(net, settings):
    return recompute(lambda x: net(x) * settings.scale, noise(8, 4))
for step in range(5):
    loss = run(net, SETTINGS).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.CLEAR()
"""

BUGGY = {"draws wrong": DRAWS_WRONG + LOOP, "helped wrong": HELPED_WRONG + LOOP}
HEALTHY = {
    "draws": DRAWS + LOOP, "counts": COUNTS + LOOP, "counts by a helper": COUNTS_BY_HELPER + LOOP, "settings": SETTINGS,
}  # fmt: skip

# ---- torch: classes of tensors and modes that see every call. Paddle has none.

# A tensor with a unit: what is not known to keep it raises.
UNITS = """
class Units(torch.Tensor):
    known = {"linear", "mean", "backward", "item", "size", "__repr__"}
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ not in cls.known:
            raise TypeError("Units has no " + function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})

net = nn.Linear(4, 1)
optimizer = sgd(net)
for step in range(5):
    loss = net(noise(8, 4).as_subclass(Units)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
del loss
"""
# A tensor that notes whatever is asked of it.
ASKED = """
from torch.utils.checkpoint import checkpoint
ASKED = []
class Told(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        ASKED.append((function.__name__, getattr(getattr(function, "__self__", None), "__name__", "")))
        return super().__torch_function__(function, types, args, kwargs or {})

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.randn(3).as_subclass(Told))
    def forward(self, x):
        inner = checkpoint(lambda each: torch.tanh(self.drop(self.first(each))), x, use_reentrant=False)
        return Square.apply(self.last(inner) * self.scale)

def train():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(9):
        out = net(noise(8, 4).as_subclass(Told))
        out.register_hook(lambda grad: grad * 1)
        loss = nn.functional.cross_entropy(out, torch.randint(0, 3, (8,)).as_subclass(Told))
        loss = loss + torch.stack([out, out]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(loss.item())
train()
print(len(ASKED), sorted(set(ASKED)))
"""
# A mode that counts copies.
MODE = (
    """
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    calls = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        Count.calls += 1
        return function(*args, **(kwargs or {}))
"""
    + DRAWS
    + LOOP.replace("for step", "mode = Count()\nmode.__enter__()\nfor step")
    + """
mode.__exit__(None, None, None)
print(Count.calls)
"""
)
# A class that counts, and whose names are those of adbg's own way through a list.
LISTS = """
CALLS = []
class Rows(list):
    def __iter__(self):
        CALLS.append("iter")
        return super().__iter__()
    def __len__(self):
        CALLS.append("len")
        return super().__len__()

net = nn.Linear(4, 1)
optimizer = sgd(net)
for step in range(5):
    loss = torch.stack(Rows([net(noise(4)).square(), net(noise(4)).square()])).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), len(CALLS))
"""
# Tensors that keep another one, and handle every operator themselves: what they do not know raises.
WRAPPED = """
from collections import Counter
from torch.utils._pytree import tree_map
CALLS = Counter()
class Logged(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        make, recorded = torch.Tensor._make_wrapper_subclass, inner.requires_grad
        return make(cls, inner.size(), dtype=inner.dtype, requires_grad=recorded)
    def __init__(self, inner):
        self.inner = inner
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        CALLS[str(function)] += 1
        args, kwargs = tree_map(lambda each: each.inner if isinstance(each, Logged) else each, (args, kwargs or {}))
        results = function(*args, **kwargs)
        return tree_map(lambda each: Logged(each) if isinstance(each, torch.Tensor) else each, results)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]

def train():
    weight = Logged(torch.randn(4, 1)).requires_grad_()
    optimizer = torch.optim.SGD([weight], 0.1, foreach=False)
    for step in range(12):
        loss = Square.apply((Logged(torch.randn(8, 4)) @ weight).relu()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.inner.item())
train()
print(sorted(CALLS.items()))
"""
# What such a tensor keeps is looked at.
WRAPPED_LEFT = WRAPPED.replace("        optimizer.zero_grad()\n", "")
# What Python says of the functions that adbg stands in for.
SIGNATURES = """
import inspect
net = nn.Linear(4, 1)
optimizer = sgd(net)
for step in range(3):
    loss = net(noise(8, 4)).mean()
    loss.register_hook(lambda grad: grad * 1)
    loss.backward()
    calls = loss.backward, loss.register_hook, optimizer.zero_grad, optimizer.step, net.forward, net.__call__
    more = torch.utils.checkpoint.checkpoint, nn.utils.clip_grad_norm_, torch.autograd.Function.apply, torch.compile
    print([(each.__name__, str(inspect.signature(each))) for each in (*calls, *more)])
    optimizer.step()
    optimizer.zero_grad()
"""
SEES = {"units": UNITS, "asked": ASKED, "mode": MODE, "lists": LISTS, "signatures": SIGNATURES, "wrapped": WRAPPED}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    own = {**SEES, "wrapped left": WRAPPED_LEFT} if request.param == "torch" else {}
    programs = {**BUGGY, **HEALTHY, **own}
    texts = {name: HEAD[request.param] + text.replace("CLEAR()", f"{clear}()") for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"untouched-{name}") for name in FRAMEWORKS], indirect=True
)
on_torch = pytest.mark.parametrize("runs", [case("torch", "torch", group="untouched-torch")], indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_wrong_derivative_is_found(runs: dict[str, Run], name: str) -> None:
    assert runs[name].check_first("wrong-derivative")["severity"] == "error"


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_functions_leave_what_they_would(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@on_torch
def test_a_wrapper_is_looked_into(runs: dict[str, Run]) -> None:
    assert runs["wrapped left"].check_first("zero-grad")["severity"] == "error"


@on_torch
@pytest.mark.parametrize("name", SEES)
def test_what_sees_every_call_sees_none_of_adbg(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
