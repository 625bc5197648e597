"""Programs with custom functions, hooks and checkpoints as they are meant to be: nothing above a note, the same results
to the last digit."""

from __future__ import annotations

from pathlib import Path

from support.diagnosing import check_healthy

PROGRAM = """
    import torch, torch.nn as nn, torch.nn.functional as F
    from torch.autograd.function import once_differentiable
    from torch.utils.checkpoint import checkpoint

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, beta):
            ctx.save_for_backward(x)
            ctx.beta = beta
            return x * torch.sigmoid(beta * x)
        @staticmethod
        @once_differentiable
        def backward(ctx, grad):
            x, = ctx.saved_tensors
            s = torch.sigmoid(ctx.beta * x)
            return grad * (s + ctx.beta * x * s * (1 - s)), None

    class Quantise(torch.autograd.Function):  # straight-through
        @staticmethod
        def forward(ctx, x):
            return (x * 8).round() / 8
        @staticmethod
        def backward(ctx, grad):
            return grad

    class ClampThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clamp(-0.2, 0.2)
        @staticmethod
        def backward(ctx, grad):
            return grad

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x.view_as(x)
        @staticmethod
        def backward(ctx, grad):
            return -ctx.factor * grad, None

    class RandomDrop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, p):
            ctx.keep = (torch.rand_like(x) > p).to(x.dtype) / (1 - p)
            return x * ctx.keep
        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.keep, None

    class LinearFn(torch.autograd.Function):
        @staticmethod
        def forward(x, w, b):
            return x @ w.t() + b
        @staticmethod
        def setup_context(ctx, inputs, output):
            x, w, b = inputs
            ctx.save_for_backward(x, w)
        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w, grad.t() @ x, grad.sum(0)

    class AddOne_(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.add_(1)
        @staticmethod
        def backward(ctx, grad):
            return grad

    class Counting(torch.autograd.Function):  # keeps statistics of its own
        @staticmethod
        def forward(ctx, x, seen):
            seen += x.detach().abs().mean()
            return 2 * x
        @staticmethod
        def backward(ctx, grad):
            return 2 * grad, None

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.calls = 0  # for a log: nothing is computed with it
        def forward(self, x):
            self.calls += 1
            return self.b(F.dropout(torch.relu(self.a(x)), 0.3, self.training))

    torch.manual_seed(1)
    net = nn.ModuleDict({"in": nn.Linear(4, 8), "block": Block(), "mid": Block(), "out": nn.Linear(8, 2)})
    seen = torch.zeros(())
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    norms = []
    net["in"].weight.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
    net["out"].weight.register_hook(lambda grad: norms.append(grad.norm().item()))
    net["out"].bias.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm().item()))
    net["block"].register_full_backward_hook(lambda module, given, got: None)
    mask = torch.ones(8); mask[0] = 0
    net["in"].bias.register_hook(lambda grad: grad * mask)
    swish = Swish.apply
    for step in range(10):
        x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
        h = swish(net["in"](x), 1.5)
        handle = h.register_hook(lambda grad: norms.append(float(grad.sum())))
        h = Counting.apply(AddOne_.apply(h * 1.0), seen)
        again = net["out"].weight.register_hook(lambda grad: None)
        h = checkpoint(net["block"], h, use_reentrant=False)
        h = checkpoint(net["mid"], h, use_reentrant=True)
        h = checkpoint(lambda h: swish(net["block"](h), 1.2), h, use_reentrant=False)
        h = ClampThrough.apply(Quantise.apply(Reverse.apply(RandomDrop.apply(h, 0.2), 0.1)))
        h = LinearFn.apply(h, net["out"].weight, net["out"].bias)
        with torch.no_grad():
            Swish.apply(x, 1.0)
        loss = F.cross_entropy(h, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        again.remove()
        print(step, loss.item(), sum(norms[-3:]))
    try:
        torch.ones(3) @ torch.ones(4)
    except RuntimeError:
        print("as expected")
    print(torch.rand(2).tolist())
"""


def test_functions_hooks_and_checkpoints_as_they_are_meant(tmp_path: Path) -> None:
    check_healthy(tmp_path, PROGRAM)
