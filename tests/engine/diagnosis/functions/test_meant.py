"""Statistics that a checkpoint moves twice, backwards that approximate on purpose, exceptions that leave a backward on
purpose; beside the mistakes that look like them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import os, random, signal, torch
from torch import nn
from torch.utils import checkpoint as checkpoints
torch.manual_seed(0)
Function, noise = torch.autograd.Function, torch.randn
def again(block, x, old):
    return checkpoints.checkpoint(block, x, use_reentrant=old)
def sgd(module):
    return torch.optim.SGD(module.parameters(), 0.05)
def kept(ctx):
    return ctx.saved_tensors
def take(x):
    return x.requires_grad_()
relu, zeros, full = torch.relu, torch.zeros, torch.full_like
Module = nn.Module
""",
    "paddle": """
import os, random, signal, paddle
from paddle import nn
from paddle.distributed.fleet import utils as fleet
paddle.seed(0)
Function, noise = paddle.autograd.PyLayer, lambda *shape: paddle.randn(shape)
def again(block, x, old):
    return fleet.recompute(block, x)
def sgd(module):
    learnt = [each for each in module.parameters() if not each.stop_gradient]
    return paddle.optimizer.SGD(0.05, parameters=learnt)
def kept(ctx):
    return ctx.saved_tensor()
def take(x):
    x.stop_gradient = False
    return x
relu, zeros, full = nn.functional.relu, paddle.zeros, paddle.full_like
Module = nn.Layer
""",
}

# Paddle restores Python's own. A BatchNorm counts its batches, and one of the program's own moves a mean, in each pass.
CHECKPOINT = """
GENERATOR = random.Random(0)
class Norm(Module):
    def __init__(self, width):
        super().__init__()
        self.mean, self.seen = zeros([width]), zeros([])
    def forward(self, x):
        mean = x.mean(0)
        self.mean.copy(0.9 * self.mean + 0.1 * mean.detach())
        self.seen += 1
        return x - mean
class Block(Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 4), nn.BATCH(4), nn.ACT, nn.Linear(4, 4), Norm(4))
    def forward(self, x):
        h = relu(self.parts(x))
        gain = GAIN
        return h * gain
net = nn.LIST([Block(), Block()])
opt = sgd(net)
for step in range(4):
    x = take(noise(16, 4))
    for block in net:
        x = again(block, x, step % 2 == 0)
    loss = x.square().mean()
    loss.backward()
    opt.step()
    opt.CLEAR()
"""
DRAWN = CHECKPOINT.replace("GAIN", "full(x, GENERATOR.random())  # CAUSE")

# The backward of a ReLU, or of a step to a fixed point.
FUNCTION = """
class Kept(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clip(min=0)
        for number in range(3):
            BODY
        ctx.save_for_backward(x)
        return y * y
    @staticmethod
    def backward(ctx, grad):
        x, = kept(ctx)
        slope = (x > 0).astype(grad.dtype)
        return RESULT  # CAUSE
net = nn.Linear(4, 4)
opt = sgd(net)
for _ in range(3):
    loss = Kept.apply(net(noise(8, 4))).sum()
    loss.backward()
    opt.step()
    opt.CLEAR()
"""
SLIP = FUNCTION.replace("BODY", "y = y + number * x").replace("RESULT", "grad * slope")
GUIDED = SLIP.replace("grad * slope", "grad.clip(min=0) * slope")
NAMED = SLIP.replace("    @staticmethod", '    """With a surrogate gradient."""\n    @staticmethod', 1)
UNUSED = SLIP.replace("grad * slope", "2 * x * slope")
# A loss whose own gradient is 1: its backward may leave it out.
LOSS = """
class Squares(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum()
    @staticmethod
    def backward(ctx, grad):
        x, = kept(ctx)
        return 2 * x
net = nn.Linear(4, 4)
opt = sgd(net)
for _ in range(3):
    loss = Squares.apply(net(noise(8, 4)))
    loss.backward()
    opt.step()
    opt.CLEAR()
"""
WEIGHTED = LOSS.replace("return 2 * x", "return 2 * x  # CAUSE").replace(
    "    loss.backward", "    loss = 0.1 * loss\n    loss.backward"
)
SPIKES = SLIP.replace("        for number in range(3):\n            BODY\n", "").replace(
    "return y * y", "return (x > 0).astype(x.dtype)"
)
UNUSED_SPIKES = SPIKES.replace("grad * slope", "1 / (1 + x.abs()) ** 2")
SETTLED = FUNCTION.replace("BODY", "y = (0.3 * y + x).tanh()").replace("RESULT", "2 * grad * slope")

# A signal stands in for the end of a slice of time.
LEAVES = """
class Done(Exception):
    pass
def over(*given):
    raise Done("time is up")
signal.signal(signal.SIGUSR1, over)
class Tap(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        if step == 3:
            LEAVE  # CAUSE
        return grad * 2
net = nn.Linear(4, 4)
opt = sgd(net)
for step in range(5):
    try:
        Tap.apply(net(noise(8, 4))).square().mean().backward()
        opt.step()
    except CAUGHT:
        print("left")
    opt.CLEAR()
"""
ALARM = LEAVES.replace("LEAVE ", "os.kill(os.getpid(), signal.SIGUSR1) ").replace("CAUGHT", "Exception")
LEFT = LEAVES.replace("LEAVE ", "raise Done ").replace("CAUGHT", "Done")
FAILED = LEAVES.replace("LEAVE ", "raise Done ").replace("CAUGHT", "Exception")
SLIPPED = LEAVES.replace("LEAVE ", "grad = {}['gone'] ").replace("CAUGHT", "KeyError")

# A mean of sizes is taken in the memory of the gradient itself.
WATCHED = """
sizes = []
class Watch:
    def __init__(self, net):
        for each in net.parameters():
            each.register_hook(self.look)
    def look(self, grad):
        flat = grad.detach()
        size = flat.abs_().mean().item()  # CAUSE
        sizes.append(size)
net = nn.Linear(4, 4)
Watch(net)
opt = sgd(net)
for _ in range(6):
    loss = net(noise(8, 4)).square().mean()
    loss.backward()
    opt.step()
    opt.CLEAR()
print(sizes)
"""
STATISTIC = "size = flat.abs_().mean().item()  # CAUSE"
LOOKED = {
    "looks": WATCHED.replace(STATISTIC, "size = flat.abs().mean().item()"),
    "copies": WATCHED.replace("grad.detach()", "grad.clone()"),
}
CLIPPED = {  # no statistic is needed of what stands alone, nor of what is clipped; what is returned is meant
    "clips": WATCHED.replace(STATISTIC, "flat.clip_(-0.1, 0.1)\n        size = flat.abs().mean().item()"),
    "clips at once": WATCHED.replace(STATISTIC, "size = flat.clip_(-0.1, 0.1).abs_().mean().item()"),
    "turns": WATCHED.replace(STATISTIC, "flat.abs_()\n        size = flat.mean().item()"),
    "returns": WATCHED.replace("append(size)", "append(size)\n        return grad"),
}

# A second loss that is handed through beside what it belongs to, and gets its 1 whatever becomes of that.
BESIDE = """
class Beside(Function):
    @staticmethod
    def forward(ctx, x, loss):
        ctx.save_for_backward(loss)
        return x * 1
    @staticmethod
    def backward(ctx, grad):
        loss, = kept(ctx)
        return grad, full(loss, 1.0)
net = nn.Linear(4, 4)
opt = sgd(net)
for _ in range(3):
    h = net(noise(8, 4))
    loss = Beside.apply(h, 0.01 * h.square().mean()).square().mean()
    loss.backward()
    opt.step()
    opt.CLEAR()
"""
NEGATIVE = WEIGHTED.replace("0.1 * loss", "-loss")
BUGGY = {
    "recompute-differs": DRAWN, "wrong-derivative": SLIP, "wrong-derivative, unused": UNUSED,
    "wrong-derivative, unused weight": WEIGHTED,
    "wrong-derivative, unused sign": NEGATIVE,
    "wrong-derivative, unused by spikes": UNUSED_SPIKES, "backward-error": FAILED, "backward-error, own": SLIPPED,
}  # fmt: skip
MEANT = {"guided": GUIDED, "named": NAMED, "settled": SETTLED}
NOTED = {"loss": LOSS, "beside": BESIDE}
HEALTHY = {"statistics": CHECKPOINT.replace("GAIN", "2"), "alarm": ALARM, "left": LEFT}
WORDS = {
    "torch": {"BATCH": "BatchNorm1d", "LIST": "ModuleList", "ACT": "ReLU(inplace=True)", "CLEAR": "zero_grad",
              ".copy(": ".copy_(", "astype(grad.dtype)": "to(grad.dtype)",
              "astype(x.dtype)": "to(x.dtype)"},
    "paddle": {"BATCH": "BatchNorm1D", "LIST": "LayerList", "ACT": "ReLU()", "CLEAR": "clear_grad",
               ".copy(": ".set_value("},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    programs = BUGGY | MEANT | NOTED | HEALTHY | LOOKED | CLIPPED | {"watched": WATCHED}
    if framework == "paddle":  # makes an OSError of it, which the program does not catch
        programs = {name: text for name, text in programs.items() if name not in ("left", "backward-error, own")}
    for word, meant in WORDS[framework].items():
        programs = {name: text.replace(word, meant) for name, text in programs.items()}
    texts = {name: HEAD[framework] + text for name, text in programs.items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-meant-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_mistakes_stay_errors(runs: dict[str, Run]) -> None:
    for name in BUGGY.keys() & runs.keys():
        assert runs[name].check_first(name.partition(",")[0])["severity"] == "error", name


@each
def test_an_approximation_that_says_so_is_a_warning(runs: dict[str, Run]) -> None:
    for name in MEANT:
        first = runs[name].check_first("wrong-derivative")
        assert first["severity"] == "warning" and "unless the approximation is meant" in first["message"], first


@each
def test_a_loss_that_is_not_multiplied_is_a_note(runs: dict[str, Run]) -> None:
    for name in NOTED:
        runs[name].check_healthy("wrong-derivative")


@each
def test_what_leaves_or_counts_on_purpose_is_no_finding(runs: dict[str, Run]) -> None:
    for name in HEALTHY.keys() & runs.keys():
        runs[name].check_healthy()


@each
def test_a_statistic_in_the_memory_of_a_gradient(runs: dict[str, Run]) -> None:
    first = runs["watched"].check_first("gradient-hook")
    assert first["severity"] == "warning" and "use abs()" in first["message"], first
    for name in LOOKED:
        runs[name].check_healthy()
    for name in CLIPPED:
        runs[name].check_healthy("gradient-hook")
