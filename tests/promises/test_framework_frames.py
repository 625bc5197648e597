"""``frames all``: stacks, breakpoints at lines and captures take lines inside the framework's own package.

The witness is Python's profiler: where the program is when it calls the framework's C function.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.frameworks import on_frameworks
from support.program import Outcome, adbg, commands, own_lines

SCRIPT = """
import json, sys
{head}

class Net(nn.{module}):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x):
        return self.act(x) * 2.0

net, seen = Net(), []

def profile(frame, event, called):
    if event == "c_call" and called.__name__ == "tanh" and not seen:
        while frame is not None:
            seen.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
            frame = frame.f_back

def step(x):
    net(x).sum().backward()

sys.setprofile(profile)
step(leaf)
sys.setprofile(None)
print("WITNESS " + json.dumps(seen), flush=True)
step(leaf)
"""
HEADS = {
    "torch": ("import torch; from torch import nn; leaf = torch.ones(3, requires_grad=True)", "Module"),
    "paddle": ("import paddle; from paddle import nn; leaf = paddle.ones([3]); leaf.stop_gradient = False", "Layer"),
}


def ran(tmp_path: Path, framework: str, *lines: str) -> Outcome:
    head, module = HEADS[framework]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{head}", head).replace("{module}", module))
    return adbg("run", "--batch", "--json", *commands(*lines), script, cwd=tmp_path)


def witness(outcome: Outcome, framework: str) -> list[tuple[str, int, str]]:
    """Innermost first, as far as the script."""
    text = next(line for line in outcome.program_output.splitlines() if line.startswith("WITNESS "))
    frames = [(file, line, name) for file, line, name in json.loads(text.removeprefix("WITNESS "))]
    frames = [frame for frame in frames if inside(frame[0], framework) or frame[0].endswith("train.py")]
    assert sum(inside(file, framework) for file, _, _ in frames) >= 2, frames
    return frames


def inside(file: str, framework: str) -> bool:
    return f"-packages/{framework}/" in file


def forward_frames(outcome: Outcome, place: int = 0) -> list[tuple[str, int, str]]:
    rows = outcome.of("result", command="where")[place]["value"]
    return [(row["file"], row["line"], row["name"]) for row in rows if row["kind"] == "forward"]


@on_frameworks()
def test_stacks_show_the_framework_s_frames_on_request(framework: str, tmp_path: Path) -> None:
    asked = ("b Tanh backward 2", "c", "where", "frames all", "where", "frames user", "where", "frames")
    outcome = ran(tmp_path, framework, *asked)
    seen, step = witness(outcome, framework), {"step", "forward", "<module>"}
    user, all_, again = (forward_frames(outcome, place) for place in range(3))
    own = [frame for frame in seen if inside(frame[0], framework)]
    assert [frame for frame in all_ if frame in own] == own, "those that the profiler saw, in its order"
    assert {name for file, _, name in user if file.endswith("train.py")} == step
    assert not any(inside(file, framework) for file, _, _ in user) and again == user
    assert not own_lines("\n".join(file for file, _, _ in all_))
    live = [row for row in outcome.of("result", command="where")[1]["value"] if row["kind"] == "live"]
    assert any(inside(row["file"], framework) and row["name"] == "backward" and row["locals"] for row in live)
    assert outcome.of("result", command="frames")[0]["value"] == {"frames": "user"}


@pytest.mark.parametrize("shown", ["all", "user"])
@on_frameworks()
def test_a_breakpoint_at_a_line_of_the_framework(framework: str, shown: str, tmp_path: Path) -> None:
    file, line, _ = witness(ran(tmp_path, framework), framework)[0]
    place = f"{framework}/{file.partition(f'-packages/{framework}/')[2]}:{line}"
    outcome = ran(tmp_path, framework, f"frames {shown}", f"b {place}", "c", "where", f"list {place}")
    stops = outcome.of("stopped")
    if shown == "all":
        assert f"{line}  " in outcome.of("result", command=f"list {place}")[0]["text"]
        assert stops[0]["node"]["name"].startswith("Tanh"), str(outcome)
        assert forward_frames(outcome)[0][:2] == (file, line)
    else:
        assert not stops, str(outcome)


@on_frameworks()
def test_a_wrong_line_says_that_the_framework_s_own_are_left_out(framework: str, tmp_path: Path) -> None:
    outcome = ran(tmp_path, framework, "b Tanh", "c", "b activation.py:1", "frames all", "b activation.py:1")
    first, second = outcome.of("result", command="b activation.py:1")
    assert "after `frames all`" in first["text"] and "frames all" not in second["text"], str(outcome)


@on_frameworks()
def test_a_capture_of_lines_inside_the_framework(framework: str, tmp_path: Path) -> None:
    file, line, _ = witness(ran(tmp_path, framework), framework)[0]
    outcome = ran(tmp_path, framework, "frames all", "b Tanh", "c", f"capture {file}:{line} in out")
    assert any(tmp_path.glob("out/**/*_backward_graph.dot")), str(outcome)
    (drawn,) = tmp_path.glob("out/**/*_call_stack.log")
    assert f'"{file}", line {line}' in drawn.read_text()
