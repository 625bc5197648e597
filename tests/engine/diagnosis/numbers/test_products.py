"""Gradients that are always zero for both factors of a product are, or for a recurrent cell is saturated. Witness: the
gradients that the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
Module, noise = nn.Module, torch.randn
def parameter(rows, columns, value):
    return nn.Parameter(torch.full((rows, columns), value))
plain = {"bias": False}
def freeze(module):
    module.requires_grad_(False)
def adam(parameters):
    return torch.optim.Adam(list(parameters), lr=1e-2)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Module, noise = nn.Layer, lambda *shape: paddle.randn(shape)
def parameter(rows, columns, value):
    return paddle.create_parameter([rows, columns], "float32", default_initializer=nn.initializer.Constant(value))
plain = {"bias_attr": False}
def freeze(module):
    for each in module.parameters():
        each.stop_gradient = True
def adam(parameters):
    return paddle.optimizer.Adam(1e-2, parameters=list(parameters))
""",
}

ADAPTER = """
class Adapter(Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        freeze(base)
        self.down = parameter(6, 2, DOWN)  # CAUSE
        self.up = parameter(2, 4, 0.0)
    def forward(self, x):
        return self.base(x) + (x @ self.down) @ self.up
net = Adapter(nn.Linear(6, 4))
optimizer = adam([net.down, net.up])
for step in range(12):
    loss = (net(noise(8, 6)) - 1).square().mean()
    loss.backward()
    if step == 11:
        print([float(each.grad.abs().sum()) for each in (net.down, net.up)])
    optimizer.step()
    optimizer.CLEAR()
"""
BOTH = ADAPTER.replace("DOWN", "0.0")
DRAWN = "net = Adapter(nn.Linear(6, 4))\ngetattr(net.down, 'set_value', net.down.data.copy_)(0.3 * noise(6, 2))"
ONE = ADAPTER.replace("DOWN", "0.3").replace("  # CAUSE", "").replace("net = Adapter(nn.Linear(6, 4))", DRAWN)
# Of sequences, and matrices that are turned: views lie between the two products.
TURNED = {
    name: text.replace("parameter(6, 2,", "parameter(2, 6,").replace("parameter(2, 4,", "parameter(4, 2,")
    .replace("(x @ self.down) @ self.up", "2.0 * (x @ self.down.t() @ self.up.t())")
    .replace("noise(8, 6)", "noise(8, 5, 6)")
    for name, text in (("turned", BOTH), ("one, turned", ONE))
}  # fmt: skip

# The weight of an auxiliary loss is 0 in this run.
WEIGHTED = """
body, head, aux = nn.Linear(6, 5), nn.Linear(5, 1), nn.Linear(5, 1)
optimizer = adam([*body.parameters(), *head.parameters(), *aux.parameters()])
for step in range(12):
    h = body(noise(8, 6))
    loss = (head(h) - 1).square().mean() + 0.0 * aux(h).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.CLEAR()
"""
# Prices as they are, and scaled.
UNSCALED = """
cell, head = nn.LSTM(3, 8), nn.Linear(8, 1)
optimizer = adam([*cell.parameters(), *head.parameters()])
prices = noise(10, 16, 3).abs() * SCALE + SCALE
for step in range(12):
    out, _ = cell(prices)  # CAUSE
    loss = (head(out[-1]) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.CLEAR()
"""
SCALED = UNSCALED.replace("  # CAUSE", "")
# The adapter comes behind a pre-training of the base: its phase has iterations that are looked at closely, too.
PRETRAINED = BOTH.replace(
    "net = Adapter(nn.Linear(6, 4))",
    """base = nn.Linear(6, 4)
optimizer = adam(base.parameters())
for step in range(17):
    (base(noise(8, 6)) - 1).square().mean().backward()
    optimizer.step()
    optimizer.CLEAR()
net = Adapter(base)""",
)
# What a layer makes is set to zero by hand; with and without a pre-training, in which nobody watches that.
BY_HAND = {
    "by a call each": """        self.down, self.up = nn.Linear(6, 2, **plain), nn.Linear(2, 4, **plain)
        ZERO(self.down.weight)  # CAUSE
        ZERO(self.up.weight)
""",
    "in a loop": """        self.down, self.up = nn.Linear(6, 2, **plain), nn.Linear(2, 4, **plain)
        for each in (self.down, self.up):
            ZERO(each.weight)  # CAUSE
""",
}
MADE = """        self.down = parameter(6, 2, 0.0)  # CAUSE
        self.up = parameter(2, 4, 0.0)
"""
TRAINED = "[net.down.weight, net.up.weight]"
LAYERS = {
    name: PRETRAINED.replace(MADE, lines).replace("(x @ self.down) @ self.up", "self.up(self.down(x))")
    .replace("[net.down, net.up]", TRAINED).replace("(net.down, net.up)", TRAINED)
    for name, lines in BY_HAND.items()
}  # fmt: skip
LAYERS |= {f"{name}, at once": text.replace("range(17)", "range(0)") for name, text in LAYERS.items()}
PROGRAMS = {"both": BOTH, "pretrained": PRETRAINED, "one": ONE, "weighted": WEIGHTED}
PROGRAMS |= LAYERS | TURNED
PROGRAMS |= {"unscaled": UNSCALED.replace("SCALE", "1e6"), "scaled": SCALED.replace("SCALE", "1.0")}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    zero = "nn.init.zeros_" if request.param == "torch" else "nn.initializer.Constant(0.0)"
    texts = {
        name: HEAD[request.param] + text.replace("CLEAR()", f"{clear}()").replace("ZERO", zero)
        for name, text in PROGRAMS.items()
    }
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-products-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_two_factors_that_are_zero(runs: dict[str, Run]) -> None:
    found = runs["both"].check_first("zero-gradient")
    assert "down" in found["message"] and "up" in found["message"] and "both factors" in found["message"], found
    assert runs["both"].plain.strip().startswith("[0.0, 0.0]"), "it is as the program says"


@each
def test_two_factors_with_views_between_them(runs: dict[str, Run]) -> None:
    runs["turned"].check_first("zero-gradient")
    assert runs["turned"].plain.strip().startswith("[0.0, 0.0]"), "it is as the program says"
    runs["one, turned"].check_healthy()


@each
def test_two_factors_behind_a_pretraining(runs: dict[str, Run]) -> None:
    found = runs["pretrained"].check_first("zero-gradient")
    assert "iteration 19:" in " ".join(found["evidence"]), found


@each
@pytest.mark.parametrize("name", LAYERS)
def test_two_layers_that_are_set_to_zero(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("zero-gradient")


@each
def test_one_factor_that_is_zero_learns(runs: dict[str, Run]) -> None:
    runs["one"].check_healthy()
    runs["weighted"].check_healthy()


@each
def test_cells_that_are_saturated_by_what_they_are_given(runs: dict[str, Run]) -> None:
    found = runs["unscaled"].check_first("zero-gradient")
    assert "cells are saturated" in found["message"], found
    assert "goes from" in " ".join(found["evidence"]), found
    runs["scaled"].check_healthy()
