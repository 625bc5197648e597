"""A graph that a backward ran already: the node that fails, and what leads to it. torch's own hooks are the witness."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

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
    assert link and link[1] == "AddmmBackward0" and link[2] == __file__


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
