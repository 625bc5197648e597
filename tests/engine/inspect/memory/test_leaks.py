"""Every way to keep a graph that people fall into, in one program: the variable and the line that are named are those
that the program knows, it lets go of each by itself to prove it, and what is bounded or keeps no graph is not accused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled
from support.frameworks import case

SCRIPT = """
import collections, functools, gc, queue, threading, weakref
{setup}
x = ones([4, 8])
model = Linear(8, 1)
refs = collections.defaultdict(list)
def made(kind):
    loss = model(x).pow(2).mean()
    refs[kind].append(weakref.ref(loss))
    return loss
class Config:
    seen = []
class Rnn:
    def __init__(self):
        self.h = ones([1, 8])
    def __call__(self):
        self.h = self.h * 2 + model(x).sum()
rnn = Rnn()
@functools.lru_cache(None)
def cached(number):  # LINE cached
    return made("cached")
def generator():
    kept = []
    while True:
        kept.append(made("generator"))  # LINE generator
        yield
class Keeps({Function}):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
def fails():
    extra = made("error")
    raise ValueError("planned")
running, local, mailbox, steps = generator(), threading.local(), queue.Queue(), []
total, losses, errors, calls, defaults, nodes, handles = 0, [], [], [], [], {{}}, []
slow = []
# bounded, or without a graph
window, cache, means, previous = collections.deque(maxlen=25), {{}}, [], None
def hook(kept):
    return lambda grad: (kept, grad)[1]  # LINE hook
def step(i):
    global total, previous
    loss = made("losses")
    total += loss.mean()  # LINE total
    losses.append(loss)  # LINE losses
    handles.append(model.weight.register_hook(hook(made("hook"))).remove)
    Config.seen.append(made("class"))  # LINE class
    rnn()
    cached(i)
    next(running)
    try:
        fails()
    except ValueError as error:
        errors.append(error)  # LINE error
    calls.append(functools.partial(print, made("partial")))  # LINE partial
    defaults.append(lambda kept=made("default"): kept)  # LINE default
    local.kept = [*getattr(local, "kept", ()), made("local")]  # LINE local
    mailbox.put(made("queue"))  # LINE queue
    nodes[i] = Keeps.apply(model(x)).sum().grad_fn  # LINE nodes
    if i % 3 == 0:
        slow.append(made("slow"))  # LINE slow
    del loss
    long = sum([model(x).sum() for _ in range(i + 1)])
    window.append(ones([4]) * 2)
    cache.setdefault(i % 4, ones([4]))
    means.append((long * 1).detach())
    previous = long
    long.backward()
def alive(kind):
    gc.collect()
    return sum(ref() is not None for ref in refs[kind])
for i in range(19):
    step(i)
step = None
clear = dict(
    losses=lambda: (losses.clear(), globals().update(total=0)), cached=cached.cache_clear, error=errors.clear,
    partial=calls.clear, default=defaults.clear, local=lambda: delattr(local, "kept"), queue=mailbox.queue.clear,
    slow=slow.clear, hook=lambda: [remove() for remove in handles], generator=running.close,
)
clear["class"] = Config.seen.clear
for kind, drop in clear.items():
    before = alive(kind)
    drop()
    print(kind, before, alive(kind))
"""
TORCH = SCRIPT.format(
    setup="import torch\ntorch.set_num_threads(1)\nones, Linear = torch.ones, torch.nn.Linear",
    Function="torch.autograd.Function",
)
PADDLE = SCRIPT.format(
    setup="import paddle\npaddle.set_device('cpu')\nones, Linear = paddle.ones, paddle.nn.Linear",
    Function="paddle.autograd.PyLayer",
)
OWNERS = {
    "losses[*]": "losses", "Config.seen[*]": "class", "cached → cache[*]": "cached", "local.kept[*]": "local",
    "running.gi_frame.f_locals['kept'][*]": "generator", "calls[*].args[0]": "partial", "mailbox.queue[*]": "queue",
    "errors[*].__traceback__.tb_next.tb_frame.f_locals['extra']": "error", "slow[*]": "slow",
    "defaults[*].__defaults__[0]": "default", "nodes[*]": "nodes",
    "errors[*].__traceback__.tb_frame.f_locals['long']": "error",
}  # fmt: skip
HOOKS = {
    "torch": "model.weight._backward_hooks[*].__closure__[0].cell_contents",
    "paddle": "kept of <lambda>()",  # C++ has Paddle's hooks: no variable leads there
}


def _line(owner: dict[str, Any]) -> int:
    return int((owner["filled"] or owner["made"] or owner["where"])["line"])


@pytest.mark.parametrize(("framework", "script"), [case("torch", "torch", TORCH), case("paddle", "paddle", PADDLE)])
def test_every_leak_has_its_owner_and_nothing_else_is_accused(tmp_path: Path, framework: str, script: str) -> None:
    with Dialled(tmp_path, script) as run:
        peer = run.peer
        peer.begin("backward ignore 18", entry=True)
        peer.stopped()
        peer.request("adbg/memory", rows=0, watch=True)
        peer.go()
        lines = {name: run.line(f"# LINE {name}") for name in {*OWNERS.values(), "total", "hook"}}
        lines |= {"cached": lines["cached"] - 1}  # its decorator
        found = {owner["path"]: owner for owner in peer.request("adbg/alive")["graphs"]}
        told = {each["growth"]["owner"]["path"]: each["growth"] for each in peer.bodies("adbg/memoryGrows")}
        for path, name in {**OWNERS, HOOKS[framework]: "hook"}.items():
            assert _line(found[path]) == lines[name], path
            assert name == "slow" or found[path]["count"] >= 18, path
            if (framework, name) != ("paddle", "hook"):
                assert _line(told[path]["owner"]) == lines[name] and not told[path]["nodes"], path
        assert _line(found["total"]) == lines["total"] == _line(told["total"]["owner"]) and told["total"]["nodes"]
        assert told["rnn.h"]["nodes"] and found["rnn.h"]["kind"] == "attribute"
        counts = [count for _, count in told["total"]["counts"]]
        assert counts[0] < counts[1] < counts[2]
        accused = {"total", "rnn.h", HOOKS[framework], *OWNERS}
        assert told.keys() <= accused and found.keys() <= {*accused, "previous", "long"}, "nothing else"
        peer.set()
        peer.request("continue")
        out = run.end()[1].splitlines()
        kept = {line.split()[0]: line.split()[1:] for line in out}
        assert kept.keys() == {*OWNERS.values(), "hook"} - {"nodes"}
        for name, (before, after) in kept.items():
            assert int(before) == (7 if name == "slow" else 19) and int(after) == 0, f"{name}: the program let go of it"
