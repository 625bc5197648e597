"""What is still alive after each kind of backward, cycles not collected: one line for each kind, twice.

Losses, activations and nodes (by something in their metadata); also what the script's own anomaly mode says.
"""

import gc
import weakref

gc.disable()
CASES = []


def probe(name):
    def note(function):
        CASES.append((name, function))
        return function

    return note


import torch
import warnings
from torch.utils.checkpoint import checkpoint


class Handle:
    pass


class Held:  # collects handles on nodes and tensors
    def __init__(self):
        self.refs = {}

    def nodes(self, *roots):
        seen, todo = set(), [r.grad_fn for r in roots if r.grad_fn is not None]
        while todo:
            n = todo.pop()
            if n is None or n in seen:
                continue
            seen.add(n)
            if not hasattr(n, "variable"):
                h = Handle()
                n.metadata["handle"] = h
                self.refs[f"{n.name()}{len(self.refs)}"] = weakref.ref(h)
            todo += [m for m, _ in n.next_functions]

    def add(self, **k):
        for n, v in k.items():
            self.refs[n] = weakref.ref(v)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.extra = x.clone()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no")


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            ctx.y = y
            ctx.z = (y.exp() * 2).sum()
        return ctx.z.detach()

    @staticmethod
    def backward(ctx, g):
        (gy,) = torch.autograd.grad(ctx.z, ctx.y)
        return gy * g


class InnerRaises(Inner):
    @staticmethod
    def backward(ctx, g):
        bad = _bad(ctx.z)
        try:
            bad.backward()
        except ValueError:
            pass
        return torch.ones_like(ctx.y)


class InnerFails(Inner):
    @staticmethod
    def backward(ctx, g):
        _bad(ctx.z).backward()


def _bad(z):
    with torch.enable_grad():
        return Raises.apply(z * 2)


w = torch.ones(3, requires_grad=True)


def simple(h, x=None):
    a = (w if x is None else x) * 2
    b = a.exp()
    c = b.sigmoid()
    total = (c * b).sum()
    h.add(a=a, b=b, c=c, loss=total)
    h.nodes(total)
    return total


@probe("normal")
def _(h):
    simple(h).backward()


@probe("retain")
def _(h):
    total = simple(h)
    total.backward(retain_graph=True)
    total.backward()


@probe("grad")
def _(h):
    torch.autograd.grad(simple(h), w)


@probe("double")
def _(h):
    x = torch.ones(3, requires_grad=True)
    total = (x.exp() * x).sum()
    (g,) = torch.autograd.grad(total, x, create_graph=True)
    h.add(total=total, g=g, x=x)
    h.nodes(g, total)
    g.sum().backward()


@probe("gradient kept")
def _(h):
    x = torch.ones(3, requires_grad=True)
    total = (x.exp().sin() * 2).sum()
    (h.kept,) = torch.autograd.grad(total, x, create_graph=True)
    h.add(total=total, x=x)
    h.nodes(h.kept, total)


@probe("function raises")
def _(h):
    a = w * 2
    b = Raises.apply(a.exp())
    total = b.sum()
    h.add(a=a, b=b, total=total)
    h.nodes(total)
    try:
        total.backward()
    except ValueError:
        pass


@probe("hook raises")
def _(h):
    a = w * 2
    b = a.exp()
    total = b.sum()
    h.add(a=a, b=b, total=total)
    h.nodes(total)

    def hook(g):
        raise ValueError("no")

    a.register_hook(hook)
    try:
        total.backward()
    except ValueError:
        pass


@probe("C++ error")
def _(h):
    a = w * 2
    b = a.exp()
    total = b.sum()
    b.mul_(2)
    h.add(a=a, b=b, total=total)
    h.nodes(total)
    try:
        total.backward()
    except RuntimeError:
        pass


@probe("second backward")
def _(h):
    total = simple(h)
    total.backward()
    try:
        total.backward()
    except RuntimeError:
        pass


@probe("no grad")
def _(h):
    total = torch.ones(3).sum()
    h.add(total=total)
    try:
        total.backward()
    except RuntimeError:
        pass


@probe("out of memory retried")
def _(h):
    def step(bad):
        a = w * 2
        b = Raises.apply(a.exp()) if bad else a.exp()
        total = b.sum()
        h.add(**{f"a{bad}": a, f"b{bad}": b, f"l{bad}": total})
        h.nodes(total)
        total.backward()

    try:
        step(1)
    except ValueError:
        step(0)


@probe("nested")
def _(h):
    y = Inner.apply(w * 2)
    h.add(y=y, z=y.grad_fn.z)
    h.nodes(y, y.grad_fn.z)
    y.backward()


@probe("nested caught")
def _(h):
    y = InnerRaises.apply(w * 2)
    h.add(y=y, z=y.grad_fn.z)
    h.nodes(y, y.grad_fn.z)
    y.backward()


@probe("nested fails")
def _(h):
    y = InnerFails.apply(w * 2)
    h.add(y=y, z=y.grad_fn.z)
    h.nodes(y, y.grad_fn.z)
    try:
        y.backward()
    except ValueError:
        pass


for re_ in (False, True):

    @probe(f"checkpoint reentrant={re_}")
    def _(h, re_=re_):
        def f(x):
            y = x.exp()
            h.add(**{f"y{len(h.refs)}": y})
            return y.sin()

        x = w * 2
        total = checkpoint(f, x, use_reentrant=re_).sum()
        h.add(x=x, total=total)
        h.nodes(total)
        total.backward()

    @probe(f"checkpoint fails reentrant={re_}")
    def _(h, re_=re_):
        def f(x):
            y = Raises.apply(x.exp())
            h.add(**{f"y{len(h.refs)}": y})
            return y.sin()

        x = w * 2
        total = checkpoint(f, x, use_reentrant=re_).sum()
        h.add(x=x, total=total)
        h.nodes(total)
        try:
            total.backward()
        except ValueError:
            pass


@probe("nested checkpoint")
def _(h):
    def inner(x):
        return x.sin().exp().sin()

    def outer(x):
        y = checkpoint(inner, x.exp(), use_reentrant=False)
        return checkpoint(inner, y, use_reentrant=False)

    total = checkpoint(outer, w * 2, use_reentrant=False).sum()
    h.add(total=total)
    h.nodes(total)
    total.backward()


def grad(fn):
    def wrapper(x):
        with torch.enable_grad():
            out = fn(x)
            (g,) = torch.autograd.grad(out.sum(), inputs=(x,), create_graph=True)
        return g

    return wrapper


def ck(fn):
    return lambda *a: checkpoint(fn, *a, use_reentrant=False)


def sinf(x):
    return x.sin().exp().sin()


for i, fn in enumerate(
    [
        grad(ck(sinf)),
        grad(ck(grad(ck(sinf)))),
        ck(ck(sinf)),
        grad(ck(ck(sinf))),
        ck(grad(ck(sinf))),
        grad(grad(ck(sinf))),
    ]
):

    @probe(f"nested checkpoint grad {i}")
    def _(h, fn=fn):
        a = torch.randn((), requires_grad=True)
        out = fn(a)
        h.nodes(out)
        h.add(out=out)

    @probe(f"nested checkpoint grad {i} backward")
    def _(h, fn=fn):
        a = torch.randn((), requires_grad=True)
        out = fn(a)
        h.nodes(out)
        h.add(out=out)
        out.backward()


@probe("anomaly")
def _(h):
    with warnings.catch_warnings(record=True) as ws:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly():
            a = w * 2
            b = Raises.apply(a.exp())
            total = b.sum()
            h.add(a=a, b=b, total=total)
            h.nodes(total)
            try:
                total.backward()
            except ValueError:
                pass
    for x in ws:
        print("alive warning", str(x.message).replace("\n", "|"), x.filename.rpartition("/")[2], x.lineno)


@probe("anomaly nan")
def _(h):
    with warnings.catch_warnings(record=True) as ws:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly():
            a = w * 0
            b = a.sqrt()
            total = (b * 0).sum()
            h.add(a=a, b=b, total=total)
            h.nodes(total)
            try:
                total.backward()
            except RuntimeError as e:
                print("alive error", e)
    for x in ws:
        print("alive warning", str(x.message).replace("\n", "|"), x.filename.rpartition("/")[2], x.lineno)


@probe("anomaly double")
def _(h):
    with warnings.catch_warnings(record=True) as ws:
        warnings.simplefilter("always")
        with torch.autograd.set_detect_anomaly(True):
            x = torch.zeros(3, requires_grad=True)
            (x * x).sqrt().sum()
            try:
                (g,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
                h.nodes(g)
                h.add(g=g)
                Raises.apply(g).sum().backward()
            except (RuntimeError, ValueError) as e:
                print("alive error", e)
    for x in ws:
        print("alive warning", str(x.message).replace("\n", "|"), x.filename.rpartition("/")[2], x.lineno)


@probe("kept exception")
def _(h):
    a = w * 2
    b = Raises.apply(a.exp())
    total = b.sum()
    h.add(a=a, b=b, total=total)
    h.nodes(total)
    try:
        total.backward()
    except ValueError as e:
        kept = e
    import traceback

    print("alive traceback", [f"{t.name}" for t in traceback.extract_tb(kept.__traceback__)], list(vars(kept)))


KEEP = None
for name, function in CASES:
    for turn in range(2):
        held = KEEP = Held()
        function(held)
        print("alive", name, turn, [name for name, ref in held.refs.items() if ref() is not None], flush=True)
        gc.collect()
