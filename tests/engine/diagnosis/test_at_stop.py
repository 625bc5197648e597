"""``adbg run -b nan``, and ``diagnose`` at the stop: nobody watched the forward, so that what lies there has to tell,
or to say that it cannot. The marked line is the one that the program's author put the bug in."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from support.diagnosing import check_commands, line_of
from support.frameworks import on_frameworks, only
from support.program import Outcome, adbg

HEADS = {
    "torch": """
    import torch
    torch.manual_seed(0)
    lin = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(lin.parameters(), lr=RATE)
    clear = opt.zero_grad
    x = torch.randn(8, 4)
    """,
    "paddle": """
    import paddle
    paddle.seed(0)
    lin = paddle.nn.Linear(4, 4)
    opt = paddle.optimizer.SGD(RATE, parameters=lin.parameters())
    clear = opt.clear_grad
    x = paddle.randn([8, 4])
    """,
}


def program(framework: str, body: str, rate: str = "0.1") -> str:
    head = textwrap.dedent(HEADS[framework]).lstrip().replace("RATE", rate)
    return head + textwrap.dedent(body).lstrip().replace("FW", framework)


def stopped(folder: Path, text: str, *more: str, at: str = "nan") -> tuple[dict[str, Any] | None, Outcome]:
    """The first finding at the first stop, and what came in all: the program goes on behind it."""
    script = folder / "train.py"
    script.write_text(text)
    words = ["-b", at, "-e", "c", "-e", "diagnose", *more]
    outcome = adbg("run", "--batch", "--json", *words, script, cwd=folder)
    assert outcome.of("stopped"), f"no stop\n{outcome}"
    found = outcome.of("result", command="diagnose")[0]["value"]["findings"]
    return (found[0] if found else None), outcome


def check_cause(found: dict[str, Any] | None, text: str, kind: str, outcome: Outcome) -> dict[str, Any]:
    assert found is not None and found["kind"] == kind, str(outcome)
    assert found["severity"] == "error" and found["cause"]["line"] == line_of(text), str(outcome)
    check_commands(found)
    return found


ROOT = """
for step in range(4):
    h = FW.nn.functional.relu(lin(x))
    d = FW.where(h > 0, FW.sqrt(h), FW.zeros_like(h))  # CAUSE
    clear()
    d.sum().backward()
    opt.step()
"""
NORM = {
    "torch": """
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(n)
        return x / (n + 1e-12)

    @staticmethod
    def backward(ctx, g):
        (n,) = ctx.saved_tensors
        return g / n  # CAUSE
""",
    "paddle": """
class Norm(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        n = x.norm(axis=-1, keepdim=True)
        ctx.save_for_backward(n)
        return x / (n + 1e-12)

    @staticmethod
    def backward(ctx, g):
        (n,) = ctx.saved_tensor()
        return g / n
""",
}
CUSTOM = """
for step in range(4):
    h = lin(x) * (0 if step == 2 else 1)
    loss = (Norm.apply(h) + 1).sum()  # MADE
    clear()
    loss.backward()
    opt.step()
"""
DIVERGES = """
for step in range(16):
    loss = (lin(x) ** 2).mean()
    clear()
    loss.backward()
    opt.step()
print(float(loss))
"""


@on_frameworks()
def test_a_mask_behind_a_root_is_seen_in_the_gradients(framework: str, tmp_path: Path) -> None:
    """In the graph alone: the gradient that came in is exactly 0 there, and what the node saved."""
    text = program(framework, ROOT)
    found, outcome = stopped(tmp_path, text)
    found = check_cause(found, text, "nonfinite", outcome)
    assert "0 * inf is NaN" in found["message"] and found["confidence"] >= 0.9, str(outcome)
    assert any("is 0: finite" in each for each in found["evidence"]), str(found)


@on_frameworks()
def test_a_node_that_ran_before_the_stop_made_it(framework: str, tmp_path: Path) -> None:
    """The breakpoint waits for NaN; the infinities were made by a custom function one node earlier. torch's node names
    the function, and with it the line; Paddle's does not."""
    text = program(framework, NORM[framework] + CUSTOM)
    found, outcome = stopped(tmp_path, text)
    assert found is not None and found["kind"] == "nonfinite" and found["severity"] == "error", str(outcome)
    assert "Norm" in found["node"]["unique_name"] and found["forward"]["line"] == line_of(text, "# MADE"), str(found)
    assert found["cause"]["line"] == line_of(text, "# CAUSE" if framework == "torch" else "# MADE"), str(found)
    assert outcome.of("stopped")[0]["node"]["unique_name"] != found["node"]["unique_name"]


@on_frameworks()
def test_what_a_step_did_before_is_not_put_on_the_next_one(framework: str, tmp_path: Path) -> None:
    """The loss grew for six steps that nobody watched. At the stop, and in all iterations behind it, that is said, and
    no operand of a step or of the forward is called the cause."""
    found, outcome = stopped(tmp_path, program(framework, DIVERGES, "1e7"), "-e", "delete", "-e", "c", "-e", "diagnose")
    assert found is not None and found["severity"] == "note" and found["confidence"] < 0.5, str(outcome)
    assert "not watched" in found["message"] and found["cause"] is None, str(found)
    assert any("adbg diagnose" in each for each in found["next"]), str(found)
    assert "bias" in found["message"] or "weight" in found["message"], str(found)
    told = [each for each in outcome.of("finding") if each["kind"] == "nonfinite" and each["severity"] != "note"]
    assert not told, f"blamed what nobody saw\n{outcome}"


@on_frameworks()
def test_numbers_that_were_bad_before_it_was_switched_on(framework: str, tmp_path: Path) -> None:
    """Switched on between two backwards, where no graph is at hand: the gradients are NaN as the first step is seen."""
    script = tmp_path / "train.py"
    body = DIVERGES.replace("    loss =", "    if step == 9:\n        adbg.breakpoint()\n    loss =", 1)
    script.write_text("import adbg\n" + program(framework, body, "1e7"))
    words = ["-e", "c", "-e", "diagnose start", "-e", "c", "-e", "diagnose"]
    outcome = adbg("run", "--batch", "--json", *words, script, cwd=tmp_path)
    told = [each for each in outcome.of("finding") if each["kind"] == "nonfinite"]
    assert len(told) == 1 and told[0]["severity"] == "note" and told[0]["cause"] is None, str(outcome)
    assert "when diagnosis was switched on" in told[0]["message"], str(outcome)


@on_frameworks()
def test_an_exception_that_ended_the_program(framework: str, tmp_path: Path) -> None:
    text = program(framework, "head = FW.nn.Linear(5, 1)  # CAUSE\nloss = head(lin(x)).sum()\nloss.backward()\n")
    found, outcome = stopped(tmp_path, text, at="backward 1")
    found = check_cause(found, text, "operator-error", outcome)
    assert "head" in found["message"], str(found)


LOG = """
for step in range(4):
    p = torch.softmax(lin(x) * (1 if step < 2 else 500), -1)
    loss = -(p * torch.log(p)).sum(-1).mean()  # CAUSE
    clear()
    loss.backward()
    opt.step()
"""


@only("torch", "Paddle shows no saved tensors of an operator to Python")
def test_a_forward_whose_saved_tensors_tell(tmp_path: Path) -> None:
    text = program("torch", LOG)
    found, outcome = stopped(tmp_path, text)
    found = check_cause(found, text, "nonfinite", outcome)
    assert "forward" in found["message"] and "log of 0" in found["message"], str(found)


@only("paddle", "torch shows what operators saved, and then the line is known")
def test_a_forward_that_nobody_can_look_into(tmp_path: Path) -> None:
    body = """
    bad = x.clone()
    bad[3, 2] = float("nan")
    for step in range(4):
        loss = (lin(bad if step == 2 else x) ** 2).mean()
        clear()
        loss.backward()
        opt.step()
    """
    found, outcome = stopped(tmp_path, program("paddle", body))
    assert found is not None and found["severity"] == "note" and found["confidence"] < 0.5, str(outcome)
    assert found["cause"] is None and "the forward was not watched" in found["message"], str(found)


OVERFLOW = """
w = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.float16))
h = torch.full((8, 4), 200.0, dtype=torch.float16) @ w  # CAUSE
(h.float() * 100.0).sum().backward()
"""


@only("torch", "the test's Paddle multiplies no float16 matrices on a CPU")
def test_a_range_of_float16_that_was_left(tmp_path: Path) -> None:
    """A loss scaler may skip that step: no error."""
    found, outcome = stopped(tmp_path, program("torch", OVERFLOW), at="Mm* after")
    assert found is not None and found["severity"] == "warning", str(outcome)
    assert "beyond the largest float16, 65504" in found["message"], str(found)
    assert found["cause"]["line"] == line_of(program("torch", OVERFLOW)), str(found)


@only("torch", "which version of a tensor was saved is known on torch")
def test_a_backward_that_failed(tmp_path: Path) -> None:
    body = """
    h = torch.sigmoid(lin(x))
    h.add_(1)  # CAUSE
    h.sum().backward()
    """
    text = program("torch", body)
    found, outcome = stopped(tmp_path, text, at="backward 2")
    found = check_cause(found, text, "in-place", outcome)
    assert not [each for each in outcome.of("finding") if each["kind"] == "operator-error"], (
        f"the engine is no operator\n{outcome}"
    )


SECOND = """
for step in range(4):
    y, n = lin(x), 3  # CAUSE
    for part in range(2):
        loss = ((lin(x) * y) ** 2).mean()
        clear()
        loss.backward()
        opt.step()
"""


@on_frameworks()
def test_a_graph_that_was_freed_is_told_at_the_stop(framework: str, tmp_path: Path) -> None:
    """Watched from the start, at the stop on the exception: what the end of that backward tells, and told once."""
    text = program(framework, SECOND)
    (tmp_path / "train.py").write_text(text)
    words = ["-e", "diagnose start", "-e", "c", "-e", "diagnose", "-e", "c"]
    outcome = adbg("run", "--batch", "--json", *words, "train.py", cwd=tmp_path)
    assert [each["reason"] for each in outcome.of("stopped")] == ["error"], str(outcome)
    rows = outcome.of("result", command="diagnose")[0]["value"]["findings"]
    found = check_cause(rows[0] if rows else None, text, "second-backward", outcome)
    assert "'y'" in found["message"], str(found)
    assert [each["kind"] for each in outcome.of("finding")].count("second-backward") == 1, str(outcome)


# Another place that the earlier backward may have been called from.
SECOND_OF_TWO = SECOND.replace("        loss.backward()", "        (loss.backward() if step else loss.backward())")


def _unwatched(folder: Path, text: str) -> tuple[dict[str, Any], Outcome]:
    (folder / "train.py").write_text(text)
    outcome = adbg("run", "--batch", "--json", "-e", "c", "-e", "diagnose", "train.py", cwd=folder)
    rows = outcome.of("result", command="diagnose")[0]["value"]["findings"]
    assert [each["kind"] for each in rows] == ["second-backward"], str(outcome)
    return rows[0], outcome


@only("torch", "Paddle numbers no nodes that nobody watched")
def test_a_graph_that_the_only_backward_freed_before_anybody_watched(tmp_path: Path) -> None:
    text = program("torch", SECOND)
    found, outcome = _unwatched(tmp_path, text)
    check_cause(found, text, "second-backward", outcome)
    assert "'y'" in found["message"] and "was not watched" in " ".join(found["evidence"]), str(found)


@on_frameworks()
def test_a_graph_that_was_freed_before_anybody_watched(framework: str, tmp_path: Path) -> None:
    """What lies there is a node whose graph is gone: a note, with the command that watches from the start."""
    found, _ = _unwatched(tmp_path, program(framework, SECOND_OF_TWO))
    assert found["severity"] == "note" and found["confidence"] < 0.5 and found["cause"] is None, str(found)
    assert "not watched" in found["message"] and any("adbg diagnose" in each for each in found["next"]), str(found)


CUT = """
for step in range(4):
    loss = (lin(x).detach() ** 2).mean()  # CAUSE
    clear()
    loss.backward()
    opt.step()
"""


@only("torch", "Paddle runs a backward without a graph in silence")
def test_a_backward_without_a_graph_is_told_at_the_stop(tmp_path: Path) -> None:
    """Watched: the line that cuts it off. Not watched: a note, and the command that watches."""
    text = program("torch", CUT)
    (tmp_path / "train.py").write_text(text)
    outcome = adbg("run", "--batch", "--json", "-e", "diagnose start", "-e", "c", "-e", "diagnose", "train.py",
                   cwd=tmp_path)  # fmt: skip
    rows = outcome.of("result", command="diagnose")[0]["value"]["findings"]
    check_cause(rows[0] if rows else None, text, "no-gradient", outcome)
    outcome = adbg("run", "--batch", "--json", "-e", "c", "-e", "diagnose", "train.py", cwd=tmp_path)
    rows = outcome.of("result", command="diagnose")[0]["value"]["findings"]
    assert [(each["kind"], each["severity"]) for each in rows] == [("no-gradient", "note")], str(outcome)
    assert "not watched" in rows[0]["message"] and rows[0]["cause"] is None, str(rows)


PAIRS = """
for step in range(14):
    pairs = lin(x)[:, :1] - x[:, 0]  # CAUSE
    loss = pairs.square().mean()
    clear()
    loss.backward()
    opt.step()
"""


@on_frameworks()
def test_iterations_are_those_of_the_program_however_late_it_is_asked(framework: str, tmp_path: Path) -> None:
    """What the forward of the first watched iteration shows is told before any backward was watched."""
    text = program(framework, PAIRS)
    script = tmp_path / "train.py"
    script.write_text(text)
    words = [
        "-b",
        "backward-end backward 6",
        "-e",
        "c",
        "-e",
        "diagnose",
        "-e",
        "delete",
        "-e",
        "b backward-end backward 9",
    ]
    outcome = adbg("run", "--batch", "--json", *words, "-e", "c", script, cwd=tmp_path)
    found = [line for line in outcome.of("finding") if line["kind"] == "loss-broadcast"]
    assert found and found[0]["iteration"] == 7 and found[0]["cause"]["line"] == line_of(text), str(outcome)
