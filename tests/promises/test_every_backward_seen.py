"""The promise "every backward is seen", whoever starts it; what torch.jit and torch.compile make still runs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from support.frameworks import case, on_frameworks, only
from support.program import DEBUGGEES, Outcome, batch, commands, plain, run

# (debuggee, arguments) -> backward calls (at top level, nested in another one); the docstring of each counts them.
KNOWN = {
    ("mlp", ()): (5, 0),
    ("checkpointing", ()): (6, 6),
    ("nested_function", ("3",)): (1, 3),
    ("nested_function", ("130",)): (1, 130),  # torch changes thread past a depth of 60, twice
    ("double_backward", ()): (9, 0),
    ("early_bound", ()): (6, 0),
    ("functional", ()): (14, 0),
    ("grad_scaler", ()): (4, 0),
    ("threads", ()): (12, 0),
    ("raising_function", ()): (3, 0),
    ("jit_script", ()): (2, 0),
    ("compiled", ("aot_eager",)): (3, 0),
    ("compiled", ("eager",)): (3, 0),
    ("paddle_mlp", ()): (5, 0),
    ("paddle_recompute", ()): (4, 4),
    ("paddle_nested_pylayer", ("3",)): (2, 6),
    ("paddle_nested_pylayer", ("40",)): (2, 80),
    ("paddle_double_grad", ()): (8, 0),
    ("paddle_raising_pylayer", ()): (3, 0),
}
CASES = [
    case("paddle" if name.startswith("paddle_") else "torch", name, words, id="-".join((name, *words)))
    for name, words in KNOWN
]
ARMED = ("-b", "NoSuchNodeAnywhere")


def seen(outcome: Outcome) -> tuple[int, int]:
    """(top level, nested) backward calls of the main process."""
    begun = outcome.of("backward", phase="begin")
    return sum(not line["depth"] for line in begun), sum(line["depth"] > 0 for line in begun)


def check_same(name: str, arguments: tuple[str, ...], outcome: Outcome) -> None:
    """The digest, and every other line the program wrote, are those of a plain run."""
    undisturbed = plain(name, *arguments)
    assert undisturbed.status == 0, str(undisturbed)
    assert outcome.status == 0, str(outcome)
    assert outcome.program_output.replace("\r\n", "\n") == undisturbed.stdout, str(outcome)


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_count(name: str, arguments: tuple[str, ...]) -> None:
    outcome = batch(name, "-b", "error", *ARMED, arguments=arguments)
    assert seen(outcome) == KNOWN[name, arguments], str(outcome)
    assert len(outcome.of("backward", phase="end")) == sum(KNOWN[name, arguments])
    check_same(name, arguments, outcome)


@only("torch", "Paddle's LBFGS goes through Tensor.backward as any loop does")
def test_lbfgs_closures() -> None:
    outcome = batch("lbfgs", *ARMED)
    calls = int(outcome.program_output.split("BACKWARDS ")[1].split()[0])
    assert calls >= 4  # two steps with a line search
    assert seen(outcome) == (calls, 0)


@only("torch", "Paddle has no gradcheck")
def test_gradcheck() -> None:
    """How often gradcheck goes into the engine is torch's affair: counted by an engine of the test's own."""
    counted = run([sys.executable, DEBUGGEES / "count_backward.py", DEBUGGEES / "gradcheck.py"])
    expected = int(counted.stdout.split("BACKWARDS ")[1].split()[0])
    assert expected >= 2
    assert seen(batch("gradcheck", *ARMED)) == (expected, 0)


@only("torch", "not written for Paddle yet: its launcher takes 3-7 s and two ranks")
def test_data_parallel_ranks() -> None:
    outcome = batch("ddp", *ARMED)
    assert outcome.status == 0, str(outcome)
    assert outcome.digest == plain("ddp").digest
    begun = Counter(line["rank"] for line in outcome.of("backward", phase="begin"))
    assert begun == {0: 3, 1: 3}, str(outcome)


@only("torch", "multiprocessing is the agent's affair, the same for every framework")
def test_spawned_pool() -> None:
    outcome = batch("spawn_pool", *ARMED)
    assert outcome.digest == plain("spawn_pool").digest, str(outcome)
    assert len(outcome.of("backward", phase="begin")) == 5, str(outcome)


@on_frameworks()
def test_a_process_killed_right_behind_its_backward(framework: str, tmp_path: Path) -> None:
    """As a pool kills its workers; nothing of the process runs any more behind that."""
    made = {"torch": "torch.ones(3, requires_grad=True)", "paddle": "paddle.to_tensor([1.0], stop_gradient=False)"}
    script = tmp_path / "killed.py"
    script.write_text(
        f"import os, signal, {framework}\nx = {made[framework]}\nfor _ in range(3):\n    x.sin().sum().backward()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    outcome = run([sys.executable, "-m", "adbg", "run", "--batch", "--json", *ARMED, script])
    assert [line["backward"] for line in outcome.of("backward", phase="end")] == [1, 2, 3], str(outcome)


@only("torch", "torch.compile alone makes one node of a region")
def test_compiled_region() -> None:
    """aot_eager puts the whole region into one node, which says so."""
    outcome = batch("compiled", *commands("break *Compiled*", "continue", "info graph", "info node", "delete"))
    assert outcome.status == 0, str(outcome)
    assert "graphs 1 breaks 0" in outcome.program_output, str(outcome)
    (graph,) = outcome.of("result", command="info graph")
    kinds = {row["name"]: row["compiled"] for row in graph["value"]["rows"]}
    assert kinds["CompiledFunctionBackward"] is True
    assert kinds["PowBackward0"] is False
    assert not any("Addmm" in name for name in kinds)
    assert "compiled region" in outcome.of("result", command="info node")[0]["text"]


@only("torch", "torch.compile alone makes one node of a region")
def test_compiled_without_a_region() -> None:
    """Backend eager keeps the ordinary nodes."""
    outcome = batch("compiled", *commands("break backward", "continue", "info graph", "delete"), arguments=["eager"])
    assert "graphs 1 breaks 0" in outcome.program_output, str(outcome)
    (graph,) = outcome.of("result", command="info graph")
    kinds = {row["name"]: row["compiled"] for row in graph["value"]["rows"]}
    assert "AddmmBackward0" in kinds
    assert not any(kinds.values())


@only("torch", "what Paddle's doctor says is tested in tests/engine/backends")
def test_unseen_is_stated() -> None:
    """What C++ starts cannot be seen; ``adbg doctor`` says so."""
    report = run([sys.executable, "-m", "adbg", "doctor"])
    assert report.status == 0, report
    assert "C++" in report.stdout, report
    assert "torch.jit" in report.stdout, report
