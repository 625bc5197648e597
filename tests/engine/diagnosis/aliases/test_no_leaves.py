"""Updates by hand that give the name of a leaf a new tensor. Witness: the framework itself, which gives no gradient to
what has the name now, and one to the leaf that had it; and whether the numbers are those of the update in place."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named, only

HEAD = {
    "torch": """
import torch as fw
fw.manual_seed(0)
no_grad, noise = fw.no_grad, fw.randn
def wants(value):
    return value.detach().requires_grad_()
def clear(value):
    value.grad = None
def put(value, new):
    value.copy_(new)
""",
    "paddle": """
import paddle as fw
fw.seed(0)
no_grad, noise = fw.no_grad, lambda *shape: fw.randn(shape)
def wants(value):
    value = value.detach()
    value.stop_gradient = False
    return value
def clear(value):
    value.clear_gradient(False)
def put(value, new):
    value.set_value(new)
""",
}
BEGIN = """
rate = 0.1
w, b = wants(noise(2, 1)), wants(noise(1))
first = w
x = noise(40, 2)
y = x @ fw.ones([2, 1]) + 4.0
for step in range(4):
    loss = (x @ w + b - y).square().mean()
    loss.backward()
"""
END = """
print("trained", float(loss), w is first)
"""


def program(*lines: str) -> str:
    return BEGIN + "".join(f"    {line}\n" for line in lines) + END


OFF = "with no_grad():"
BUGGY = {
    "a difference": program(OFF, "    w = w - rate * w.grad  # CAUSE", "    b = b - rate * b.grad"),
    "cleared then": program(OFF, "    w = w - rate * w.grad  # CAUSE", "    print(w.grad.sum())"),
    "a step of its own": program(OFF, "    down = rate * w.grad", "    w = w - down  # CAUSE", "    w.grad.sum()"),
    "a function": program(OFF, "    w = fw.add(w, -rate * w.grad)  # CAUSE", "    b = fw.add(b, -rate * b.grad)"),
    "all at once": program(OFF, "    w, b = w, b", "    both = [w, b]",
                           "    both = [each - rate * each.grad for each in both]  # CAUSE", "    w, b = both"),
    "over several lines": program(OFF, "    w = (  # CAUSE", "        w", "        - rate * w.grad", "    )",
                                  "    w.grad.sum()"),
}  # fmt: skip
MADE = {
    "with a graph": program("w = w - rate * w.grad  # CAUSE", "b = b - rate * b.grad"),
}
SIGN = program(OFF, "    w -= rate * w.grad  # CAUSE", "    b -= rate * b.grad", "    clear(w), clear(b)")
HEALTHY = {
    "in place": program(OFF, "    put(w, w - rate * w.grad)", "    put(b, b - rate * b.grad)", "clear(w), clear(b)"),
    "a leaf again": program(OFF, "    w = wants(w - rate * w.grad)", "    b = wants(b - rate * b.grad)"),
    "of another name": program(OFF, "    new = w - rate * w.grad", "    put(w, new)", "    put(b, b - rate * b.grad)",
                               "clear(w), clear(b)"),
}  # fmt: skip
OTHERS = {
    "before any backward": "w = wants(noise(2, 1))\nprint(w.grad.sum())\n" + BEGIN,
    "None of another": program(OFF, "    w = wants(w - rate * w.grad)", "    b = wants(b - rate * b.grad)",
                               "{}.get('lost').grad"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = BUGGY | MADE | HEALTHY | OTHERS | {"sign": SIGN}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"no-leaves-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_an_update_that_takes_the_leaf_s_place(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert "trained" not in run.plain and "Error" in run.plain, run
    first = run.check_first("no-gradient")
    assert first["severity"] == "error" and "a new tensor, which carries none" in first["message"], first
    assert len(run.above_notes()) == 1, run


@each
@named(MADE, {})
def test_what_an_operator_made_is_no_leaf(runs: dict[str, Run], name: str) -> None:
    assert runs[name].check_first("non-leaf-gradient")["severity"] == "error"


@only("paddle", "in torch it works in place")
@pytest.mark.parametrize("runs", [cases["paddle"]], indirect=True)
def test_the_sign_of_a_difference_makes_a_new_tensor(runs: dict[str, Run]) -> None:
    first = runs["sign"].check_first("no-gradient")
    assert "`-=` makes a new tensor, too" in first["message"], first


@only("torch", "Paddle makes a new tensor")
@pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
def test_the_sign_of_a_difference_works_in_place(runs: dict[str, Run]) -> None:
    assert "True" in runs["sign"].plain
    assert not runs["sign"].above_notes(), runs["sign"]


@each
@named(HEALTHY, {})
def test_an_update_that_is_written(runs: dict[str, Run], name: str) -> None:
    assert "trained" in runs[name].plain
    runs[name].check_healthy()


@each
@named(OTHERS, {})
def test_no_gradient_of_another_cause(runs: dict[str, Run], name: str) -> None:
    assert not [found for found in runs[name].above_notes() if "a new tensor" in found["message"]], runs[name]
