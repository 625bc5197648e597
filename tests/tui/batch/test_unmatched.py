"""A breakpoint that takes no node is told of after the first backward, with the closest names. Both frameworks.

The witness is the framework's own graph, walked by the program itself: which nodes it has decides which specs are told
of.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from support.frameworks import case
from support.program import adbg, commands

SCRIPTS = {
    "torch": """
        import torch as fw
        x = fw.ones(3, 3, requires_grad=True)

        def names(node, seen):
            seen.add(type(node).__name__)
            for follower, _ in node.next_functions:
                if follower is not None:
                    names(follower, seen)
            return seen
        """,
    "paddle": """
        import paddle as fw
        x = fw.ones([3, 3])
        x.stop_gradient = False

        def names(node, seen):
            seen.add(type(node).__name__ if node.name() == "" else node.name())
            for follower in node.next_functions:
                if follower is not None:
                    names(follower, seen)
            return seen
        """,
}
TRAINING = """
import json
for iteration in range(3):
    y = fw.matmul(x, x)
    if iteration == 2:
        y = fw.tanh(y)
    loss = y.sum()  # forward
    if iteration == 0:
        print("NAMES", json.dumps(sorted(names(loss.grad_fn, set()))))
    loss.backward()
    print("iteration", iteration)
"""


@pytest.fixture(params=[case(name, name, id=name) for name in SCRIPTS])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"train_{request.param}.py"
    path.write_text(textwrap.dedent(SCRIPTS[request.param]) + TRAINING)
    return path


def told(lines: list[dict[str, object]]) -> dict[str, int]:
    """spec -> place among the lines, of the notices about breakpoints that matched nothing."""
    found = {}
    for place, line in enumerate(lines):
        text = str(line.get("text", ""))
        if line["type"] == "notice" and "matched nothing" in text:
            found[text.split("(", 1)[1].split(")", 1)[0]] = place
    return found


@pytest.mark.parametrize("alone", [True, False], ids=["names-only", "with-lines"])
def test_what_the_first_graph_does_not_have_is_told_of_after_it(script: Path, alone: bool) -> None:
    """``names-only``: calls that have no such node are not looked into; lines and modules need a walk."""
    specs = ["Matmu?Zz*", "Tanh*", "Sum*"]
    if not alone:
        specs += [f"{script.name}:1", "#1000", "module:encoder", "Sum*#7"]
    options = [word for spec in specs for word in ("-b", f"{spec} ignore 99")]
    # What the program prints takes another way than what its agent tells: only two things told have an order.
    outcome = adbg("run", "--batch", "--json", *options, "-b", "backward backward 2", *commands("c", "c"), script)
    assert outcome.status == 0, str(outcome)
    printed = next(line for line in outcome.program_output.splitlines() if line.startswith("NAMES"))
    there = json.loads(printed.removeprefix("NAMES "))
    assert any(name.lower().startswith("sum") for name in there) and not any("tanh" in name.lower() for name in there)
    found = told(outcome.lines)
    assert {spec.split()[0] for spec in found} == {spec for spec in specs if spec != "Sum*"}
    (second,) = [n for n, line in enumerate(outcome.lines) if line["type"] == "stopped"]
    assert outcome.lines[second]["backward"] == 2
    assert all(place < second for place in found.values()), (second, found)


def test_a_typing_error_gets_the_closest_name(script: Path) -> None:
    outcome = adbg("run", "--batch", "-b", "Summ*", "-b", "nna", script)
    first, second = [line for line in outcome.stderr.splitlines() if "matched nothing" in line]
    assert "closest: Sum" in first and "closest: the breakpoint `nan`" in second


def test_strict_refuses_one_that_never_matched_and_only_that(script: Path) -> None:
    assert adbg("run", "--batch", "--strict", "-b", "Gelu*", script).status == 2
    # Tanh comes in the third iteration only; a condition that never holds is not a spec that matches nothing; nan is
    # none of a node.
    specs = ("Tanh*", "Sum* if index > 1000", "nan", "Tanh* if index > 1000", "Gelu* backward 77")
    options = [word for spec in specs for word in ("-b", spec)]
    assert adbg("run", "--batch", "--strict", *options, script).status == 0


def test_fail_on_makes_the_status_3(script: Path) -> None:
    hit = adbg("run", "--batch", "--json", "--fail-on", "Tanh*", script)
    assert hit.status == 3 and hit.lines[-1] == {"type": "exited", "code": 0, "failed_on": [1]}
    missed = adbg("run", "--batch", "--json", "--fail-on", "nan", "-b", "Tanh*", script)
    assert missed.status == 0 and missed.lines[-1] == {"type": "exited", "code": 0}
    assert adbg("run", "--repl", "--fail-on", "nan", script).status == 2, "only batch mode has a status of its own"


def test_quiet_leaves_answers_and_warnings(script: Path) -> None:
    options = ["-b", "Sum*", "-b", "Nothing*", *commands("c", "p 6 * 7")]
    quiet = adbg("run", "--batch", "--json", "--quiet", *options, script)
    kinds = {line["type"] for line in quiet.lines}
    assert not {"stopped", "backward"} & kinds and told(quiet.lines)
    assert [line["value"] for line in quiet.of("result", command="p 6 * 7")] == [42]
    assert quiet.program_output.endswith("iteration 0\niteration 1\niteration 2\n")
    text = adbg("run", "--batch", "--quiet", *options, script)
    assert "adbg: (adbg) p 6 * 7\nadbg: 42\n" in text.stdout and "Breakpoint 1" not in text.stdout


def test_a_breakpoint_behind_the_end_says_so_and_tells_no_story(script: Path) -> None:
    outcome = adbg("run", "--batch", "-e", "c", "-b", "Sum*", script)
    assert "the program had ended before this breakpoint was set" in outcome.stdout + outcome.stderr
    assert "no backward was ever called" not in outcome.stdout + outcome.stderr


def test_a_program_without_backward_is_told_as_such(script: Path) -> None:
    script.write_text(script.read_text().replace("    loss.backward()\n", ""))
    outcome = adbg("run", "--batch", "-b", "Sum*", script)
    assert "no backward was ever called" in outcome.stderr
