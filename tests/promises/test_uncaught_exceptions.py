"""An exception that nothing caught stops before the program ends, with its frames; the program ends as ever."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from support.frameworks import case
from support.program import adbg, commands, run

TORCH = """
    import sys
    import torch

    def step(model, rows):
        width = 4
        return model(torch.ones(rows, width))

    model = torch.nn.Linear(3, 2)
    model(torch.ones(2, 3)).sum().backward()
    hook = sys.excepthook is sys.__excepthook__
    print("HOOK", hook)
    """
PADDLE = TORCH.replace("torch.nn", "paddle.nn").replace("import torch", "import paddle")
PADDLE = PADDLE.replace("torch.ones(rows, width)", "paddle.ones([rows, width])")
PADDLE = PADDLE.replace("torch.ones(2, 3)", "paddle.ones([2, 3])")


@pytest.fixture(params=[case("torch", TORCH, id="torch"), case("paddle", PADDLE, id="paddle")])
def head(request: pytest.FixtureRequest) -> str:
    return textwrap.dedent(request.param)


def _script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_it_stops_with_the_frames_and_ends_as_alone(head: str, tmp_path: Path) -> None:
    script = _script(tmp_path, head + "step(model, 5)\n")
    plain = run([sys.executable, script])
    outcome = adbg(
        "run", "--batch", "--json", *commands("c", "p width", "p rows", "up", "p model.weight.shape[0]"), script
    )
    assert outcome.status == plain.status == 1
    (stop,) = outcome.of("stopped")
    line = 1 + (head + "step(model, 5)\n").splitlines().index(next(t for t in head.splitlines() if "rows, width" in t))
    assert (stop["reason"], stop["phase"], stop["location"]["line"]) == ("error", "python", line)
    assert {line["command"]: line["value"] for line in outcome.of("result")}["p width"] == 4
    assert {line["command"]: line["value"] for line in outcome.of("result")}["p rows"] == 5
    assert "HOOK True" in outcome.program_output, "sys.excepthook is the program's own"
    printed = "".join(line["text"] for line in outcome.of("output"))
    # Paddle's own text at call stack level 3 has a C++ one in it.
    assert printed.splitlines().count("Traceback (most recent call last):") == 1


def test_an_error_of_a_backward_is_shown_once(head: str, tmp_path: Path) -> None:
    wrong = "y = model.weight.exp()\nloss = (y * y).sum()\ny.add_(y)\nloss.backward()\n"
    outcome = adbg("run", "--batch", "--json", _script(tmp_path, head + wrong))
    assert outcome.status == 1 and [line["phase"] for line in outcome.of("stopped")] == ["error"]


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(3)\n",
        "raise SystemExit(4)\n",
        "raise KeyboardInterrupt\n",
        "try:\n    step(model, 5)\nexcept Exception:\n    pass\n",
        "import code\ncode.InteractiveInterpreter().runcode(compile('step(1, 2)', '<console>', 'exec'))\n",
    ],
    ids=["exit", "SystemExit", "Ctrl-C", "caught", "interpreter"],
)
def test_what_is_no_failure_does_not_stop(head: str, tmp_path: Path, ending: str) -> None:
    script = _script(tmp_path, head + ending)
    plain = run([sys.executable, script])
    outcome = adbg("run", "--batch", "--json", script)
    assert outcome.status == (plain.status if plain.status >= 0 else 128 - plain.status)  # as a shell counts
    assert not outcome.of("stopped")


def test_it_is_switched_off_like_other_errors(head: str, tmp_path: Path) -> None:
    script = _script(tmp_path, head + "step(model, 5)\n")
    outcome = adbg("run", "--batch", "--json", *commands("disable error"), script)
    assert outcome.status == 1 and not outcome.of("stopped")
