"""Two real ranks over gloo that go apart, each for another reason; and two that stay together. What the front end
compares is what each rank tells of itself: no collective is added to the program's."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.diagnosing import check_commands, findings, line_of
from support.frameworks import on_frameworks, only
from support.job import free_port, paddle_ranks, torchrun
from support.program import Outcome, adbg, debuggee

from adbg.engine.record.files import labels
from adbg.engine.record.reader import RunReader

HEAD = {
    "torch": """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Wrap
torch.set_num_threads(1)
dist.init_process_group("gloo")
Base, Linear = torch.nn.Module, torch.nn.Linear
SGD = lambda parameters, rate: torch.optim.SGD(parameters, lr=rate)
rows = lambda *shape: torch.randn(*shape)
seed, clear = torch.manual_seed, "zero_grad"
""",
    "paddle": """
import os, sys
import paddle, paddle.distributed as dist
from paddle import DataParallel as Wrap
dist.init_parallel_env()
Base, Linear = paddle.nn.Layer, paddle.nn.Linear
SGD = lambda parameters, rate: paddle.optimizer.SGD(rate, parameters=parameters)
rows = lambda *shape: paddle.randn(shape)
seed, clear = paddle.seed, "clear_grad"
""",
}
BODY = """
rank = dist.get_rank()
seed(0)

class Net(Base):
    def __init__(self):
        super().__init__()
        self.a, self.b = Linear(4, 4), Linear(4, 4)

    def forward(self, x, both):
        h = self.a(x)
        if both:
            h = h + self.b(h)  # BRANCH
        return h

net = Net()
model = Wrap(net)
opt = SGD(model.parameters(), RATE)
seed(7 + rank)
data = [rows(6, 4) for _ in range(COUNT)]
for x in data:  # LOOP
    loss = (model(x, BOTH) ** 2).mean()
    getattr(opt, clear)()
    loss.backward()
    AVERAGED
    opt.step()  # STEP
os.write(1, f"RANK {rank} {float(net.a.weight.sum()):.9f}\\n".encode())  # at once: the other one writes there too
"""
#: what RATE, COUNT and BOTH are: the bug
UNUSED = {"RATE": "0.1", "COUNT": "4", "BOTH": "rank == 0 or x is not data[2]"}
UNEVEN = {"RATE": "0.1", "COUNT": "(4, 3)[rank]", "BOTH": "True"}
RATES = {"RATE": "(0.1, 0.2)[rank]", "COUNT": "4", "BOTH": "True"}
HEALTHY = {"RATE": "0.1", "COUNT": "4", "BOTH": "True"}
BY_HAND = {**UNEVEN, "Wrap(net)": "net", "AVERAGED": "[dist.all_reduce(each.grad) for each in net.parameters()]"}


def job(folder: Path, framework: str, bug: dict[str, str], *options: str) -> tuple[str, list[str]]:
    """The text of the script, and the command that starts two ranks of it."""
    text = (HEAD[framework] + textwrap.dedent(BODY)).lstrip()
    for name, value in {"AVERAGED": "pass", **bug}.items():
        text = text.replace(name, value) if name != "BOTH" else text.replace("(x, BOTH)", f"(x, {value})")
    script = folder / "train.py"
    script.write_text(text)
    if framework == "torch":
        return text, torchrun(2, script)
    return text, paddle_ranks(folder, script)


def diagnosed(folder: Path, framework: str, bug: dict[str, str]) -> tuple[str, list[dict[str, Any]], Outcome]:
    text, command = job(folder, framework, bug)
    record = ["--run-dir", str(folder / "record")]
    outcome = adbg("diagnose", "--json", "--timeout", "70", *record, "--", *command, cwd=folder, limit=150)
    return text, [each for each in findings(outcome) if each["severity"] != "note"], outcome


def check(found: list[dict[str, Any]], kind: str, line: int | None, outcome: Outcome) -> dict[str, Any]:
    """It is the only one: what the other rank ran into is folded under it."""
    assert [each["kind"] for each in found] == [kind], str(outcome)
    assert found[0]["severity"] == "error" and (line is None or found[0]["cause"]["line"] == line), str(outcome)
    check_commands(found[0])
    return found[0]


@on_frameworks()
def test_a_branch_that_one_rank_does_not_take(framework: str, tmp_path: Path) -> None:
    """The wrapper raises on that rank, in its next forward, and says which parameters only by number, or not at all."""
    text, found, outcome = diagnosed(tmp_path, framework, UNUSED)
    one = check(found, "unused-in-rank", line_of(text, "# BRANCH"), outcome)
    assert "b.weight and " in one["message"] and "b.bias" in one["message"], str(one)
    assert "rank 1" in one["message"] and one["iteration"] == 3, str(one)


@on_frameworks()
def test_learning_rates_that_differ(framework: str, tmp_path: Path) -> None:
    """The same gradients, and other steps."""
    text, found, outcome = diagnosed(tmp_path, framework, RATES)
    one = check(found, "drifted-parameters", line_of(text, "# STEP"), outcome)
    assert "0.1 on rank 0, 0.2 on rank 1" in one["message"], str(one)
    assert outcome.program_output.count("RANK") == 2, str(outcome)
    again = adbg("diagnose", "--json", tmp_path / "record")
    told = [each for each in findings(again) if each["severity"] != "note"]
    assert [(each["kind"], each["message"]) for each in told] == [(one["kind"], one["message"])], str(again)


@on_frameworks()
@pytest.mark.parametrize("between", ["pass", "dist.all_reduce(loss.detach())"], ids=["alone", "shown"])
def test_a_wrapper_that_is_passed_by(framework: str, tmp_path: Path, between: str) -> None:
    """A note, for a program may average by itself in another group, until weights are seen to drift. Also where a loss
    is averaged to be shown."""
    inner = "module" if framework == "torch" else "_layers"
    bug = {**HEALTHY, "model(x, ": f"model.{inner}(x, ", "AVERAGED": between}
    text, _, outcome = diagnosed(tmp_path, framework, bug)
    found = [each for each in findings(outcome) if "averages nothing" in each["message"]]
    assert [each["kind"] for each in found] == ["drifted-parameters"], str(outcome)
    one = found[0]
    assert one["cause"]["line"] == next(n for n, each in enumerate(text.splitlines(), 1) if f"model.{inner}(" in each)
    sums = {line.split()[2] for line in outcome.program_output.splitlines() if line.startswith("RANK")}
    assert (one["severity"] == "warning") == (len(sums) == 2), str(outcome)


FROZEN = """
def freeze(layer, frozen):
    for each in layer.parameters():
        if hasattr(each, "stop_gradient"):
            each.stop_gradient = frozen
        else:
            each.requires_grad_(not frozen)
freeze(net.b, True)
model = Wrap(net)  # WRAPPED
"""
# Right behind the wrapper, and in the third iteration.
THAWED = {
    "paddle": {"model = Wrap(net)": FROZEN + "freeze(net.b, False)"},
    "torch": {"model = Wrap(net)": FROZEN, "AVERAGED": "freeze(net.b, x is data[0])"},
}


@on_frameworks()
def test_what_was_frozen_as_it_was_wrapped(framework: str, tmp_path: Path) -> None:
    """Each rank trains it alone, by what the ranks print of it."""
    ends = {"COUNT": "9", "net.a.weight.sum": "net.b.weight.sum"}
    text, found, outcome = diagnosed(tmp_path, framework, {**HEALTHY, **THAWED[framework], **ends})
    one = check(found, "drifted-parameters", line_of(text, "# WRAPPED"), outcome)
    assert "does not average the gradients of" in one["message"] and "b.weight" in one["message"], str(one)
    sums = {line.split()[2] for line in outcome.program_output.splitlines() if line.startswith("RANK")}
    assert len(sums) == 2, str(outcome)


@only("torch", "Paddle's wrapper keeps no list of what it averages")
def test_what_was_put_in_behind_the_wrapper(tmp_path: Path) -> None:
    put = "net.b = torch.nn.Identity()\nmodel = Wrap(net)  # WRAPPED\nseed(rank)\nnet.b = Linear(4, 4)  # PUT"
    ends = {"net.a.weight.sum": "net.b.weight.sum"}
    text, found, outcome = diagnosed(tmp_path, "torch", {**HEALTHY, "model = Wrap(net)": put, **ends})
    one = check(found, "drifted-parameters", line_of(text, "# WRAPPED"), outcome)
    at = f"train.py:{line_of(text, '# PUT')}"
    assert "module.b.weight" in one["message"] and at in one["message"], str(one)
    assert len({line.split()[2] for line in outcome.program_output.splitlines() if line.startswith("RANK")}) == 2


OUTER = """
class Outer(Base):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x, both):
        return self.inner(x, both)
model = Outer(Wrap(net))
"""


@on_frameworks()
def test_a_nan_that_is_averaged_into_the_other_rank(framework: str, tmp_path: Path) -> None:
    """Rank 1 alone makes it, by the third batch; both ranks end with weights of NaN. What the other sees follows."""
    whole = "float(rank == 0 or x is not data[2])"
    bug = {"(model(x, BOTH) ** 2).mean()": f"((model(x, True) * {whole}) ** 2).sum() ** 0.5  # CAUSE"}
    text, told, outcome = diagnosed(tmp_path, framework, {**bug, **HEALTHY})
    one = check(told, "nonfinite", line_of(text, "# CAUSE"), outcome)
    assert one["iteration"] == 3 and outcome.program_output.count("nan") == 2, str(outcome)
    others = [each["message"] for each in outcome.of("finding") if "averaged" in each["message"]]
    assert others and all("it comes from another rank" in each for each in others), str(outcome)


# Four micro-batches to a step, of which FIRST or the last one is to average.
MICRO = """for number, x in enumerate(data):
    import contextlib
    with contextlib.nullcontext() if number % 4 == AVERAGES else model.no_sync():  # CHOSEN
        loss = (model(x, True) ** 2).mean()
        loss.backward()
    if number % 4 == 3:
        opt.step()
        getattr(opt, clear)()
os.write"""


@on_frameworks()
@pytest.mark.parametrize(("averages", "found"), [("0", True), ("3", False), ("9", False)])
def test_micro_batches_that_are_added_after_those_that_were_averaged(
    framework: str, averages: str, found: bool, tmp_path: Path
) -> None:
    """Each rank trains a model of its own, by what the ranks print; so does one that never averages, which may be
    meant."""
    text = BODY.replace("AVERAGED", "pass")
    loop = text[text.index("for x in data") : text.index("os.write") + len("os.write")]
    bug = {loop: MICRO.replace("AVERAGES", averages), **HEALTHY, "COUNT": "16"}
    text, told, outcome = diagnosed(tmp_path, framework, bug)
    sums = {line.split()[2] for line in outcome.program_output.splitlines() if line.startswith("RANK")}
    assert len(sums) == (1 if averages == "3" else 2), str(outcome)
    if not found:
        assert not told, str(outcome)
        return
    one = check(told, "drifted-parameters", line_of(text, "# CHOSEN"), outcome)
    assert "of 4 backwards before it number 1 averaged" in one["message"], str(one)


# One wrapper averages in each step; beside it another one, with an optimizer of its own, adds four micro-batches up.
BESIDE = """other = Wrap(Net())
slow = SGD(other.parameters(), 0.1)
for number, x in enumerate(data):
    import contextlib
    (model(x, True) ** 2).mean().backward()
    with contextlib.nullcontext() if number % 4 == 3 else other.no_sync():
        (other(x, True) ** 2).mean().backward()
    opt.step()
    getattr(opt, clear)()
    if number % 4 == 3:
        slow.step()
        getattr(slow, clear)()
os.write"""


@only("torch", "the detector's part is the same for both")
def test_two_wrappers_with_schedules_of_their_own(tmp_path: Path) -> None:
    text = BODY.replace("AVERAGED", "pass")
    loop = text[text.index("for x in data") : text.index("os.write") + len("os.write")]
    _, told, outcome = diagnosed(tmp_path, "torch", {loop: BESIDE, **HEALTHY, "COUNT": "16"})
    assert not told and outcome.status == 0, str(outcome)


# Rank 0 trains alone first; what it has learnt is to be loaded before the wrapper broadcasts.
ALONE = """
alone = Net()
first = SGD(alone.parameters(), 0.1)
for _ in range(6 if rank == 0 else 0):
    (alone(rows(6, 4), True) ** 2).mean().backward()
    first.step()
    getattr(first, clear)()
"""
LOAD = """
if rank == 0:
    (getattr(net, "load_state_dict", None) or net.set_state_dict)(alone.state_dict())  # LOADED
"""


@on_frameworks()
def test_weights_that_one_rank_loads_after_the_broadcast(framework: str, tmp_path: Path) -> None:
    """That rank counts more backwards than the other: iterations are those of the wrapper."""
    bug = {"model = Wrap(net)": f"{ALONE}model = Wrap(net)\n{LOAD}", **HEALTHY}
    text, found, outcome = diagnosed(tmp_path, framework, bug)
    one = check(found, "drifted-parameters", line_of(text, "# LOADED"), outcome)
    assert "only rank 0 loaded weights" in one["message"] and one["iteration"] <= 1, str(one)
    assert len({line.split()[2] for line in outcome.program_output.splitlines() if line.startswith("RANK")}) == 2


@on_frameworks()
def test_weights_that_one_rank_loads_before_the_broadcast(framework: str, tmp_path: Path) -> None:
    text, found, outcome = diagnosed(
        tmp_path, framework, {"model = Wrap(net)": f"{ALONE}{LOAD}model = Wrap(net)", **HEALTHY}
    )
    assert not found and outcome.status == 0, f"{text}\n{outcome}"
    assert len({line.split()[2] for line in outcome.program_output.splitlines() if line.startswith("RANK")}) == 1


@on_frameworks()
def test_a_wrapper_within_another_module_is_called(framework: str, tmp_path: Path) -> None:
    _, found, outcome = diagnosed(tmp_path, framework, {**HEALTHY, "model = Wrap(net)": OUTER})
    assert not found and outcome.status == 0, str(outcome)


@on_frameworks()
def test_ranks_that_stay_together(framework: str, tmp_path: Path) -> None:
    """Nothing is told; and each rank ends with the weights of a run without adbg, to nine digits of their sum."""
    _, found, outcome = diagnosed(tmp_path, framework, HEALTHY)
    assert not found and outcome.status == 0, str(outcome)
    _, command = job(tmp_path, framework, HEALTHY)
    plain = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    witness = sorted(line for line in plain.stdout.splitlines() if line.startswith("RANK"))
    told = sorted(line for line in outcome.program_output.splitlines() if line.startswith("RANK"))
    assert told == witness and len(witness) == 2, f"{plain}\n{outcome}"
    (end,) = outcome.of("diagnosis")
    assert {"drifted-parameters", "uneven-batches"} <= {row["kind"] for row in end["examined"]}, str(end)


PARTS = """
import torch, torch.nn.functional as F, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(100 + rank)

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)
        self.down = torch.nn.Linear(16, 4, bias=False)
        torch.nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return Sum.apply(self.down(F.gelu(self.norm(self.up(x)))))

net = Part()
opt = torch.optim.Adam(net.parameters(), 1e-2)
data = torch.Generator().manual_seed(0)
for _ in range(9):
    x = torch.randn(32, 8, generator=data)
    loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
print("RANK", rank, flush=True)
"""


@only("torch", "what is told of constant parameters is the same for both; values: test_findings_of_ranks.py")
def test_ranks_with_parts_of_a_model(tmp_path: Path) -> None:
    """Tensor parallel: on both ranks the bias begins with zeros, the norm with ones and zeros. No note is told either.
    That they are the same in the beginning is what adbg recorded."""
    script = tmp_path / "train.py"
    script.write_text(PARTS.lstrip())
    record = tmp_path / "record"
    outcome = adbg("diagnose", "--json", "--run-dir", record, "--", *torchrun(2, script), cwd=tmp_path, limit=150)
    told = [each for each in findings(outcome) if each["kind"] in ("drifted-parameters", "unused-in-rank")]
    assert not told and outcome.program_output.count("RANK") == 2, str(outcome)
    begins = [each for label in labels(record) for each in RunReader(record, label).rank_facts()]
    begins = [each for each in begins if each.iteration == 0]
    assert [sorted(each.constant) for each in begins] == [["norm.bias", "norm.weight", "up.bias"]] * 2, str(begins)
    assert len({each.parameters["up.bias"] for each in begins}) == 1


@only("torch", "a rank of Paddle that waits for one that ended is aborted by gloo, and tells nothing")
def test_a_rank_with_fewer_batches(tmp_path: Path) -> None:
    text, found, outcome = diagnosed(tmp_path, "torch", UNEVEN)
    one = check(found, "uneven-batches", line_of(text, "# LOOP"), outcome)
    assert "rank 1 ended after 3 iterations" in one["message"] and "rank 0" in one["message"], str(one)


@on_frameworks()
def test_a_rank_with_fewer_batches_of_gradients_that_are_averaged_by_hand(framework: str, tmp_path: Path) -> None:
    """No backward fails then, and Paddle does not abort the rank that waits."""
    text, found, outcome = diagnosed(tmp_path, framework, BY_HAND)
    one = check(found, "uneven-batches", line_of(text, "# LOOP"), outcome)
    assert "rank 1 ended after 3 iterations" in one["message"] and "rank 0" in one["message"], str(one)
    assert outcome.program_output.count("RANK") == 1, str(outcome)


@pytest.mark.paddle
def test_a_weight_that_one_rank_changes(tmp_path: Path) -> None:
    """The debuggee's own hashes say which one it was."""
    pytest.importorskip("paddle")
    words = ["diagnose", "--json", debuggee("paddle_diverging"), str(tmp_path), str(free_port())]
    outcome = adbg(*words, limit=150)
    found = [each for each in findings(outcome) if each["severity"] != "note"]
    one = check(found, "drifted-parameters", None, outcome)
    assert "2.weight;" in one["message"] and "the same gradients" in one["message"], str(one)
    assert "after backward 2" in one["message"], str(one)
