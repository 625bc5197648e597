"""The nan, inf and nonfinite breakpoints on real PyTorch: every origin of a backward, no victim, and the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled

from adbg.engine.protocol.codec import from_json
from adbg.engine.types import Evidence, NodeStop, Origin, Role

pytest.importorskip("torch")

TWO_ORIGINS = """
import torch
p = torch.tensor([0.0, 0.5], requires_grad=True)
q = torch.tensor([0.0, 0.5], requires_grad=True)
for i in range(2):
    a, b = p * 2, q * 3
    loss = (a.sqrt() * 0).sum() + (b.abs().sqrt() * 0).sum()
    loss.backward()
"""

ONE_AFTER_THE_OTHER = """
import torch
x = torch.tensor([0.0, 1.0], requires_grad=True)
y = (x * 1).sqrt() + 0
(((y * 1).sqrt() * 0) + 0).sum().backward()
print(torch.isfinite(x.grad).tolist())
"""

SPOILT_FORWARD = """
import torch
p = torch.nn.Parameter(torch.tensor([float("nan"), 1.0]))
q = torch.ones(2, requires_grad=True)
(p * q).sum().backward()
mask = torch.tensor([-float("inf"), 1.0, -float("inf")])
s = torch.full((2,), float("nan"), requires_grad=True)
(s * s.detach()).sum().backward()
lin = torch.nn.Linear(1, 2)
with torch.no_grad():
    lin.bias.fill_(float("nan"))
lin(torch.ones(1, 1)).sum().backward()
(lin.bias * torch.ones(2, requires_grad=True)).sum().backward()
r = torch.ones(3, requires_grad=True)
(r * mask).sum().backward()
(torch.tensor([0.0, 1.0], requires_grad=True).sqrt() * 0).sum().backward()
"""


def stop_name(stop: dict[str, Any]) -> tuple[int, str, str]:
    return stop["backward"], stop["phase"], stop["node"]["unique_name"]


def evidence(stop: dict[str, Any]) -> tuple[Evidence, ...]:
    return from_json(NodeStop, stop).evidence


def rest_of(run: Dialled) -> list[tuple[int, str, str]]:
    """All further stops until the program ends."""
    names = []
    while True:
        run.peer.request("continue")
        try:
            names.append(stop_name(run.peer.stopped()))
        except ConnectionError:
            return names


def test_every_origin_of_a_backward_stops_and_no_victim(tmp_path: Path) -> None:
    with Dialled(tmp_path, TWO_ORIGINS) as run:
        run.peer.begin("nan")
        assert stop_name(run.peer.stopped()) == (1, "after", "SqrtBackward0#2")
        assert rest_of(run) == [
            (1, "after", "SqrtBackward0#1"),
            (2, "after", "SqrtBackward0#2"),
            (2, "after", "SqrtBackward0#1"),
        ]
        assert run.end()[0] == 0


def test_a_cured_gradient_lets_the_next_origin_downstream_stop(tmp_path: Path) -> None:
    with Dialled(tmp_path, ONE_AFTER_THE_OTHER) as run:
        run.peer.begin("nan")
        assert stop_name(run.peer.stopped()) == (1, "after", "SqrtBackward0#2")
        run.peer.request("setExpression", expression="grad_inputs[0]", value="torch.zeros(2)")
        assert stop_name(run.peer.go()) == (1, "after", "SqrtBackward0#1")
        run.peer.request("setExpression", expression="grad_inputs[0]", value="torch.zeros(2)")
        assert rest_of(run) == []
        assert run.end()[:2] == (0, "[True, True]\n")


def test_without_the_cure_what_is_downstream_is_a_victim(tmp_path: Path) -> None:
    with Dialled(tmp_path, ONE_AFTER_THE_OTHER) as run:
        run.peer.begin("nan")
        assert stop_name(run.peer.stopped()) == (1, "after", "SqrtBackward0#2")
        assert rest_of(run) == []
        assert run.end()[:2] == (0, "[False, True]\n")


def test_a_stop_tells_what_the_forward_pass_had_spoilt_already(tmp_path: Path) -> None:
    with Dialled(tmp_path, SPOILT_FORWARD) as run:
        run.peer.begin("nonfinite")
        leaving, leaf, saved = evidence(run.peer.stopped())
        assert leaving == Evidence(Role.GRAD_INPUTS, "grad_inputs[1]", 2, 1, 0, Origin.MADE_HERE, slot=1)
        assert (leaf.role, leaf.nan, leaf.numel, leaf.node) == (Role.LEAF, 1, 2, "AccumulateGrad#1")
        assert saved == Evidence(Role.SAVED, "self", 2, 1, 0, Origin.FORWARD)
        _, leaf, saved = evidence(run.peer.go())
        assert leaf.role is Role.LEAF and leaf.nan == 2
        assert saved == Evidence(Role.SAVED, "other", 2, 2, 0, Origin.FORWARD)
        _, leaf, saved = evidence(run.peer.go())  # lin's own backward has no numbers that are not finite
        assert (leaf.role, leaf.name, leaf.parameter, leaf.nan) == (Role.LEAF, "bias", "bias", 2)
        assert saved == Evidence(Role.SAVED, "self", 2, 2, 0, Origin.FORWARD, parameter="bias")
        _, saved = evidence(run.peer.go())
        assert saved == Evidence(Role.SAVED, "other", 3, 0, 2, Origin.FORWARD, pos_inf=0, neg_inf=2)
        (leaving,) = evidence(run.peer.go())
        assert leaving.origin is Origin.MADE_HERE, "the saved tensors are finite: nothing more to say"
        assert rest_of(run) == []
        assert run.end()[0] == 0


def test_a_breakpoint_from_before_keeps_the_parts_of_a_sum(tmp_path: Path) -> None:
    script = """
import torch
x = torch.ones(3, requires_grad=True)
h = x.tanh()
(h * 2 + h.exp()).sum().backward()
"""
    with Dialled(tmp_path, script) as run:
        run.peer.begin("Tanh*", "Exp*")
        run.peer.stopped()
        assert run.peer.request("adbg/node")["contributions_note"] == ""
        assert run.peer.go()["node"]["unique_name"] == "TanhBackward0#1"
        body = run.peer.request("adbg/node")
        assert body["contributions_note"] == "" and len(body["contributions"]) == 2
        assert rest_of(run) == []


BETWEEN = """
import torch
w = torch.ones(3, requires_grad=True)
w.register_hook(lambda g: g * 0 / 0)
(w * 3).sum().backward()
h = torch.ones(3, requires_grad=True) * 2
h.register_hook(lambda g: g * 0 / 0)
(h.exp() + 1).sum().backward()
v = torch.ones(1, requires_grad=True)
u = v * 1
(u * 3e38 + u * 3e38).sum().backward()
v.exp().backward(torch.tensor([float("nan")]))
"""


def test_what_no_node_made_is_told_with_the_nodes_it_was_made_between(tmp_path: Path) -> None:
    with Dialled(tmp_path, BETWEEN) as run:
        run.peer.begin("nonfinite")
        stop = run.peer.stopped()
        assert stop_name(stop) == (1, "before", "AccumulateGrad#1")
        assert evidence(stop) == (
            Evidence(Role.GRAD_OUTPUTS, "grad_outputs[0]", 3, 3, 0, Origin.BETWEEN, slot=0, after=("MulBackward0#1",)),
        )
        run.peer.request("continue")
        stop = run.peer.stopped()
        assert stop_name(stop) == (2, "after", "MulBackward0#1")
        leaving, arriving = evidence(stop)
        assert leaving.origin is Origin.PASSED_ON
        assert (arriving.origin, arriving.after, arriving.summed) == (Origin.BETWEEN, ("ExpBackward0#1",), False)
        run.peer.request("continue")
        stop = run.peer.stopped()
        assert stop_name(stop) == (3, "before", "MulBackward0#1")
        (arriving,) = evidence(stop)
        assert arriving.summed and len(arriving.after) == 2 and arriving.pos_inf == arriving.inf == 1
        run.peer.request("continue")
        stop = run.peer.stopped()  # at a root: it was given to backward
        assert stop_name(stop) == (4, "before", "ExpBackward0#1")
        assert [found.origin for found in evidence(stop)] == [Origin.UNKNOWN]
        assert rest_of(run) == []


# ------------------------------------------------------------------ the forward pass, and what came of it later

LATE_LOG = """
import torch
w = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
h = w * 1
v = h.log()
z = (v * 3).tanh()
print([bool(t.isnan().any()) for t in (w, h, v, z)])
z.square().sum().backward()
"""


def test_the_first_saved_tensor_that_is_not_finite_is_named_wherever_it_is(tmp_path: Path) -> None:
    """The operators themselves say which result was NaN first: ``v`` (log's own input is finite)."""
    with Dialled(tmp_path, LATE_LOG) as run:
        run.peer.begin("nan")
        stop = run.peer.stopped()
        assert stop_name(stop) == (1, "after", "PowBackward0#1")
        leaving, first, *own = evidence(stop)
        assert leaving.origin is Origin.MADE_HERE
        # MulBackward0#2 saves its constant alone, tanh its result.
        assert (first.role, first.name, first.node, first.nan) == (Role.SAVED, "result", "TanhBackward0#1", 1)
        assert first.forward is not None and first.forward.line == 6
        assert {found.node for found in own} == {""}
        assert rest_of(run) == []
        assert run.end()[1].splitlines()[0] == "[False, False, True, True]"


STAYS_SPOILT = """
import torch
torch.manual_seed(0)
lin = torch.nn.Linear(3, 3)
with torch.no_grad():
    lin.weight.zero_(), lin.bias.zero_()
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
for i in range(4):
    opt.zero_grad()
    if i == 3:
        with torch.no_grad():
            lin.weight.zero_(), lin.bias.zero_()
    (lin(torch.ones(2, 3)).sqrt() * 0).exp().sum().backward()
    opt.step()
    print(bool(lin.weight.isnan().any()))
"""


def test_what_the_optimizer_made_of_it_is_a_victim_and_a_new_start_is_not(tmp_path: Path) -> None:
    with Dialled(tmp_path, STAYS_SPOILT) as run:
        run.peer.begin("nonfinite")
        assert stop_name(run.peer.stopped()) == (1, "after", "SqrtBackward0#1")
        assert rest_of(run) == [(4, "after", "SqrtBackward0#1")]
        assert run.end()[:2] == (0, "True\n" * 4)


NESTED = """
import torch
from torch.utils.checkpoint import checkpoint
for inner in (False, True):
    x = torch.zeros(2, requires_grad=True)
    y = checkpoint(lambda a: (a * 1).sqrt() if inner else (a + 1) * 2, x * 1, use_reentrant=True)
    (y * 0).sum().backward() if inner else ((y - 2).sqrt() * 0).sum().backward()
    print(torch.isnan(x.grad).tolist())
"""


def test_numbers_that_go_into_or_out_of_a_nested_backward_are_no_origin(tmp_path: Path) -> None:
    with Dialled(tmp_path, NESTED) as run:
        run.peer.begin("nan")
        assert stop_name(run.peer.stopped())[1:] == ("after", "SqrtBackward0#1")
        assert rest_of(run) == [(4, "after", "SqrtBackward0#1")]
        assert run.end()[1] == "[True, True]\n" * 2


def test_a_stop_behind_the_maker_names_it(tmp_path: Path) -> None:
    with Dialled(tmp_path, ONE_AFTER_THE_OTHER) as run:
        run.peer.begin("nan")
        stop = run.peer.stopped()
        stop = run.peer.go("next")
        (arriving,) = evidence(stop)
        assert (arriving.origin, arriving.node, arriving.index) == (Origin.PASSED_ON, "SqrtBackward0#2", 4)
        body = run.peer.request("adbg/path", node=stop["index"])
        assert (body["maker"], body["nonfinite"]) == (4, 5)
        assert 4 in body["path"]
