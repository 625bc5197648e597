"""What is still alive after each kind of backward, cycles not collected: one line for each kind, twice.

Losses and activations.
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


import paddle
from paddle.autograd import PyLayer


class Held:
    def __init__(self):
        self.refs = {}

    def nodes(self, *a):
        pass

    def add(self, **k):
        for n, v in k.items():
            self.refs[n] = weakref.ref(v)


w = paddle.ones([3])
w.stop_gradient = False


class Raises(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no")


def _bad(z):
    with paddle.enable_grad():
        return Raises.apply(z * 2)


class Inner(PyLayer):
    @staticmethod
    def forward(ctx, x):
        with paddle.enable_grad():
            y = x.detach()
            y.stop_gradient = False
            ctx.y = y
            ctx.z = (y.exp() * 2).sum()
        KEEP.add(iy=y, iz=ctx.z)
        return ctx.z.detach()

    @staticmethod
    def backward(ctx, g):
        (gy,) = paddle.grad(ctx.z, ctx.y)
        return gy * g


class InnerRaises(Inner):
    @staticmethod
    def backward(ctx, g):
        bad = _bad(ctx.z)
        KEEP.add(bad=bad)
        try:
            bad.backward()
        except Exception:
            pass
        return paddle.ones_like(ctx.y)


class InnerFails(Inner):
    @staticmethod
    def backward(ctx, g):
        bad = _bad(ctx.z)
        KEEP.add(bad=bad)
        bad.backward()


def simple(h):
    a = w * 2
    b = a.exp()
    c = paddle.nn.functional.sigmoid(b)
    total = (c * b).sum()
    h.add(a=a, b=b, c=c, loss=total)
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
    paddle.grad(simple(h), w)


@probe("double")
def _(h):
    x = paddle.ones([3])
    x.stop_gradient = False
    total = (x.exp() * x).sum()
    (g,) = paddle.grad(total, x, create_graph=True)
    h.add(total=total, g=g, x=x)
    g.sum().backward()


@probe("function raises")
def _(h):
    a = w * 2
    b = Raises.apply(a.exp())
    total = b.sum()
    h.add(a=a, b=b, total=total)
    try:
        total.backward()
    except Exception:
        pass


@probe("function raises in grad")
def _(h):
    a = w * 2
    b = Raises.apply(a.exp())
    total = b.sum()
    h.add(a=a, b=b, total=total)
    try:
        paddle.grad(total, w)
    except Exception:
        pass


@probe("hook raises")
def _(h):
    a = w * 2
    b = a.exp()
    total = b.sum()
    h.add(a=a, b=b, total=total)

    def hook(g):
        raise ValueError("no")

    a.register_hook(hook)
    try:
        total.backward()
    except Exception:
        pass


@probe("C++ error")
def _(h):
    a = w * 2
    b = a.exp()
    total = b.sum()
    b.scale_(2.0)
    h.add(a=a, b=b, total=total)
    try:
        total.backward()
    except Exception:
        pass


@probe("second backward")
def _(h):
    total = simple(h)
    total.backward()
    try:
        total.backward()
    except Exception:
        pass


@probe("out of memory retried")
def _(h):
    def step(bad):
        a = w * 2
        b = Raises.apply(a.exp()) if bad else a.exp()
        total = b.sum()
        h.add(**{f"a{bad}": a, f"b{bad}": b, f"l{bad}": total})
        total.backward()

    try:
        step(1)
    except Exception:
        step(0)


for n, C in (("nested", Inner), ("nested caught", InnerRaises), ("nested fails", InnerFails)):

    @probe(n)
    def _(h, C=C):
        y = C.apply(w * 2)
        h.add(y=y)
        try:
            y.backward()
        except Exception:
            pass


for re_ in (False, True):
    from paddle.distributed.fleet.utils import recompute

    @probe(f"recompute reentrant={re_}")
    def _(h, re_=re_):
        def f(x):
            y = x.exp()
            h.add(**{f"y{len(h.refs)}": y})
            return y.sin()

        x = w * 2
        total = recompute(f, x, use_reentrant=re_).sum()
        h.add(x=x, total=total)
        total.backward()

    @probe(f"recompute fails reentrant={re_}")
    def _(h, re_=re_):
        def f(x):
            y = Raises.apply(x.exp())
            h.add(**{f"y{len(h.refs)}": y})
            return y.sin()

        x = w * 2
        total = recompute(f, x, use_reentrant=re_).sum()
        h.add(x=x, total=total)
        try:
            total.backward()
        except Exception:
            pass


KEEP = None
for name, function in CASES:
    for turn in range(2):
        held = KEEP = Held()
        function(held)
        print("alive", name, turn, [name for name, ref in held.refs.items() if ref() is not None], flush=True)
        gc.collect()
