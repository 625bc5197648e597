"""Region capture on real PyTorch: at a stop, with a later backward, from a script with and without a front end."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.dialled import Dialled
from support.front_end import Peer, Refused

pytest.importorskip("torch")

SCRIPT = """
import torch
torch.manual_seed(0)
w = torch.nn.Linear(3, 3)
x = torch.ones(2, 3)
for i in range(3):
    y = torch.tanh(w(x))
    a = y * 2
    dead = y.exp()
    b = a * y
    loss = b.sum()
    loss.backward()
print(repr(w.weight.grad.tolist()))
"""
REGION = "script.py:8-10"  # a, dead, b
NODE = re.compile(r'\tnode_(\d+)\[label="([^"\\]*)[^"]*".*? color="([^"]*)"')
EDGE = re.compile(r'\tnode_(\d+)->node_(\d+)\[label="([^"\\]*)')
GREY, ORANGE, GREEN = "#999999", "#FFE4B5", "#148b97"
LIMIT = 60


def read(folder: Path, suffix: str) -> str:
    """The one file of a capture with that suffix."""
    (file,) = folder.glob(f"*_{suffix}")
    return file.read_text()


def colours(dot: str) -> dict[str, str]:
    return {name: colour for _, name, colour in NODE.findall(dot)}


def variables(log: str) -> list[tuple[str, list[float]]]:
    """Names and numbers of a gradients file."""
    found = re.findall(r"Variable: (\S+)\n(?:  - \w+: (?!\[[-\d.]+ ).*\n)*  - data: \[(.*)\]", log)
    return [(name, [float(word) for word in data.split()]) for name, data in found]


def ready(peer: Peer, stacks: bool = True) -> None:
    peer.request("initialize", adapterID="adbg", token=peer.token, adbg=True, stacks=stacks)


def go(peer: Peer, spec: str = "") -> None:
    peer.request("setFunctionBreakpoints", breakpoints=[{"name": spec, "id": 1}] if spec else [])
    peer.request("configurationDone")


def test_a_capture_set_before_the_run(tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        asked = {"region": REGION, "name": "one", "directory": str(tmp_path)}
        (state,) = run.peer.request("adbg/capture", **asked, grads=True, limit=1 << 20)["captures"]
        assert state["state"] == "waiting"
        with pytest.raises(Refused, match="cannot be estimated"):
            run.peer.request("adbg/capture", **asked, grads=True)
        go(run.peer, "TanhBackward0 backward 2")
        run.peer.stopped()
        (state,) = run.peer.request("adbg/capture")["captures"]
        assert (state["state"], len(state["files"]), state["strays"]) == ("done", 6, 1)
        run.peer.request("continue")
        assert run.end()[0] == 0
    folder = tmp_path / "one"
    dot = read(folder, "backward_graph.dot")
    assert colours(dot) == {
        "MulBackward0#1": GREY, "MulBackward0#2": GREY, "SumBackward0#1": ORANGE, "TanhBackward0#1": ORANGE,
    }  # fmt: skip
    assert len(EDGE.findall(dot)) == 4
    forward = read(folder, "ref_forward_graph.dot")
    assert "dead = y.exp()" in forward and "no part in the loss" in forward
    assert set(colours(forward)) == {"Mul#1", "Mul#2", "SumBackward0#1", "Tanh#1", "dead = y.exp()"}
    stacks = read(folder, "call_stack.log")
    assert f'  File "{run.script}", line 10, in <module>\n    b = a * y\n' in stacks
    for suffix in ("backward_graph.svg", "ref_forward_graph.svg"):
        assert ElementTree.fromstring(read(folder, suffix)).tag.endswith("svg")
    grads = variables(read(folder, "grad_tensors.log"))
    assert [name for name, _ in grads] == [
        "Mul2_out_float32_2x3@Grad", "Mul1_out_float32_2x3@Grad", "Tanh1_out_float32_2x3@Grad",
        "Tanh1_out_float32_2x3@Grad",
    ]  # fmt: skip
    assert grads[0][1] == [1.0] * 6 and all(len(data) == 6 for _, data in grads)
    two = grads[2][1]  # d(2y*y)/dy = 2y + 2y, the same by both ways
    assert two == grads[3][1] and [round(v / 2, 5) for v in two] == [round(v, 5) for v in grads[1][1]]


def test_at_a_stop_the_size_is_told_first_and_the_file_has_what_came_so_far(tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        go(run.peer, "MulBackward0#2 backward 1")
        run.peer.stopped()
        asked = {"region": REGION, "directory": str(tmp_path), "grads": True, "name": "here"}
        (state,) = run.peer.request("adbg/capture", **asked)["captures"]
        assert (state["state"], state["files"], state["nbytes"], state["gradients"]) == ("asking", [], 96, 4)
        assert not (tmp_path / "here").exists()
        (state,) = run.peer.request("adbg/capture", **asked, limit=1000)["captures"]
        assert state["state"] == "running" and len(state["files"]) == 6
        rows = run.peer.request("adbg/graph")["rows"]
        marks = {row["unique_name"]: row["region"] for row in rows if row["region"]}
        assert marks == {
            "MulBackward0#1": "inside", "MulBackward0#2": "inside", "SumBackward0#1": "boundary",
            "TanhBackward0#1": "boundary",
        }  # fmt: skip
        run.peer.go("next")
        so_far = variables(read(tmp_path / "here", "grad_tensors.log"))
        assert [name for name, _ in so_far] == ["Mul1_out_float32_2x3@Grad", "Tanh1_out_float32_2x3@Grad"]
        run.peer.request("setFunctionBreakpoints", breakpoints=[])
        run.peer.request("continue")
        assert run.end()[0] == 0
    log = read(tmp_path / "here", "grad_tensors.log")
    assert len(variables(log)) == 3 and "1 gradients did not pass" in log  # Sum's had: it ran before


def test_an_edited_gradient_is_written_as_it_goes_on(tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        asked = {"region": "script.py:8", "directory": str(tmp_path), "name": "e"}
        run.peer.request("adbg/capture", **asked, grads=True, limit=1000)
        go(run.peer, "MulBackward0#1 after backward 1")
        run.peer.stopped()
        run.peer.request("setExpression", expression="grad_inputs[0]", value="grad_inputs[0] * 0 + 7")
        run.peer.request("continue")
        assert run.end()[0] == 0
    assert variables(read(tmp_path / "e", "grad_tensors.log"))[-1][1] == [7.0] * 6


def test_leaves_are_green_and_captures_have_folders_of_their_own(tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        go(run.peer, "TanhBackward0")
        run.peer.stopped()
        for name in ("one", "two", "one"):
            run.peer.request("adbg/capture", region="script.py:7", directory=str(tmp_path), name=name)
        (state,) = run.peer.request("adbg/capture", region="script.py:7", directory=str(tmp_path))["captures"]
        assert state["name"] == "capture-4" and state["leaves"] == 2
        assert len(list((tmp_path / "one").iterdir())) == 10
        assert list(colours(read(tmp_path / "two", "backward_graph.dot")).values()).count(GREEN) == 2
        whole = run.peer.request("adbg/dump", what="graph", directory=str(tmp_path / "whole"))
        assert "AccumulateGrad" in Path(whole["files"][0]).read_text()
        for bad in ({"region": "nothing"}, {"region": REGION, "name": "../x"}, {"cancel": True, "name": "none"}):
            with pytest.raises(Refused):
                run.peer.request("adbg/capture", **bad)
        (tmp_path / "file").write_text("")
        with pytest.raises(Refused, match="cannot write"):
            run.peer.request("adbg/capture", region="script.py:7", directory=str(tmp_path / "file"))
        run.peer.request("adbg/capture", region="script.py:999", name="never")
        assert len(run.peer.request("adbg/capture", cancel=True)["captures"]) == 1
        run.peer.request("setFunctionBreakpoints", breakpoints=[])
        run.peer.request("continue")
        assert run.end()[0] == 0


def test_a_limit_holds_and_is_told(tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        run.peer.request("adbg/capture", region=REGION, grads=True, limit=50, directory=str(tmp_path), name="small")
        go(run.peer)
        assert run.end()[0] == 0
        run.peer.drain()
        said = "".join(e["body"]["output"] for e in run.peer.events if e["event"] == "output")
        assert "2 gradients exceed the limit of 50 bytes" in said
    log = read(tmp_path / "small", "grad_tensors.log")
    assert len(variables(log)) == 2 and log.count("(not written: 24 bytes") == 2


def test_a_folder_that_cannot_be_written_costs_the_program_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        run.peer.request("adbg/capture", region=REGION, directory=str(tmp_path / "file"), grads=True, limit=1000)
        go(run.peer)
        status, out, err = run.end()
        assert (status, err) == (0, "") and out.startswith("[[")
        run.peer.drain()
        said = "".join(e["body"]["output"] for e in run.peer.events if e["event"] == "output")
        assert "failed: cannot write" in said


def test_the_result_is_the_same_to_the_bit(tmp_path: Path) -> None:
    plain = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=LIMIT, check=True
    ).stdout
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        for name in ("one", "two"):
            asked = {"region": "script.py:7-11", "grads": True, "limit": 1 << 20, "directory": str(tmp_path)}
            run.peer.request("adbg/capture", **asked, name=name)
        go(run.peer)
        assert run.end()[1] == plain
    assert len(variables(read(tmp_path / "two", "grad_tensors.log"))) == 8


# ------------------------------------------------------------------ from a script

GUARDED = SCRIPT.replace("    a = y * 2\n", "    with GUARD as found:\n     a = y * 2\n")
GUARDED = GUARDED.replace("    dead", "     dead")
GUARDED = GUARDED.replace("    b = a", "     b = a").replace("print(", "print(found.state, len(found.files))\nprint(")
GUARDED = GUARDED.replace("import torch\n", "import torch, adbg\n")


def guarded(tmp_path: Path, arguments: str = ", grads=True") -> str:
    return GUARDED.replace("GUARD", f"adbg.capture_backward_subgraph({str(tmp_path / 'out')!r}{arguments})")


def alone(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, check=False)


def test_a_script_captures_without_a_front_end_and_its_result_is_the_same_to_the_bit(tmp_path: Path) -> None:
    plain = alone(SCRIPT)
    ran = alone(guarded(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "done 6\n" + plain.stdout
    assert len(list((tmp_path / "out").glob("*_backward_graph.dot"))) == 3
    dot = sorted((tmp_path / "out").glob("*_backward_graph.dot"))[-1].read_text()
    assert colours(dot) == {
        "MulBackward0#1": GREY, "MulBackward0#2": GREY, "SumBackward0#1": ORANGE, "TanhBackward0#1": ORANGE,
    }  # fmt: skip
    grads = sorted((tmp_path / "out").glob("*_grad_tensors.log"))[0].read_text()
    assert len(variables(grads)) == 4
    forward = sorted((tmp_path / "out").glob("*_ref_forward_graph.dot"))[0].read_text()
    assert forward.count("no part in the loss)") == 1


def test_a_script_captures_under_adbg_by_what_was_made_inside_not_by_lines(tmp_path: Path) -> None:
    with Dialled(tmp_path, guarded(tmp_path, ", name='mine'")) as run:
        ready(run.peer, stacks=False)
        go(run.peer, "TanhBackward0 backward 1")
        run.peer.stopped()
        rows = run.peer.request("adbg/graph")["rows"]
        assert [row["unique_name"] for row in rows if row["region"] == "inside"] == ["MulBackward0#2", "MulBackward0#1"]
        run.peer.request("setFunctionBreakpoints", breakpoints=[])
        run.peer.request("continue")
        status, out, err = run.end()
        assert (status, err) == (0, "") and out.startswith("done 5\n")
    assert len(list((tmp_path / "out" / "mine").glob("*.dot"))) == 6


def test_a_backward_that_raises_does_not_hold_a_script_without_a_front_end(tmp_path: Path) -> None:
    script = guarded(tmp_path).replace("    loss.backward()", "    y.add_(1)\n    loss.backward()")
    ran = alone(script)
    assert ran.returncode == 1 and "modified by an inplace operation" in ran.stderr
    log = read(tmp_path / "out", "grad_tensors.log")
    assert "the backward failed here: RuntimeError" in log and len(variables(log)) == 1


def test_what_no_backward_took_is_told_at_the_end(tmp_path: Path) -> None:
    ran = alone(guarded(tmp_path).replace("    loss.backward()\n", "").replace("w.weight.grad.tolist()", "0"))
    assert ran.returncode == 0 and ran.stderr.count("no backward came that has nodes of") == 3
    assert not (tmp_path / "out").exists()


def test_without_a_framework_it_does_nothing_and_says_so_once(tmp_path: Path) -> None:
    script = "import adbg\nfor i in range(2):\n  with adbg.capture_backward_subgraph('x') as c: pass\nprint(c.files)"
    ran = alone(script)
    assert (ran.returncode, ran.stdout) == (0, "[]\n")
    assert ran.stderr.count("nothing is captured") == 1 and "is imported yet" in ran.stderr
    for bad in ("limit=0", "name='a/b'"):
        assert "ValueError" in alone(f"import adbg\nadbg.capture_backward_subgraph('x', {bad})").stderr


def test_autograd_functions_and_several_outputs(tmp_path: Path) -> None:
    script = """
import torch, adbg
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:1] * 2, x[1:] * 3
    @staticmethod
    def backward(ctx, a, b):
        return torch.cat([a * 2, b * 3])
x = torch.ones(2, 3, requires_grad=True)
y = x * 1
with adbg.capture_backward_subgraph(FOLDER, grads=True):
    a, b = Half.apply(y)
(a.sum() + (b * b).sum()).backward()
""".replace("FOLDER", repr(str(tmp_path / "out")))
    assert alone(script).stderr == ""
    dot = read(tmp_path / "out", "backward_graph.dot")
    assert colours(dot)["HalfBackward#1"] == GREY
    found = dict(variables(read(tmp_path / "out", "grad_tensors.log")))
    assert found["Half1_out0_float32_1x3@Grad"] == [1.0] * 3
    assert found["Mul1_out_float32_2x3@Grad"] == [2.0] * 3 + [18.0] * 3


def test_nodes_are_told_by_their_making_not_by_their_lines(tmp_path: Path) -> None:
    script = """
import contextlib, threading, torch, adbg
x = torch.ones(3, requires_grad=True)
y = x
for i in range(3):
    with adbg.capture_backward_subgraph(FOLDER) if i == 1 else contextlib.nullcontext():
        y = torch.tanh(y)
y.sum().backward()
assert not torch.is_anomaly_enabled() and not torch._C.is_anomaly_enabled()
""".replace("FOLDER", repr(str(tmp_path / "out")))
    ran = alone(script)
    assert (ran.returncode, ran.stderr) == (0, "")
    dot = read(tmp_path / "out", "backward_graph.dot")
    assert colours(dot) == {"TanhBackward0#2": GREY, "TanhBackward0#1": ORANGE, "TanhBackward0#3": ORANGE}


def test_a_nested_backward_is_captured_where_its_nodes_are(tmp_path: Path) -> None:
    script = """
import torch
class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            out = (y * 1).exp()
        return torch.autograd.grad(out, y, grad)[0]
x = torch.ones(3, requires_grad=True)
z = Outer.apply(x).sin()
z.sum().backward()
"""
    with Dialled(tmp_path, script) as run:
        ready(run.peer)
        asked = {"directory": str(tmp_path), "grads": True, "limit": 1000}
        line = run.line("out = (y")
        run.peer.request("adbg/capture", region=f"script.py:{line}", name="inner", **asked)
        go(run.peer, "ExpBackward0")
        run.peer.stopped()
        outer = f"script.py:{run.line('z = Outer')}"
        (state,) = run.peer.request("adbg/capture", region=outer, name="outer", **asked)["captures"]
        assert (state["inside"], state["state"]) == (2, "running")
        run.peer.request("continue")
        assert run.end()[0] == 0
    assert colours(read(tmp_path / "inner", "backward_graph.dot")) == {"ExpBackward0#1": GREY, "MulBackward0#1": GREY}
    # Outer itself runs at that stop: its gradient comes when the nested backward is over.
    assert [name for name, _ in variables(read(tmp_path / "outer", "grad_tensors.log"))] == ["generated_tensor_3@Grad"]


def test_a_front_end_that_leaves_ends_the_file_and_what_waits(tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPT) as run:
        ready(run.peer)
        asked = {"directory": str(tmp_path), "grads": True, "limit": 1000}
        run.peer.request("adbg/capture", region=REGION, name="begun", **asked)
        run.peer.request("adbg/capture", region="script.py:999", name="never", **asked)
        go(run.peer, "MulBackward0#1 backward 1")
        run.peer.stopped()
        run.peer.close()
        status, out, err = run.end()
        assert (status, err) == (0, "") and out.startswith("[[")
    log = read(tmp_path / "begun", "grad_tensors.log")
    assert len(variables(log)) == 3 and "the front end disconnected here" in log
    assert not (tmp_path / "never").exists()
