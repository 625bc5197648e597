"""A graph that a backward ran already: the node that fails, and what leads to it. torch's own hooks are the witness."""

from __future__ import annotations

import inspect
import os
import re

import pytest

torch = pytest.importorskip("torch")

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.torch.native.core import Core  # noqa: E402
from adbg.engine.native import load  # noqa: E402
from tests.support.torch_watch import Watch, watching  # noqa: E402


def last_begun(root):
    """Pre-hooks on every node below ``root``: the list of (name, number) of those whose turn came."""
    begun, seen, todo = [], set(), [root]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        note = (type(node).__name__, node._sequence_nr())
        node.register_prehook(lambda _, note=note: begun.append(note))
        todo += [below for below, _ in node.next_functions if below is not None]
    return begun


@pytest.mark.parametrize("armed", [False, True])
def test_a_state_that_is_carried_over_names_the_old_node_and_the_link(armed):
    cell, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    h = torch.zeros(1, 4)
    watch = Watch()
    with watching(watch, armed=armed, stacks=True):
        for step in range(2):
            h = torch.tanh(cell(h))
            loss = head(h).square().sum()
            if step == 0:
                loss.backward()
                continue
            begun = last_begun(loss.grad_fn)
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
    ((name, evidence),) = watch.last.failed[:1]
    failed, number = begun[-1]
    assert failed == "TanhBackward0" and number == min(n for kind, n in begun if kind == failed)
    assert name == "TanhBackward0#1", "the older of the two has the smaller number"
    assert "freed what it saved" in evidence
    link = re.search(r"#\d+ (\w+)#2 \((.*):(\d+)\), made since, leads to it", evidence)
    assert link and link[1] == "AddmmBackward0" and link[2] == os.path.basename(__file__)


def _as_old_and_in_no_backward(watch):
    """``kept`` is made before the first backward, of what that one runs, and is not in it: it runs in the second one,
    and frees what it saved as it runs. Gives the name of the node that failed, and what proves it."""
    weight = torch.ones(4, requires_grad=True)
    state = (weight * 3).exp()
    kept = state * torch.full((4,), 2.0)
    loss = state.sin().sum()
    with watching(watch):
        loss.backward()
        second = (kept.cos() * 2).sum()
        with pytest.raises(RuntimeError, match="second time"):
            second.backward()
    return watch.last.failed[0]


@pytest.mark.parametrize("written", [False, True])
def test_the_node_that_failed_is_known_with_no_hook_at_all(written):
    watch = Watch(HookPlan())
    if written:
        watch.begin = lambda call: call.collect()
    name, evidence = _as_old_and_in_no_backward(watch)
    if load.core()[0] is None:
        assert not name.startswith("ExpBackward0") and "whether it still ran" in evidence
    else:
        assert name == "ExpBackward0#1" and "executing when the exception left it" in evidence


def test_without_the_extension_it_is_told_as_a_guess(monkeypatch):
    monkeypatch.setattr(Core, "left_by_exception", lambda self, walk: None)
    name, evidence = _as_old_and_in_no_backward(Watch(HookPlan()))
    assert not name.startswith("ExpBackward0") and "whether it still ran" in evidence


@pytest.mark.parametrize("what", ["a Function", "a hook", "a wrong shape"])
def test_any_exception_leaves_its_node(what):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            if what == "a Function":
                raise ValueError("mine")
            return grad.sum(0) if what == "a wrong shape" else grad

    def fails(grad):
        raise ValueError("a hook's")

    x = torch.ones(2, 3, requires_grad=True)
    middle = (x * 2).exp()
    if what == "a hook":
        middle.register_hook(fails)
    loss = Fails.apply(middle.sin()).sum()
    watch = Watch(HookPlan())
    with watching(watch):
        begun = last_begun(loss.grad_fn)
        with pytest.raises((ValueError, RuntimeError)):
            loss.backward()
    if load.core()[0] is None and what == "a hook":
        assert not watch.last.failed, "nothing of the traceback is a node's"
        return
    name, evidence = watch.last.failed[0]
    assert name.startswith("ExpBackward0" if what == "a hook" else begun[-1][0])
    assert load.core()[0] is None or "executing when the exception left it" in evidence


def test_the_node_of_an_earlier_failure_is_forgotten():
    x = torch.ones(2, requires_grad=True)
    once = x.exp()
    watch = Watch(HookPlan())
    with watching(watch):
        (once.sum() * 2).backward()
        with pytest.raises(RuntimeError, match="second time"):
            (once * 3).sum().backward()
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad((once * 3).sum(), torch.ones(1, requires_grad=True))
    assert len(watch.calls) == 3
    assert not any("executing" in evidence for _, evidence in watch.last.failed)


def test_the_same_loss_twice_has_no_link():
    x = torch.ones(2, requires_grad=True)
    loss = ((x * 2).exp() + (x * 3).exp()).sum()
    watch = Watch()
    with watching(watch):
        loss.backward()
        begun = last_begun(loss.grad_fn)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    name, evidence = watch.last.failed[0]
    assert name.startswith(begun[-1][0]) and "made since" not in evidence


def test_what_two_losses_share_is_old_and_what_they_have_alone_is_not():
    x = torch.ones(2, requires_grad=True)
    trunk = (x * 2).exp()
    first = trunk.sin().sum()
    second = trunk.cos().sum()
    watch = Watch()
    with watching(watch):
        first.backward()
        begun = last_begun(second.grad_fn)
        with pytest.raises(RuntimeError, match="second time"):
            second.backward()
    name, evidence = watch.last.failed[0]
    assert begun[-1][0] == "ExpBackward0" and name == "ExpBackward0#1"
    assert "CosBackward0#1" in evidence


def test_the_link_leads_through_nodes_that_save_nothing():
    x = torch.ones(2, requires_grad=True)
    trunk = (x * 2).exp().reshape(2, 1).transpose(0, 1)
    watch = Watch()
    with watching(watch):
        trunk.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            trunk.cos().sum().backward()
    name, evidence = watch.last.failed[0]
    assert name == "ExpBackward0#1" and re.search(r"#\d+ CosBackward0#1.*, made since, leads to it", evidence)


def test_what_was_retained_is_not_old():
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    watch = Watch()
    with watching(watch):
        y.sum().backward(retain_graph=True)
        z = y.sin().sum()
        z.backward()
        begun = last_begun(z.grad_fn)
        with pytest.raises(RuntimeError, match="second time"):
            z.backward()
    assert watch.last.failed[0][0].startswith(begun[-1][0])


# ------------------------------------------------------------------ what was overwritten, and by whom


def by_addition(x):
    a = x * 2
    b = a.sin()
    a.add_(1)  # writes
    return b + a


def by_one_outside(x):
    a = x * 2
    b = a.sin()
    a.add_(1)  # writes
    return b


def by_index(x):
    a = x * 2
    b = a.sin()
    a[0] = 5  # writes
    return b + a


def twice(x):
    a = x * 2
    b = a.sin()
    a.mul_(2)  # writes
    a.add_(1)
    return b + a


def own_result(x):
    a = x.exp()
    c = torch.relu(a)
    a += 1  # writes
    return a + c


def a_module(x):
    a = x.exp()
    torch.nn.ReLU(inplace=True)(a)  # writes
    return a


def unrecorded(x):
    a = x * 2
    b = a.sin()
    with torch.no_grad():
        a.mul_(2)
    return b


def unrecorded_result(x):
    a = x.exp()
    b = a * 3
    with torch.no_grad():
        a.mul_(2)
    return b


def line_of(function):
    lines, first = inspect.getsourcelines(function)
    return next((first + at for at, text in enumerate(lines) if text.endswith("# writes\n")), None)


@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("case", [by_addition, by_one_outside, by_index, twice, own_result, a_module])
def test_the_line_that_wrote_is_named(case, armed):
    watch = Watch()
    with watching(watch, armed=armed, stacks=True):
        loss = case(torch.ones(2, requires_grad=True)).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            loss.backward()
    assert f"overwritten at {__file__}:{line_of(case)} by " in watch.last.failed[0][1]


@pytest.mark.parametrize("case", [unrecorded, unrecorded_result])
def test_no_line_is_made_up_for_a_write_that_was_not_recorded(case):
    watch = Watch()
    with watching(watch, stacks=True):
        loss = case(torch.ones(2, requires_grad=True)).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            loss.backward()
    evidence = watch.last.failed[0][1]
    assert "is at version 1; expected version 0" in evidence and "overwritten at" not in evidence
