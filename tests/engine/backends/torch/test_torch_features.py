"""What people do with torch's autograd keeps working, and is seen, with every node hooked and stacks on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from adbg.engine.backends.base import HookPlan
from tests.support.torch_watch import EVERY, Watch, watching

ROOT = Path(__file__).resolve().parents[4]
PLANS = [EVERY, HookPlan(screen=True), HookPlan(every=True, contributions=True)]


def cube(x):
    return (x**3).sum()


@pytest.mark.parametrize("plan", PLANS)
def test_functional_transforms(plan):
    x = torch.tensor([1.0, 2.0])
    watch = Watch(plan)
    with watching(watch, stacks=True):
        f = torch.autograd.functional
        assert torch.allclose(f.jacobian(lambda v: v**2, x), torch.diag(2 * x))
        assert torch.allclose(f.hessian(cube, x), torch.diag(6 * x))
        assert torch.allclose(f.vjp(cube, x)[1], 3 * x**2)
        assert torch.allclose(f.jvp(cube, x, torch.ones(2))[1], (3 * x**2).sum())
        eager = len(watch.calls)
        assert torch.allclose(torch.func.grad(cube)(x), 3 * x**2)
        assert torch.allclose(torch.func.vjp(cube, x)[1](torch.tensor(1.0))[0], 3 * x**2)
        assert torch.allclose(torch.func.jacrev(lambda v: v**2)(x), torch.diag(2 * x))
        assert torch.allclose(torch.func.hessian(cube)(x), torch.diag(6 * x))
        assert torch.allclose(torch.func.vmap(torch.func.grad(cube))(torch.stack([x, x])), 3 * torch.stack([x, x]) ** 2)
        assert torch.allclose(torch.func.jacfwd(lambda v: v**2)(x), torch.diag(2 * x))
        (batched,) = torch.autograd.grad(*_pair(x), grad_outputs=torch.eye(2), is_grads_batched=True)
        assert torch.allclose(batched, torch.diag(2 * x))
    assert eager >= 4 and len(watch.calls) > eager
    assert all(call.error is None for call in watch.calls)


def _pair(x):
    leaf = x.clone().requires_grad_()
    return leaf**2, leaf


@pytest.mark.parametrize("plan", PLANS)
def test_gradcheck_lbfgs_scaler_and_double_backward(plan):
    watch = Watch(plan)
    with watching(watch, stacks=True):
        x = torch.randn(3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda v: (v.sin() * v).sum(), x)
        assert torch.autograd.gradgradcheck(lambda v: (v.sin() * v).sum(), x)
        model = nn.Linear(3, 1)
        batch = torch.randn(8, 3)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

        def closure():
            optimizer.zero_grad()
            loss = (model(batch) - 1).square().mean()
            loss.backward()
            return loss

        first = optimizer.step(closure)
        assert closure() < first
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
        y = torch.randn(3, requires_grad=True)
        (g,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
        g.sum().backward()
        assert torch.allclose(y.grad, 6 * y)
    assert all(call.error is None for call in watch.calls)
    if plan is EVERY:
        assert all(call.begun == call.order for call in watch.calls)


@pytest.mark.parametrize("plan", PLANS)
def test_views_in_place_and_hooks_of_the_script(plan):
    watch = Watch(plan)
    fired: list = []
    with watching(watch, stacks=True):
        a = torch.randn(4, requires_grad=True)
        b = a * 1
        b[:2] *= 3
        b.register_hook(lambda g: fired.append("tensor") or g * 2)
        a.register_post_accumulate_grad_hook(lambda p: fired.append("leaf"))
        b.retain_grad()
        b.sum().backward()
    assert a.grad.tolist() == [6.0, 6.0, 2.0, 2.0] and b.grad.tolist() == [2.0] * 4
    assert fired == ["tensor", "leaf"]


@pytest.mark.parametrize("plan", PLANS)
def test_tensor_subclasses(plan):
    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    watch = Watch(plan)
    with watching(watch, stacks=True):
        a = torch.randn(3).as_subclass(Tagged).requires_grad_()
        a.exp().sum().backward()
        assert torch.allclose(a.grad.as_subclass(torch.Tensor), a.detach().as_subclass(torch.Tensor).exp())
    assert watch.last.roots == ("SumBackward0",) or watch.last.roots


def test_both_checkpoints_are_one_call_or_a_nested_one():
    watch = Watch()
    layer = nn.Linear(3, 3)
    with watching(watch, stacks=True):
        x = torch.randn(2, 3, requires_grad=True)
        torch.utils.checkpoint.checkpoint(lambda v: layer(v).tanh(), x, use_reentrant=False).sum().backward()
        assert len(watch.calls) == 1 and "TanhBackward0#1" in watch.last.begun
        torch.utils.checkpoint.checkpoint(lambda v: layer(v).tanh(), x, use_reentrant=True).sum().backward()
    outer, inner = watch.calls[1:]
    assert (inner.depth, inner.enclosing) == (1, "CheckpointFunctionBackward#1")
    assert "TanhBackward0#1" in inner.begun and outer.begun == outer.order


def test_jit_script_keeps_working():
    watch = Watch()
    with watching(watch, stacks=True):

        @torch.jit.script
        def scripted(x):
            return (x * 2).sum()

        a = torch.ones(3, requires_grad=True)
        scripted(a).backward()
        traced = torch.jit.trace(lambda x: x.exp(), torch.ones(3))
        traced(a).sum().backward()
    assert len(watch.calls) == 2 and a.grad.tolist() == pytest.approx([2 + 2.718281828] * 3)


def run_python(code: str, *arguments: str, timeout: float = 180, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
    )


COMPILED = """
import sys, torch
from torch import nn
from tests.support.torch_watch import EVERY, Watch, watching
torch.manual_seed(0)
def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))
x = torch.randn(3, 4)
def train(model, run):
    for _ in range(2):
        run(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]
plain = build(); expected = train(plain, torch.compile(plain, backend=sys.argv[1]))
torch._dynamo.reset()
from torch._dynamo.utils import counters
counters.clear()
model = build()
watch = Watch(EVERY)
kinds = {}
with watching(watch, stacks=True):
    watch.begin = lambda call: kinds.update({call.name(k): call.describe(k).compiled for k in call.order()})
    got = train(model, torch.compile(model, backend=sys.argv[1]))
assert all(torch.equal(a, b) for a, b in zip(expected, got)), "gradients differ"
assert len(watch.calls) == 2, len(watch.calls)
assert all(c.begun == c.order and c.error is None for c in watch.calls)
print("breaks", sum(counters["graph_break"].values()), "graphs", counters["stats"]["unique_graphs"])
print(sorted(name for name, compiled in kinds.items() if compiled), "AccumulateGrad" in kinds)
"""


@pytest.mark.parametrize(("backend", "compiled"), [("aot_eager", "['CompiledFunctionBackward']"), ("eager", "[]")])
def test_compiled_models(backend, compiled):
    done = run_python(COMPILED, backend)
    assert done.returncode == 0, done.stderr
    assert "breaks 0 graphs 1" in done.stdout
    assert "global hooks" not in done.stderr, "torch.compile warned the script of adbg's own hooks"
    assert f"{compiled} True" in done.stdout


def test_compile_still_warns_of_the_scripts_own_global_hooks():
    done = run_python("""
        import torch
        from tests.support.torch_watch import Watch, watching
        with watching(Watch(), stacks=True):
            handle = torch.nn.modules.module.register_module_forward_hook(lambda m, a, r: None)
            torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    """)
    assert done.returncode == 0 and "global hooks" in done.stderr


def test_callbacks_queued_on_the_engine_object():
    """Sharded training queues its final callbacks through the very object that adbg replaces."""
    done: list = []
    a = torch.ones(2, requires_grad=True)
    with watching(Watch()):
        queue = torch.autograd.Variable._execution_engine.queue_callback
        a.register_hook(lambda g: queue(lambda: done.append(a.grad is not None)))
        a.sum().backward()
        assert torch.autograd.Variable._execution_engine.is_checkpoint_valid()
    assert done == [True]


def test_export_and_make_fx_trace_no_hook():
    from torch.fx.experimental.proxy_tensor import make_fx

    def step(x):
        y = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((y.sin() * y).sum(), y)
        return g

    x = torch.randn(3)
    plainly = make_fx(step)(x).code
    watch = Watch(HookPlan(every=True, screen=True))
    with watching(watch, stacks=True):
        assert make_fx(step)(x).code == plainly
        exported = torch.export.export(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), (x,))
        assert torch.isfinite(exported.module()(x)).all()


DISTRIBUTED = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from tests.support.torch_watch import EVERY, Watch, watching
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", rank=rank, world_size=2)
def run(watch):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]
plain = run(None)
watch = Watch(EVERY)
with watching(watch, stacks=True):
    seen = run(watch)
assert all(torch.equal(a, b) for a, b in zip(plain, seen))
assert len(watch.calls) == 3 and all(c.begun == c.order == c.ended for c in watch.calls)
print("same", flush=True)
dist.barrier()
os._exit(0)  # gloo's threads abort one interpreter exit in six here ("terminate called"), without adbg as well
"""


def test_distributed_data_parallel():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DISTRIBUTED],
            cwd=ROOT,
            env={**os.environ, **environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            out, error = process.communicate(timeout=120)
            assert process.returncode == 0 and "same" in out, error
    finally:
        for process in ranks:
            process.kill()
