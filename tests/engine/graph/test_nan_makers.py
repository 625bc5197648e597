"""Who made the first gradient that is not finite? Many kinds of makers, each named by the framework itself as well:
torch by its own hooks around every node, Paddle by its check of what every operator gives."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled
from support.frameworks import case, debuggee_of, on_frameworks
from support.patience import patience
from support.program import DEBUGGEES

from adbg.engine.protocol.codec import from_json
from adbg.engine.types import NodeStop, Role

#: By kind: where adbg stops, "op of torch, op of Paddle" in one word where they differ, and whence the numbers come.
MADE = {
    "sqrt_of_zero": ["after Sqrt made_here"],
    "sqrt_in_one_branch_of_two": ["after Sqrt made_here"],
    "log_of_zero": ["after Log made_here"],
    "zero_by_zero": ["after Div|Divide made_here"],
    "exp_overflows": ["after Exp made_here"],
    "relu_in_place": ["after Log made_here"],
    "batch_norm": ["after NativeBatchNorm|BatchNorm made_here"],
    "layer_norm_without_variance": ["after NativeLayerNorm|LayerNorm made_here"],
    "all_masked": ["after Softmax made_here"],
    "custom": ["after Spoils made_here"],
    "where_masks": ["after Sqrt made_here"],
    "half_overflows": ["after Mul|Scale made_here"],
    "power_of_zero": ["after Pow made_here"],
    "hook_of_a_tensor": ["after Mul|Scale between"],
    "hook_of_a_leaf": ["before AccumulateGrad|GradNodeAccumulation between"],
    "a_sum_overflows": ["before Mul|Scale between"],
    "given": ["before Exp unknown"],
    "through_a_list": ["after Sqrt made_here"],
    "below_a_list": ["after Sqrt made_here"],
    "einsum_overflows": ["after Einsum made_here"],  # one node of Paddle only, and it gives a list
    "finite": [],
}
BY_OPERATORS = [kind for kind, (*stops,) in MADE.items() if stops and "made_here" in stops[0] and kind != "custom"]


def kinds(framework: str) -> list[str]:
    return [kind for kind in MADE if framework == "paddle" or kind != "einsum_overflows"]


def text_of(framework: str) -> str:
    return (DEBUGGEES / f"{debuggee_of(framework, 'nan_makers')}.py").read_text()


@functools.cache
def stops_of(framework: str) -> dict[str, list[dict[str, Any]]]:
    """All stops of the nonfinite watch, by kind."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds(framework)}
    with tempfile.TemporaryDirectory() as folder, Dialled(Path(folder), text_of(framework)) as run:
        run.peer.begin("nonfinite")
        try:
            stop = run.peer.stopped()
            while True:
                found[kinds(framework)[stop["backward"] - 1]].append(stop)
                stop = run.peer.go()
        except ConnectionError:
            pass
        assert run.end()[0] == 0
    return found


@functools.cache
def witness_of(framework: str) -> dict[str, str]:
    """By kind, the operator that the framework names first, as its node is called."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(text_of(framework))
        command = [sys.executable, str(script), "--witness"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
    if framework == "torch":
        lines = [line.split() for line in done.stdout.splitlines()]
        return {kind: makers[0].partition("Backward")[0] for kind, *makers in lines if makers}
    found = {}
    for part in done.stdout.split("backward ")[1:]:
        first = re.search(r"op=(\w+?)(_grad)?,", part)
        if first is not None:
            found[part.split()[0]] = "".join(word.capitalize() for word in first[1].split("_"))
    return found


def told(framework: str, stop: dict[str, Any]) -> str:
    evidence = from_json(NodeStop, stop).evidence
    arriving = [found for found in evidence if found.role is Role.GRAD_OUTPUTS]
    origin = (arriving or list(evidence))[0].origin
    name = stop["node"]["name"].removeprefix("GradNodePyLayer_")
    name = re.sub(r"Backward\d*$|GradNode$", "", name)
    return f"{stop['phase']} {name} {origin.value}"


def expected(framework: str, kind: str) -> list[str]:
    side = 0 if framework == "torch" else -1
    return [
        f"{phase} {names.split('|')[side]} {origin}"
        for phase, names, origin in (line.split() for line in MADE[kind])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "kind"), [case(name, name, kind, group="nan") for name in ("torch", "paddle") for kind in kinds(name)]
)
def test_the_maker_is_named_and_no_victim(framework: str, kind: str) -> None:
    assert [told(framework, stop) for stop in stops_of(framework)[kind]] == expected(framework, kind)


@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        case(name, name, kind, group="nan")
        for name in ("torch", "paddle")
        for kind in BY_OPERATORS
        if kind in kinds(name)
    ],
)
def test_the_framework_names_the_same_maker(framework: str, kind: str) -> None:
    (first, *_) = stops_of(framework)[kind]
    assert told(framework, first).split()[1] == witness_of(framework)[kind]


@on_frameworks()
def test_what_flowed_in_is_there_at_the_stop(framework: str, tmp_path: Path) -> None:
    """Also where the kernel would have written over it: only zeros came to the square root, by the branch of two."""
    text = text_of(framework).replace("KINDS = [", "KINDS = [sqrt_in_one_branch_of_two] or [")
    with Dialled(tmp_path, text) as run:
        run.peer.begin("nan")
        assert told(framework, run.peer.stopped()) == "after Sqrt made_here"
        seen = run.peer.request("evaluate", expression="grad_outputs[0].tolist()", context="repl")
        assert seen["result"] in ("[0.0, 0.0]", "[0.0, -0.0]")
        run.peer.request("continue")
        assert run.end()[0] == 0
