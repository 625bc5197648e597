"""Hooks on nodes: they see everything, change nothing unless asked, and are gone afterwards."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from adbg.engine.backends.base import HookPlan
from tests.support.torch_watch import EVERY, Watch, watching


def trained(model_of, batches, plan: HookPlan | None, stacks: bool = False) -> dict[str, torch.Tensor]:
    """Parameters and gradients after a few steps, with ``plan`` armed (None: without the backend)."""
    torch.manual_seed(0)
    model, loss_of = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    watch = Watch(plan or EVERY)

    def steps() -> None:
        for _ in range(batches):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    if plan is None:
        steps()
    else:
        with watching(watch, stacks=stacks):
            steps()
        assert len(watch.calls) >= batches
    found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:  # the last bias of a gradient penalty has none
            found[f"grad {name}"] = parameter.grad.clone()
    return found


def mlp():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 3))
    return model, lambda m: m(torch.randn(5, 6)).square().mean()


def conv():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(64, 3))
    return model, lambda m: torch.nn.functional.cross_entropy(m(torch.randn(4, 2, 6, 6)), torch.tensor([0, 1, 2, 0]))


def lstm():
    model = nn.LSTM(4, 6, num_layers=2, dropout=0.2)
    return model, lambda m: m(torch.randn(7, 3, 4))[0].pow(2).sum()


def transformer():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False)
    return model, lambda m: m(torch.randn(3, 5, 8)).std()


def checkpointed():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))

    def loss(m):
        x = torch.randn(3, 4, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(m, x, use_reentrant=True)
        return torch.utils.checkpoint.checkpoint(m, y, use_reentrant=False).sum()

    return model, loss


def double():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss(m):
        x = torch.randn(3, 4, requires_grad=True)
        (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return (g.norm(dim=1) - 1).square().mean()

    return model, loss


PLANS = {
    "every": EVERY,
    "screen": HookPlan(screen=True),
    "contributions": HookPlan(every=True, contributions=True),
    "name": HookPlan(name=lambda name: name == "NoSuchBackward0"),
    "all but pre": HookPlan(every=True, post=False),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model_of", [mlp, conv, lstm, transformer, checkpointed, double])
def test_no_effect(model_of, plan):
    plainly = trained(model_of, 3, None)
    watched = trained(model_of, 3, PLANS[plan], stacks=plan in ("every", "name"))
    assert plainly.keys() == watched.keys()
    for name, value in plainly.items():
        assert torch.equal(value, watched[name]), name


def test_hooks_see_pre_and_post_of_every_node_and_nothing_stays():
    watch = Watch()
    a = torch.randn(3, requires_grad=True)
    with watching(watch):
        for _ in range(3):
            loss = (a.exp() * a).sum()
            loss.backward(retain_graph=True)
            loss.backward()
    assert all(call.begun == call.ended == call.order for call in watch.calls)
    assert len(watch.calls) == 6
    # an accumulate node lives on with its parameter: a hook left behind would fire here
    before = len(watch.calls[-1].begun)
    (a * 2).sum().backward()
    assert len(watch.calls[-1].begun) == before and len(watch.calls) == 6


def test_call_object_and_graph_are_freed_after_the_call():
    alive: list[weakref.ref] = []

    class Marker(nn.Module):
        pass

    watch = Watch()
    watch.begin = lambda call: alive.append(weakref.ref(call))
    with watching(watch):
        a = torch.randn(4, requires_grad=True)
        saved = a.exp()
        alive.append(weakref.ref(saved))
        loss = (saved * 2).sum()
        loss.backward(retain_graph=True)
        del loss, saved
        gc.collect()
        assert [ref() for ref in alive] == [None, None]


def test_hooks_are_removed_when_the_backward_fails():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise ValueError("planned")

    watch = Watch()
    a = torch.randn(3, requires_grad=True)
    with watching(watch):
        with pytest.raises(ValueError, match="planned"):
            Bad.apply(a * 2).sum().backward()
        seen = watch.last
        assert seen.error == "ValueError: planned"
        assert seen.failed[0][0] == "BadBackward#1"
        assert "executing when the exception left it" in seen.failed[0][1]
        a.sum().backward()
        assert watch.last.begun == watch.last.order == ["SumBackward0#1", "AccumulateGrad#1"]


def test_edits_reach_the_parameters_and_no_sibling():
    watch = Watch(HookPlan(name=lambda name: name in ("ExpBackward0", "SinBackward0")))
    a = torch.zeros(2, requires_grad=True)
    with watching(watch) as backend:
        # both nodes get the same gradient tensor from AddBackward0
        watch.before = lambda call, key, outs: (
            (backend.adopt(outs[0], outs[0] * 10, "grad_outputs[0]"),) if call.name(key) == "ExpBackward0" else None
        )
        (a.exp() + a.sin()).sum().backward()
    assert a.grad.tolist() == [11.0, 11.0]


def test_edit_of_grad_inputs_and_dropping_a_gradient():
    a = torch.ones(2, requires_grad=True)
    watch = Watch(HookPlan(name=lambda name: name == "MulBackward0"))
    with watching(watch) as backend:
        watch.after = lambda call, key, ins, outs: (backend.adopt(ins[0], 5, "grad_inputs[0]"), *ins[1:])
        (a * 3.0).sum().backward()
        assert a.grad.tolist() == [5.0, 5.0]
        a.grad = None
        watch.after = lambda call, key, ins, outs: (None, *ins[1:])
        (a * 3.0).sum().backward()
        assert a.grad is None


def test_answer_of_an_accumulate_node_is_not_handed_to_torch():
    a = torch.ones(2, requires_grad=True)
    watch = Watch(HookPlan(name=lambda name: name == "AccumulateGrad"))
    watch.after = lambda call, key, ins, outs: (torch.zeros(2),)
    with watching(watch):
        (a * 3.0).sum().backward()
    assert a.grad.tolist() == [3.0, 3.0]
    assert watch.last.ended == ["AccumulateGrad#1"]


def test_plans_by_index_info_module_and_parameter():
    seen: list = []

    def by_info(info, stack):
        seen.append((info, stack))
        return info.parameter == "0.weight" or info.unique_name == "AddmmBackward0#2" or info.module == "1"

    watch = Watch(
        HookPlan(
            info=by_info,
            needs=frozenset({"unique_name", "module", "parameter", "forward_stack"}),
            indices=frozenset({1, 99}),
        )
    )
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    with watching(watch, stacks=True):
        model(torch.randn(2, 3)).sum().backward()
    assert sorted(watch.last.begun) == [
        "AccumulateGrad#4",
        "AddmmBackward0#2",
        "SumBackward0#1",
        "TanhBackward0#1",
    ]
    assert watch.last.hooked == 4
    assert {info.parameter for info, _ in seen} >= {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(stack and stack[0].file == __file__ for _, stack in seen)


def test_screen_calls_only_for_what_is_not_finite():
    watch = Watch(HookPlan(screen=True))
    with watching(watch):
        a = torch.tensor([4.0, 1.0], requires_grad=True)
        a.sqrt().sum().backward()
        assert watch.last.begun == watch.last.ended == []
        b = torch.tensor([0.0, 1.0], requires_grad=True)
        (b.sqrt() * 2).sum().backward()
        assert watch.last.ended == ["SqrtBackward0#1"]
        assert watch.last.begun == ["AccumulateGrad#1"]  # a leaf: looked at again, after tensor hooks
        c = torch.tensor([0.0, 1.0], requires_grad=True)
        (c.exp() * 2).backward(torch.tensor([float("nan"), 1.0]))
        assert watch.last.begun == ["MulBackward0#1", "AccumulateGrad#1"]  # the root's and the leaf's
        assert watch.last.ended == ["MulBackward0#1", "ExpBackward0#1"]


class Spoiling(torch.autograd.Function):
    """Changes the gradient that it is given in place, and hands it on."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.div_(0).mul_(0)


def test_screen_sees_what_changed_between_two_nodes():
    watch = Watch(HookPlan(screen=True))
    with watching(watch):
        hooked = torch.ones(3, requires_grad=True)
        hooked.register_hook(lambda g: g * 0 / 0)
        (hooked * 3).sum().backward()
        assert (watch.last.begun, watch.last.ended) == (["AccumulateGrad#1"], [])
        leaf = torch.ones(3, requires_grad=True)
        (Spoiling.apply(leaf) * 3).sum().backward()
        assert watch.last.ended == ["SpoilingBackward#1"] and watch.last.begun == ["AccumulateGrad#1"]
        below = torch.ones(3, requires_grad=True)
        (Spoiling.apply(below * 2) * 3).sum().backward()
        assert watch.last.ended[0] == "SpoilingBackward#1"
        shared = torch.ones(3, requires_grad=True)
        other = shared * 1
        other.register_hook(lambda g: g * 0 / 0)
        (other + 1).sum().backward()
        assert watch.last.ended[0] == "MulBackward0#1"  # a hook above an inner node: at the first node that shows it


def test_screen_sees_a_tensor_hook_above_a_node_that_passes_its_gradient_on():
    watch = Watch(HookPlan(screen=True))
    with watching(watch):
        a = torch.ones(3, requires_grad=True)
        total = a.exp() + 1
        total.register_hook(lambda g: g * 0 / 0)
        total.sum().backward()
    assert watch.last.ended[0] == "AddBackward0#1"


def test_screen_has_no_false_alarm_on_large_values():
    watch = Watch(HookPlan(screen=True))
    with watching(watch):
        a = torch.full((100,), 2.0, dtype=torch.float16, requires_grad=True)
        (a * 600.0 * 100.0).backward(torch.ones(100, dtype=torch.float16))
        b = torch.full((100,), 2.0, requires_grad=True)
        (b * 3e38).backward(torch.ones(100))
    assert [call.begun + call.ended for call in watch.calls] == [[], []]


def test_screen_survives_odd_gradients():
    watch = Watch(HookPlan(screen=True, every=True))
    with watching(watch):
        embedding = nn.Embedding(5, 3, sparse=True)
        embedding(torch.tensor([1, 2, 1])).sum().backward()
        assert embedding.weight.grad.is_sparse
        z = torch.randn(3, dtype=torch.complex64, requires_grad=True)
        (z * z.conj()).real.sum().backward()
        torch.randn(0, 3, requires_grad=True).exp().sum().backward()
        x = torch.randn(4, requires_grad=True)
        first, _ = x.split(2)
        first.sum().backward()  # the second slot is undefined
        meta = torch.randn(3, device="meta", requires_grad=True)
        meta.exp().sum().backward()
        nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], requires_grad=True)
        torch.nested.to_padded_tensor(nested * 2, 0.0).sum().backward()
    assert all(call.error is None and call.begun == call.order for call in watch.calls)


def test_screen_sees_bad_values_in_odd_gradients():
    watch = Watch(HookPlan(screen=True))
    nan = float("nan")
    with watching(watch):
        weight = torch.ones(5, 3, requires_grad=True)
        torch.nn.functional.embedding(torch.tensor([1, 2]), weight, sparse=True).backward(
            torch.tensor([[nan, 0, 0], [0, 0, 0]])
        )
        assert watch.last.ended == ["EmbeddingBackward0#1"]
        z = torch.ones(2, dtype=torch.complex64, requires_grad=True)
        (z * 2).backward(torch.tensor([complex(0, float("inf")), 1]))
        assert watch.last.begun == ["MulBackward0#1", "AccumulateGrad#1"]


def test_contributions_beside_their_sum():
    parts: dict[str, list] = {}

    def before(call, key, outs):
        kept, why = call.contributions(key)
        parts[call.describe(key).unique_name] = [
            (part.slot, call.describe(part.from_key).unique_name, part.value.tolist()) for part in kept
        ] + [why, outs[0].tolist()]

    watch = Watch(HookPlan(name=lambda name: name in ("ExpBackward0", "AccumulateGrad"), contributions=True))
    watch.before = before
    a = torch.zeros(1, requires_grad=True)
    with watching(watch):
        b = a.exp()
        (b * 3 + b.sin() + b * 5).sum().backward()
    exp = parts["ExpBackward0#1"]
    assert exp[-1] == [pytest.approx(8 + torch.cos(torch.ones(1)).item())]
    assert exp[-2] == ""
    assert sorted(entry[1] for entry in exp[:-2]) == ["MulBackward0#1", "MulBackward0#2", "SinBackward0#1"]
    assert sorted(entry[2][0] for entry in exp[:-2]) == pytest.approx([0.5403, 3.0, 5.0], abs=1e-3)
    assert parts["AccumulateGrad#1"][:-1] == ["one consumer only: the gradient is not a sum"]


def test_expressions_at_a_stop_may_run_backward_themselves():
    watch = Watch()
    results: list = []

    def before(call, key, outs):
        if call.name(key) == "SinBackward0":
            with backend.user_mode():
                edge = torch.autograd.graph.GradientEdge(call.node(key), 0)
                (g,) = torch.autograd.grad(edge, [a], outs, retain_graph=True)
                results.append(g)
                x = torch.ones(1, requires_grad=True)
                (x * 7).backward()
                results.append(x.grad.item())

    watch.before = before
    a = torch.zeros(1, requires_grad=True)
    with watching(watch) as backend:
        a.exp().sin().sum().backward()
        assert backend.backward_count == 1
    assert len(watch.calls) == 1 and watch.last.begun == watch.last.order
    assert results[1] == 7.0 and torch.equal(results[0], a.grad)


def test_threads_that_train_one_parameter():
    shared = torch.ones(4, requires_grad=True)
    watch = Watch()
    gate = threading.Barrier(2)
    errors: list = []

    def work(factor):
        try:
            for _ in range(20):
                gate.wait(20)
                (shared.exp() * factor).sum().backward()
        except BaseException as error:
            errors.append(error)
            gate.abort()

    with watching(watch):
        threads = [threading.Thread(target=work, args=(factor,)) for factor in (1.0, 2.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not errors
    assert len(watch.calls) == 40
    for call in watch.calls:
        assert call.begun == call.order and call.ended == call.order
        assert call.depth == 0 and call.parent is None
