"""`rank diff` on real ranks that train over gloo. The second witness: the hashes that each rank makes of numpy's bytes
of its own tensors, iteration by iteration."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.frameworks import only_here
from support.program import Outcome, adbg, commands, debuggee

pytestmark = only_here("torch", "DistributedDataParallel over gloo; the command is the same for every framework")


def job(folder: Path, what: str, count: int, *steps: str) -> tuple[Outcome, list[list[dict[str, dict[str, str]]]]]:
    """The outcome, and what each rank says of each iteration. Each rank comes to the breakpoint by itself: stopped
    where it happens to be, as by default, one without collectives would stand elsewhere."""
    options = ["--batch", "--json", "--quiet", "-b", "backward-end backward 3", *commands("set stop one", "c", *steps)]
    outcome = adbg("run", *options, debuggee("diverging"), folder, what, str(count), limit=240)
    assert outcome.status == 0 and outcome.program_output == "trained\n", str(outcome)
    assert not outcome.of("error"), str(outcome)
    return outcome, [json.loads((folder / f"hash-{rank}.json").read_text()) for rank in (0, 1)]


def answer(outcome: Outcome, command: str, number: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = outcome.of("result", command=command)[number]["value"]
    return value


def check(found: dict[str, Any], told: list[list[dict[str, dict[str, str]]]], iteration: int) -> set[str]:
    """Each digest is the one that its rank computed, and those that differ there are those found to differ."""
    hashes = [each[iteration - 1][found["what"]] for each in told]
    for tensor in found["tensors"]:
        for rank in (0, 1):
            assert tensor["digests"][str(rank)] == hashes[rank][tensor["name"]], tensor["name"]
    differing = {name for name in hashes[0] if hashes[0][name] != hashes[1][name]}
    assert {tensor["name"] for tensor in found["tensors"]} == differing
    assert found["compared"] == len(hashes[0])
    return differing


def test_one_weight_of_one_rank(tmp_path: Path) -> None:
    """At a stop, while the ranks run, and by name; parameters, reduced gradients and buffers."""
    asked = ["rank diff params", "rank diff grads", "rank diff buffers"]
    running = ["delete 1", "continue all &", "rank diff params", "rank diff grads"]
    outcome, told = job(tmp_path, "weight", 600, *asked, *running)
    params = answer(outcome, "rank diff params")
    assert check(params, told, 3) == {"module.last.weight"}
    elements = params["elements"]
    assert (elements["differ"], elements["index"]) == (1, [0, 3])
    assert abs(elements["max"] - 0.5) < 1e-6 and elements["values"][1] - elements["values"][0] > 0
    grads = answer(outcome, "rank diff grads")
    assert check(grads, told, 3) == set()
    assert any("after DistributedDataParallel's all-reduce" in note for note in grads["notes"])
    buffers = answer(outcome, "rank diff buffers")
    assert check(buffers, told, 3) == {"module.norm.running_mean", "module.norm.running_var"}
    assert any("own data" in note for note in buffers["notes"])
    for what, number in (("params", 1), ("grads", 1)):  # both ranks hashed in the same backward while they ran
        found = answer(outcome, f"rank diff {what}", number)
        iteration = int(re.search(r"iteration (\d+)\)", found["place"])[1])  # type: ignore[index]
        assert iteration > 3 and not any("did not meet" in note for note in found["notes"])
        check(found, told, iteration)


def test_gradients_that_nothing_reduces_and_who_made_them(tmp_path: Path) -> None:
    outcome, told = job(tmp_path, "alone", 3, "rank diff grads", "rank diff grads last.*")
    grads = answer(outcome, "rank diff grads")
    differing = check(grads, told, 3)
    assert "last.weight" in differing
    assert any("no wrapper reduces gradients" in note for note in grads["notes"])
    made = {tensor["name"]: tensor["made_by"] for tensor in grads["tensors"]}
    source = debuggee("diverging").read_text().splitlines()
    assert all(
        source[node["line"] - 1].strip().startswith("return self.last(") for nodes in made.values() for node in nodes
    )
    assert [node["node"] for node in made["last.weight"]] == ["TBackward0#2"]
    assert {tensor["name"] for tensor in answer(outcome, "rank diff grads last.*")["tensors"]} == differing & {
        "last.weight", "last.bias"
    }  # fmt: skip
