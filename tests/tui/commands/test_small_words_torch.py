"""What the line-oriented front ends say in small things, on real torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import adbg, batch, commands

pytest.importorskip("torch")

CUSTOM = """
import torch

class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad

x = torch.ones(3, requires_grad=True)
for iteration in range(2):
    StraightThrough.apply(x * 2).sum().backward()
"""


def texts(outcome: object, command: str) -> list[str]:
    return [line["text"] for line in outcome.of("result", command=command)]  # type: ignore[attr-defined]


def test_at_the_end_of_a_backward_the_last_node_is_meant() -> None:
    outcome = batch("mlp", "-b", "backward-end", *commands("c", "info node", "graph", "why", "kill"))
    assert not outcome.of("error"), str(outcome)
    value = {line["command"]: line["value"] for line in outcome.of("result")}
    assert value["graph"]["node"] == value["why"]["node"] == 16
    (node,) = texts(outcome, "info node")
    assert node.startswith("AccumulateGrad#6  #16  ran") and node.count("parameter: 0.weight") == 1


def test_a_glob_that_takes_nothing_names_the_closest(tmp_path: Path) -> None:
    script = tmp_path / "rounding.py"
    script.write_text(CUSTOM)
    lines = ("step", "b Straigt*", "b StraightTrough", "b Zzz*")
    outcome = adbg("run", "--batch", "--json", *commands(*lines), script)
    for line in ("b Straigt*", "b StraightTrough"):
        assert "closest: StraightThroughBackward" in texts(outcome, line)[0]
    assert "closest" not in texts(outcome, "b Zzz*")[0]


def test_a_condition_on_a_name_that_does_not_exist_is_doubted_at_once() -> None:
    lines = (
        "c",
        "condition 1 norm(nope) > 1",
        "condition 1 norm(grad_outputs[7]) > 1",
        "condition 1 index > 3",
        "kill",
    )
    outcome = batch("mlp", "-b", "Tanh", *commands(*lines))
    doubted, other_node, good = (texts(outcome, line)[0] for line in lines[1:4])
    assert "evaluated here: name 'nope' is not defined" in doubted
    assert "evaluated here" not in other_node and "evaluated here" not in good


def test_a_breakpoint_on_errors_says_that_adbg_stops_there_anyway() -> None:
    outcome = batch("mlp", *commands("b error", "b error if index > 2", "disable error", "b error backward 2"))
    first, second, third = (texts(outcome, f"b error{rest}")[0] for rest in ("", " if index > 2", " backward 2"))
    assert "stops at exceptions without it, too" in first
    assert "without it" not in second + third


def test_a_local_of_the_forward_and_a_name_that_exec_makes_are_explained(tmp_path: Path) -> None:
    script = tmp_path / "scaled.py"
    script.write_text(
        "import torch\ndef forward(x):\n    scores = x * 3\n    return scores.exp()\n"
        "forward(torch.ones(2, requires_grad=True)).sum().backward()\n"
    )
    lines = ("b Exp*", "c", "p scores", "! exec('late = 1', globals()); print(late)", "p late", "p nothing")
    said = {line["command"]: line for line in adbg("run", "--batch", "--json", *commands(*lines), script).of("error")}
    assert "locals as the forward had them are gone" in said["p scores"]["message"]
    assert "in the next command" in str(said[lines[3]]) and "p late" not in said
    assert "gone" not in str(said["p nothing"])


def test_nan_as_a_name_is_answered_with_how_to_write_it() -> None:
    outcome = batch("mlp", "-b", "Tanh", *commands("c", "set x = nan", "kill"))
    (error,) = outcome.of("error")
    assert "math.nan" in str(error)


def test_a_second_run_within_the_second_shows_its_script(adbg_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    for _ in range(3):
        adbg("run", "--batch", script)
    listed = adbg("runs").stdout.splitlines()[1:4]
    assert [row.split()[-1] for row in listed] == [str(script)] * 3 or all(
        row.rstrip().endswith("train.py") for row in listed
    ), listed
    shown = adbg("runs", "show", listed[0].split()[0]).stdout
    assert f"script   {script}" in shown and "0 stops recorded" in shown


def test_what_is_missing_is_told_before_the_terminal_is(tmp_path: Path) -> None:
    outcome = adbg("run", tmp_path / "nope.py")
    assert outcome.status == 2 and "no such script" in outcome.stderr
    outcome = adbg("attach", "4194300")
    assert outcome.status == 2 and "no process 4194300" in outcome.stderr


FROZEN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.spare = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.second(self.first(x))

def freeze(net):
    for parameter in net.first.parameters():
        parameter.requires_grad_(False)

net = Net()
freeze(net)
net(torch.ones(2, 3)).sum().backward()
"""


def test_a_parameter_without_a_node_is_answered_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "frozen.py"
    script.write_text(FROZEN)
    lines = ("why first.weight", "info node param:spare.bias", "why second.bias", "why nobody.bias")
    outcome = adbg("run", "--batch", "--json", "-b", "SumBackward0", *commands("c", *lines, "kill"), script)
    frozen, unused, unknown = (str(error) for error in outcome.of("error"))
    assert "parameter 'first.weight' has no node" in frozen and "requires_grad is False" in frozen
    assert "parameter 'spare.bias' has no node" in unused and "nothing that this backward goes through" in unused
    assert "no node 'nobody.bias' in this graph" in unknown
    assert "AccumulateGrad#1" in texts(outcome, "why second.bias")[0]


def test_functions_and_ranges_are_listed(tmp_path: Path) -> None:
    script = tmp_path / "frozen.py"
    script.write_text(FROZEN)
    lines = ("list freeze", "list Net.forward", "list 5,7", "list nobody")
    outcome = adbg("run", "--batch", "--json", "-b", "SumBackward0", *commands("c", *lines, "kill"), script)
    assert [line["value"]["line"] for line in outcome.of("result") if "list" in line["command"]] == [13, 10, 5]
    shown = [line.split()[0] for line in texts(outcome, "list 5,7")[0].splitlines()[1:]]
    assert shown == ["5", "6", "7"]
    (error,) = outcome.of("error")
    assert "no function 'nobody'" in str(error)


LOCALS = """
import torch

def forward(x, scale):
    h = x * scale
    x = h.tanh()
    return x

def train():
    x, rate = torch.full((2,), 7.0), torch.ones(2, requires_grad=True)
    loss = forward(rate, 2.0).sum()
    loss.backward()

train()
"""


def test_a_local_of_the_running_frame_is_not_taken_for_the_forwards(tmp_path: Path) -> None:
    script = tmp_path / "mixed.py"
    script.write_text(LOCALS)
    lines = ("b TanhBackward0", "c", "p x.tolist()", "p rate.tolist()", "p norm(grad_outputs[0])", "b SumBackward0")
    outcome = adbg("run", "--batch", "--json", *commands(*lines, "kill"), script)
    line = LOCALS.splitlines().index("    loss.backward()") + 1
    (mixed,) = texts(outcome, "p x.tolist()")
    value, note = mixed.splitlines()
    assert value == "[7.0, 7.0]" and note.startswith("(x of frame ") and f"train at mixed.py:{line}: forward," in note
    assert outcome.of("result", command="p x.tolist()")[0]["value"] == [7.0, 7.0]
    assert texts(outcome, "p rate.tolist()") == ["[1.0, 1.0]"]
    assert "\n" not in texts(outcome, "p norm(grad_outputs[0])")[0]


def test_a_local_of_the_function_that_made_the_node_and_still_runs_is_plain(tmp_path: Path) -> None:
    script = tmp_path / "same.py"
    script.write_text("import torch\nx = torch.ones(2, requires_grad=True)\nx.tanh().sum().backward()\n")
    outcome = adbg("run", "--batch", "--json", *commands("b TanhBackward0", "c", "p x.tolist()", "kill"), script)
    assert texts(outcome, "p x.tolist()") == ["[1.0, 1.0]"]


OVERWRITTEN = """
import torch
weight = torch.ones(3, requires_grad=True)
for _ in range(2):
    h = (weight * 2).exp()
    h.detach().add_(1)
    h.sum().backward()
"""


def test_what_overwrote_unseen_is_named_behind_a_restart(tmp_path: Path) -> None:
    """No operator was watched as the program came to the stop: the line that wrote is not known there."""
    script = tmp_path / "overwritten.py"
    script.write_text(OVERWRITTEN)
    outcome = adbg("run", "--batch", "--json", *commands("c", "diagnose", "restart", "c", "c"), script)
    first, *_, last = (line for line in outcome.of("finding") if line["kind"] == "in-place")
    assert first["cause"] is None and first["next"][0] == "restart" and "`restart`" in first["evidence"][-1]
    assert last["cause"]["line"] == OVERWRITTEN.splitlines().index("    h.detach().add_(1)") + 1
    assert "restart" not in last["next"]


def test_the_thread_that_stands_is_at_the_node_of_the_stop() -> None:
    """Not in the hook by which it was stopped, which native frames name."""
    outcome = batch("mlp", "-b", "TanhBackward0", *commands("c", "where all", "kill"))
    (stop,) = outcome.of("stopped")
    (text,) = texts(outcome, "where all")
    assert f"node {stop['node']['unique_name']} of backward 1" in text and "PreHook" not in text, text
