"""Every backward that starts in Python is seen, nested ones with their parent; post-mortem; out without a trace."""

from __future__ import annotations

import contextlib
import threading
import warnings

import pytest
import torch
from torch.autograd import backward as early_backward
from torch.autograd import grad as early_grad

from adbg.engine.backends.base import HookPlan
from adbg.engine.backends.torch.backend import TorchBackend
from tests.support.torch_watch import EVERY, Watch, watching

NOTHING = HookPlan()


class Nested(torch.autograd.Function):
    """Its backward runs a backward of its own, ``depth`` levels deep."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            z = Nested.apply(y, ctx.depth - 1) if ctx.depth > 0 else y.exp()
            z.sum().backward()
        return g * 2, None


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        raise ValueError("planned")


def test_counting_while_unarmed_reports_nothing():
    watch = Watch()
    a = torch.randn(2, requires_grad=True)
    with watching(watch, armed=False) as backend:
        a.sum().backward()
        Nested.apply(a, 1).sum().backward()
        assert (backend.backward_count, backend.iteration) == (4, 2)
        backend.arm(True)
        a.sum().backward()
        assert backend.backward_count == 5 and watch.last.number == 5
    assert len(watch.calls) == 1


def test_out_again_without_a_trace():
    before = (
        torch.autograd.Variable._execution_engine,
        torch.fx.traceback.format_stack,
        torch.set_anomaly_enabled,
        torch.is_anomaly_enabled,
        torch.is_anomaly_check_nan_enabled,
        vars(torch.autograd.function._HookMixin)["_register_hook"],
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )
    backend = TorchBackend()
    backend.install(Watch())
    backend.set_stacks(True)
    assert torch.autograd.Variable._execution_engine is not before[0]
    assert isinstance(torch.autograd.Variable._execution_engine, type(before[0]))
    backend.uninstall()
    after = (
        torch.autograd.Variable._execution_engine,
        torch.fx.traceback.format_stack,
        torch.set_anomaly_enabled,
        torch.is_anomaly_enabled,
        torch.is_anomaly_check_nan_enabled,
        vars(torch.autograd.function._HookMixin)["_register_hook"],
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )
    assert all(one is two for one, two in zip(before, after, strict=True))
    from torch.nn.modules import module

    assert not module._global_forward_hooks and not module._global_forward_pre_hooks


def test_script_registers_its_own_hooks_beside_ours():
    watch = Watch()
    fired: list = []
    a = torch.randn(2, requires_grad=True)
    with watching(watch):
        y = a.exp()
        handle = y.grad_fn.register_prehook(lambda outs: fired.append("pre"))
        y.grad_fn.register_hook(lambda ins, outs: fired.append("post"))
        late = {}

        def add_late(call, key, outs):
            if call.name(key) == "SumBackward0":
                late["handle"] = call.node(call.order()[1]).register_hook(lambda ins, outs: fired.append("late"))

        watch.before = add_late
        y.sum().backward(retain_graph=True)
        assert fired == ["pre", "post", "late"]
        handle.remove()
        late["handle"].remove()
        watch.before = lambda call, key, outs: None
        y.sum().backward()
    assert fired == ["pre", "post", "late", "post"]
    assert watch.last.begun == watch.last.order


def test_early_bound_names_are_seen():
    watch = Watch()
    a = torch.randn(2, requires_grad=True)
    with watching(watch):
        early_backward(a.sum())
        early_grad(a.exp().sum(), a)
    assert [(call.entry, call.roots) for call in watch.calls] == [
        ("backward", ("SumBackward0",)),
        ("grad", ("SumBackward0",)),
    ]
    assert {call.location.file for call in watch.calls} == {__file__}
    assert {call.location.function for call in watch.calls} == {"test_early_bound_names_are_seen"}


@pytest.mark.parametrize("plan", [EVERY, NOTHING, HookPlan(name=lambda name: name == "SumBackward0")])
def test_nested_calls_know_their_parent(plan):
    watch = Watch(plan)
    a = torch.randn(2, requires_grad=True)
    with watching(watch) as backend:
        Nested.apply(a * 1, 2).sum().backward()
        assert (backend.backward_count, backend.iteration) == (4, 1)
    assert [call.depth for call in watch.calls] == [0, 1, 2, 3]
    assert [call.parent for call in watch.calls] == [None, 1, 2, 3]
    assert [call.enclosing for call in watch.calls] == [None, *["NestedBackward#1"] * 3]


@pytest.mark.parametrize("plan", [EVERY, NOTHING])
def test_parents_are_found_across_torchs_change_of_threads(plan):
    """Past 60 nested calls torch goes on in a thread of its own."""
    watch = Watch(plan)
    a = torch.randn(2, requires_grad=True)
    with watching(watch):
        Nested.apply(a, 130).sum().backward()
    assert [call.depth for call in watch.calls] == list(range(132))
    assert [call.parent for call in watch.calls] == [None, *range(1, 132)]
    assert {call.enclosing for call in watch.calls[1:]} == {"NestedBackward#1"}
    assert len({call.thread for call in watch.calls}) > 1
    if plan is EVERY:
        assert all(call.begun == call.order for call in watch.calls)


def test_armed_in_the_middle_of_a_nested_backward():
    watch = Watch()
    a = torch.randn(2, requires_grad=True)

    class Arming(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            backend.arm(True)
            with torch.enable_grad():
                torch.ones(1, requires_grad=True).exp().backward()
            return g

    with watching(watch, armed=False) as backend:
        Arming.apply(a).sum().backward()
    assert [(call.depth, call.parent, call.begun == call.order) for call in watch.calls] == [(1, None, True)]


@pytest.mark.parametrize("armed", [False, True])
def test_post_mortem_of_an_in_place_error(armed):
    watch = Watch(NOTHING)
    a = torch.randn(3, requires_grad=True)
    with watching(watch, armed=armed):
        b = a.exp()
        c = b.sigmoid()
        d = (c * 2).sin() + b
        b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            d.sum().backward()
    ((name, evidence),) = watch.last.failed
    assert name == "ExpBackward0#1"
    assert evidence.endswith("its saved tensor 'result' is at version 1; expected version 0")


def test_post_mortem_of_a_python_backward_and_of_a_wrong_shape():
    class WrongShape(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, g):
            return g.expand(7)

    watch = Watch(NOTHING)
    a = torch.randn(3, requires_grad=True)
    with watching(watch, armed=False):
        with pytest.raises(ValueError, match="planned"):
            Raising.apply(a.exp()).sum().backward()
        assert watch.last.failed[0][0] == "RaisingBackward#1"
        assert "its backward raised ValueError" in watch.last.failed[0][1] and __file__ in watch.last.failed[0][1]
        assert watch.last.failed[0][1].count("raised ValueError") == 1, "not of torch's function.py, which called it"
        with pytest.raises(RuntimeError, match="invalid gradient"):
            WrongShape.apply(a.exp()).backward()
        assert watch.last.failed[0][0] == "WrongShapeBackward#1"
        assert "the message names it" in watch.last.failed[0][1]


def test_post_mortem_of_a_second_backward():
    watch = Watch(NOTHING)
    a = torch.randn(3, requires_grad=True)
    with watching(watch, armed=False):
        loss = a.exp().sin().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert watch.last.failed[0][0] == "SinBackward0#1"


def test_unarmed_error_in_a_nested_call_is_reported_once():
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                Raising.apply(torch.ones(1, requires_grad=True)).backward()

    watch = Watch(NOTHING)
    with watching(watch, armed=False):
        for _ in range(2):
            with pytest.raises(ValueError, match="planned"):
                Outer.apply(torch.ones(1, requires_grad=True)).backward()
    assert [call.failed[0][0] for call in watch.calls] == ["RaisingBackward#1"] * 2


def test_interrupt_in_a_hook_goes_through_and_the_engine_lives():
    watch = Watch()

    def interrupt(call, key, outs):
        raise KeyboardInterrupt

    a = torch.randn(3, requires_grad=True)
    with watching(watch):
        watch.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            a.exp().sum().backward()
        watch.before = lambda call, key, outs: None
        a.exp().sum().backward()
    assert watch.last.begun == watch.last.order


def test_backend_defect_does_not_reach_the_script(monkeypatch):
    watch = Watch()
    a = torch.randn(3, requires_grad=True)
    with watching(watch) as backend:
        monkeypatch.setattr(backend._frames, "live_line", lambda frame: 1 / 0)
        a.sum().backward()
    assert watch.calls == [] and a.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("inside", [False, True])
def test_warnings_keep_their_place(inside):
    """A C++ warning of a backward is attributed to torch's own line, as without adbg."""
    a = torch.randn(3, requires_grad=True)

    def places():
        with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True):
            warnings.simplefilter("always")
            b = a.exp()
            c = b * b
            b.add_(1)
            with pytest.raises(RuntimeError):
                c.sum().backward()
        return [(entry.filename, entry.lineno, entry.category, str(entry.message)) for entry in caught]

    seen = []
    for context in (
        contextlib.nullcontext(),
        watching(Watch(), armed=inside),
        watching(Watch(), armed=inside, stacks=True),
    ):
        with context:
            seen.append(places())
    assert "torch/autograd/graph.py" in seen[0][0][0]
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


def test_graph_of_tensors_so_far():
    watch = Watch()
    with watching(watch, stacks=True) as backend:
        a = torch.randn(3, requires_grad=True)
        b, c = a.exp(), a.sin()
        graph = backend.graph_of([b, c, torch.ones(1), 3])
        assert graph is not None
        assert [graph.describe(key).name for key in graph.roots()] == ["ExpBackward0", "SinBackward0"]
        assert [graph.describe(key).unique_name for key in graph.order()] == [
            "SinBackward0#1",
            "ExpBackward0#1",
            "AccumulateGrad#1",
        ]
        assert graph.count() == 3 and graph.names() == ["AccumulateGrad", "ExpBackward0", "SinBackward0"]
        edges = graph.edges(graph.roots()[0])
        assert [(edge.slot, graph.describe(edge.to).name, edge.to_slot) for edge in edges] == [(0, "AccumulateGrad", 0)]
        (metadata,) = graph.input_meta(graph.roots()[0])
        assert (metadata.shape, metadata.dtype, metadata.device, metadata.nbytes) == ((3,), "f32", "cpu", 12)
        assert backend.graph_of([torch.ones(1), "x"]) is None


def test_a_gradient_of_another_thread_is_not_reported_as_this_ones():
    """Both run the accumulate node of one parameter; thread two has hooked it, and waits while thread one runs."""
    begun, done = threading.Event(), threading.Event()

    class Waiting(Watch):
        def backward_begin(self, call):
            super().backward_begin(call)
            if threading.current_thread().name == "two":
                begun.set()
                assert done.wait(20)

        def node_begin(self, call, key, grad_outputs):
            seen.append((threading.get_ident() == call.thread, float(grad_outputs[0].sum())))
            return super().node_begin(call, key, grad_outputs)

    seen: list[tuple[bool, float]] = []
    weight = torch.ones(3, requires_grad=True)
    kept = torch.autograd.graph.get_gradient_edge(weight)

    def one():
        assert begun.wait(20)
        (weight * 2).sum().backward()
        done.set()

    def two():
        (weight * 5).sum().backward()

    with watching(Waiting(HookPlan(name=lambda name: name == "AccumulateGrad"))):
        threads = [threading.Thread(target=work, name=name) for work, name in ((one, "one"), (two, "two"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert kept.node is not None
    assert sorted(seen) == [(True, 6.0), (True, 15.0)]


def test_threads_are_told_apart():
    watch = Watch()

    def work():
        torch.ones(2, requires_grad=True).exp().sum().backward()

    with watching(watch) as backend:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(30)
        work()
        assert backend.iteration == 2
    assert len({call.thread for call in watch.calls}) == 2
    assert watch.last.thread == threading.get_ident()
