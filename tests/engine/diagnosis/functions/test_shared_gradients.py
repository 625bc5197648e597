"""Hooks that write into a gradient which another branch is handed as well. Witness: the gradient of what the skip path
starts from, against one of the same program whose hook gives back a new tensor."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import named, only

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self, hook=None, at="branch"):
        super().__init__()
        self.inner, self.branch, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.hook, self.at = hook, at

    def forward(self, x):
        h = self.inner(x)
        found = {"skip": h, "branch": self.branch(h)}
        found["sum"] = JOIN
        if self.hook is not None and found[self.at].requires_grad:
            found[self.at].register_hook(self.hook)
        return self.head(found["sum"])

def unlike(hook, expected, at="branch"):
    torch.manual_seed(1)
    one, x, grads = Net(hook, at), torch.randn(8, 4), []
    other = Net(expected, at)
    other.load_state_dict(one.state_dict())
    for net in (one, other):
        (net(x) - 1).square().mean().backward()
        grads.append(net.inner.weight.grad)
    print("another gradient:", not torch.allclose(*grads))

def fit(net, steps=6):
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    for step in range(steps):
        loss = (net(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
JOIN = 'found["skip"] + found["branch"]'
TIMES = """
def hook(grad):
    grad.mul_(0.5)  # CAUSE
unlike(hook, lambda grad: grad * 0.5)
fit(Net(hook))
"""
CLAMPED = """
def hook(grad):
    return grad.clamp_(-0.01, 0.01)  # CAUSE
unlike(hook, lambda grad: grad.clamp(-0.01, 0.01))
fit(Net(hook))
"""
MASKED = """
def hook(grad):
    grad[grad.abs() < 0.02] = 0  # CAUSE
unlike(hook, lambda grad: grad * (grad.abs() >= 0.02))
fit(Net(hook))
"""
SCALED = """
def hook(grad):
    size = grad.norm()
    s = 0.01 / (size + 1e-6)
    grad *= s  # CAUSE
    return grad
unlike(hook, lambda grad: grad * (0.01 / (grad.norm() + 1e-6)))
fit(Net(hook))
"""
# By a view, by a method of an object, by torch's function, and through the skip path itself.
VIEWED = """
def hook(grad):
    rows = grad.view(-1)
    rows.mul_(0.25)  # CAUSE
unlike(hook, lambda grad: grad * 0.25)
fit(Net(hook))
"""
OF_AN_OBJECT = """
class Rescale:
    def __init__(self, by):
        self.by = by
    def change(self, grad):
        grad.div_(self.by)  # CAUSE
unlike(Rescale(4.0).change, lambda grad: grad / 4)
fit(Net(Rescale(4.0).change))
"""
CALLED = """
class Rescale:
    def __init__(self, by):
        self.by = by
    def __call__(self, grad):
        grad.div_(self.by)  # CAUSE
unlike(Rescale(4.0), lambda grad: grad / 4)
fit(Net(Rescale(4.0)))
"""
OUT = """
def hook(grad):
    torch.mul(grad, 0.3, out=grad)  # CAUSE
unlike(hook, lambda grad: grad * 0.3)
fit(Net(hook))
"""
ONE_ROW = """
def hook(grad):
    grad[0] = 0.0  # CAUSE
    grad[3] = 0.0
unlike(hook, lambda grad: torch.cat([grad[:1] * 0, grad[1:3], grad[3:4] * 0, grad[4:]]))
fit(Net(hook))
"""
# As it is registered.
A_LAMBDA = """
class Own(Net):
    def forward(self, x):
        h = self.inner(x)
        found = self.branch(h)
        if self.hook is None:
            found.register_hook(lambda grad: grad.mul_(0.5))  # CAUSE
        else:
            found.register_hook(self.hook)
        return self.head(h + found)
Net = Own
unlike(None, lambda grad: grad * 0.5)
fit(Own())
"""
MASK = """
kept = torch.rand(6) < 0.5
def hook(grad):
    grad[:, kept] = 0  # CAUSE
unlike(hook, lambda grad: grad * (~kept))
fit(Net(hook))
"""
BUGGY = {
    "mul_": TIMES, "clamp_": CLAMPED, "by a mask": MASKED, "*=": SCALED, "some columns": MASK, "by a view": VIEWED,
    "a method": OF_AN_OBJECT, "out=": OUT, "a row": ONE_ROW, "an object": CALLED, "a lambda": A_LAMBDA,
    "three terms": (TIMES, 'found["skip"] + found["branch"] + x.sum()'),
    "added by a method": (TIMES, 'h.add(found["branch"])'),
}  # fmt: skip
NEW = """
def hook(grad):
    return grad * 0.5
unlike(hook, lambda grad: grad * 0.5)
fit(Net(hook))
"""
CLONED = """
def hook(grad):
    grad = grad.clone()
    grad.mul_(0.5)
    return grad
unlike(hook, lambda grad: grad * 0.5)
fit(Net(hook))
"""
LOOKED = """
seen = []
def hook(grad):
    seen.append(grad.abs().mean().item())
unlike(hook, None)
fit(Net(hook))
"""
ON_THE_SUM = TIMES.replace("  # CAUSE", "").replace("* 0.5)", '* 0.5, "sum")').replace("Net(hook)", 'Net(hook, "sum")')
ON_A_PARAMETER = """
def hook(grad):
    grad.mul_(0.5)
net = Net()
net.branch.weight.register_hook(hook)
net.inner.bias.register_hook(hook)
other = Net()
other.load_state_dict(net.state_dict())
x = torch.randn(8, 4)
for each in (net, other):
    (each(x) - 1).square().mean().backward()
print("another gradient:", not torch.allclose(net.head.weight.grad, other.head.weight.grad)
      or not torch.allclose(net.inner.weight.grad, other.inner.weight.grad)
      or not torch.allclose(net.branch.weight.grad, 0.5 * other.branch.weight.grad))
fit(net)
"""
# Nobody else has the gradient: each branch is handed its own product, or a clone.
KEPT = TIMES.replace("  # CAUSE", "")
HEALTHY = {
    "out of place": NEW, "a clone": CLONED, "looked at": LOOKED, "on the sum": ON_THE_SUM,
    "on a parameter": ON_A_PARAMETER,
    "a product": (KEPT, 'found["skip"] * found["branch"]'),
    "no other branch": (KEPT, 'found["branch"]'),
    "joined": (KEPT, 'torch.cat([found["skip"][:, :3], found["branch"][:, 3:]], 1)'),
    "a sum of products": (KEPT, 'found["skip"] * 2 + found["branch"] * 3'),
    "less": (KEPT, 'found["branch"] - found["skip"]'),
    # The other branch has been added up to a new one by then.
    "a third that is nearer": (KEPT, 'found["skip"] + found["branch"] + self.branch(h).tanh()'),
    "of another shape": (KEPT, 'found["skip"].mean(1, keepdim=True) + found["branch"]'),
    "behind a function of the program's": (KEPT.replace("unlike(", """
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad
unlike(""", 1), 'Same.apply(found["branch"])'),
    "kept": (KEPT.replace("def hook(grad):", "kept = []\ndef hook(grad):\n    kept.append(grad)"), 'found["branch"]'),
    "a copy of the sum's": (CLAMPED.replace("  # CAUSE", ""), 'found["skip"] + found["branch"].mul(1.0)'),
}  # fmt: skip


FAULTS = {
    # FAULT: told, but at the line that registers it: its class has the code.
    "an object": "what __call__ of an object writes is not looked for",
}


def texts() -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    made = {}
    for name, part in parts.items():
        body, join = part if isinstance(part, tuple) else (part, JOIN)
        made[name] = HEAD.replace("JOIN", join) + body
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each("torch", tmp_path_factory.mktemp("programs"), texts())


of_torch = only("torch", "Paddle's tensors do not tell how many hold them")


@of_torch
@named(BUGGY, FAULTS)
def test_a_gradient_that_another_branch_is_handed(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "another gradient: True\n" in run.plain, run
    first = run.check_first("gradient-hook")
    assert first["severity"] == "warning" and "which another branch is handed" in first["message"], first
    assert len(run.above_notes()) == 1, run


@of_torch
@named(HEALTHY, {})
def test_a_gradient_that_nobody_else_has(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert "another gradient: False\n" in run.plain, run
    notes = {"looked at": 0, "on a parameter": 2}.get(name, 1)  # that it changes gradients at all
    run.check_healthy(*["gradient-hook"] * notes)
    assert not [each for each in run.every if "another branch" in each["message"]], run
