"""The examples stop where their headers say, and ``make demo`` prints what it should without a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.program import ROOT, Outcome, adbg, commands

EXAMPLES = ROOT / "examples"
TORCH_EXAMPLES = ["nan_at_sqrt", "nested_functions", "wrong_gradient", "inplace_error"]


def example(name: str, *options: str) -> Outcome:
    return adbg("run", "--batch", "--json", *options, EXAMPLES / f"{name}.py")


def line_of(name: str, text: str) -> int:
    """The number of the only line of an example that has this text."""
    found = [n for n, line in enumerate((EXAMPLES / name).read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, f"{name}: {text!r} on lines {found}"
    return found[0]


def header_commands(name: str) -> list[str]:
    """The commands that an example's header tells a reader to try, between its ``adbg run`` line and the next text."""
    header = (EXAMPLES / f"{name}.py").read_text().split('"""')[1]
    indented = [line.strip() for line in header.splitlines() if line.startswith("    ")]
    words = [re.split(r"\s{4,}", line)[0] for line in indented]
    return [word for word in words if not word.startswith("adbg run")]


@pytest.mark.quick
def test_demo() -> None:
    """The command of ``make demo``, as the Makefile has it: the stop, its evidence, status 0."""
    words = "run --batch -b nan -x examples/nan_at_sqrt.adbg examples/nan_at_sqrt.py"
    assert words in (ROOT / "Makefile").read_text()
    outcome = adbg(*words.split(), cwd=ROOT)
    assert outcome.status == 0, str(outcome)
    line = line_of("tiny_gpt.py", "rms = mean_square.sqrt()")
    for wanted in ("SqrtBackward0", f"tiny_gpt.py:{line}", "layers.0.norm1", "is 0 at 4 places", "iteration 14"):
        assert wanted in outcome.stdout, str(outcome)


@pytest.mark.parametrize("name", TORCH_EXAMPLES)
def test_header(name: str) -> None:
    """Everything that the header tells to try works, in that order, at the stop that its ``adbg run`` line leads to."""
    header = (EXAMPLES / f"{name}.py").read_text().split('"""')[1]
    spec = re.search(r"-b ('[^']+'|\S+)", header)
    breakpoint = ["-b", spec.group(1).strip("'")] if spec else []
    tried = header_commands(name)
    assert len(tried) >= 4
    outcome = example(name, *breakpoint, *commands("continue", *tried))
    assert outcome.of("stopped"), str(outcome)
    assert not outcome.of("error"), str(outcome)


def test_wrong_gradient() -> None:
    """The factor that the header has the reader find is 2, and with the edit the first loss after it changes."""
    plain = example("wrong_gradient")
    fixed = example(
        "wrong_gradient",
        "-b",
        "SquaredReLU after",
        *commands(
            "continue",
            "! x = saved[0].detach().requires_grad_()",
            "! y = x.relu().square(); y.backward(grad_outputs[0])",
            "p x.grad.abs().sum().item() / grad_inputs[0].abs().sum().item()",
            "set grad_inputs[0] = x.grad",
            "delete",
        ),
    )
    (factor,) = [line["value"] for line in fixed.of("result") if line["command"].startswith("p x.grad")]
    assert factor == pytest.approx(2.0)
    first, second = (re.findall(r"loss (\S+)", o.program_output)[:2] for o in (plain, fixed))
    assert first[0] == second[0]
    assert float(second[1]) < float(first[1])


def test_inplace_error() -> None:
    """Stopped at the error without any breakpoint, at the node of the line that multiplies with the changed tensor."""
    outcome = example("inplace_error", *commands("continue", "info node"))
    (stop,) = outcome.of("stopped")
    assert stop["reason"] == "error"
    assert stop["forward"]["line"] == line_of("inplace_error.py", "value = centred * gate")
    assert "version" in str(outcome.of("result", command="info node"))
    assert outcome.status == 1


def test_nested_functions() -> None:
    """step goes into the backward inside the node, to depth 2, and out again."""
    outcome = example("nested_functions", "-b", "ReversibleBackward", *commands("continue", "delete", *["step"] * 30))
    depths = [stop["depth"] for stop in outcome.of("stopped")]
    assert max(depths) == 2, depths
    assert depths[0] == 0
    deepest = next(stop for stop in outcome.of("stopped") if stop["depth"] == 2)
    assert len(deepest["enclosing"]) == 2
    assert all("Reversible" in name for name in deepest["enclosing"])


def test_every_example_has_a_header() -> None:
    for path in sorted(EXAMPLES.glob("*.py")):
        text = path.read_text()
        assert text.startswith('"""'), path.name
        assert "adbg run" in text.split('"""')[1] or path.name == "tiny_gpt.py", path.name
    assert Path(EXAMPLES / "nan_at_sqrt.adbg").exists()
