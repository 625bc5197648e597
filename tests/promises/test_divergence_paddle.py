"""`rank diff` on real ranks of Paddle over gloo, against the hashes that each rank makes of numpy's bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.frameworks import only_here
from support.program import adbg, commands, debuggee

pytestmark = only_here("paddle", "DataParallel over gloo; DistributedDataParallel has tests of its own")


def test_one_weight_and_the_statistics_of_batch_norm(tmp_path: Path) -> None:
    """Paddle keeps running statistics among the parameters: they are compared as buffers."""
    asked = commands("set stop one", "c", "rank diff params", "rank diff grads", "rank diff buffers")
    options = ["--batch", "--json", "--quiet", "-b", "backward-end backward 3", *asked]
    port = 20000 + os.getpid() % 10000 * 3 % 9000
    outcome = adbg("run", *options, debuggee("paddle_diverging"), tmp_path, str(port), limit=240)
    assert outcome.status == 0 and not outcome.of("error"), str(outcome)
    told = [json.loads((tmp_path / f"hash-{rank}.json").read_text()) for rank in (0, 1)]
    differing = {name for name in told[0] if told[0][name] != told[1][name]}
    assert differing == {"_layers.2.weight", "_layers.1._mean", "_layers.1._variance"}
    found = {}
    for what in ("params", "grads", "buffers"):
        (line,) = outcome.of("result", command=f"rank diff {what}")
        found[what] = line["value"]
        for tensor in line["value"]["tensors"]:
            assert tensor["digests"] == {str(rank): told[rank][tensor["name"]] for rank in (0, 1)}
    names = {what: [tensor["name"] for tensor in value["tensors"]] for what, value in found.items()}
    assert names == {"params": ["_layers.2.weight"], "grads": [], "buffers": ["_layers.1._mean", "_layers.1._variance"]}
    elements = found["params"]["elements"]
    assert (elements["differ"], elements["index"], round(elements["max"], 5)) == (1, [3, 0], 0.5)
    assert found["grads"]["compared"] == 6
    assert any("after DataParallel's all-reduce" in note for note in found["grads"]["notes"])
