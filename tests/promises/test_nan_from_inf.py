"""Who made NaN and who made Inf are two nodes as often as not: the verdict tells them apart.

The witness are the program's own tensor hooks in a plain run: which gradient has infinities, and which has NaN.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
from support.frameworks import case
from support.program import adbg, run

MAKE = {
    "torch": "import torch as fw\nleaf = lambda: fw.zeros(3, requires_grad=True)\n",
    "paddle": "import paddle as fw\ndef leaf():\n    x = fw.zeros([3])\n    x.stop_gradient = False\n    return x\n",
}
SCRIPT = """
import json, sys
seen = {}

def told(name):
    def hook(gradient):
        values = [float(v) for v in gradient.reshape([-1]).tolist()]
        seen[name] = [sum(v != v for v in values), sum(abs(v) == float("inf") for v in values)]
    return hook

def watched(name, value):
    value.register_hook(told(name))
    return value

def factor():  # sqrt gives inf, the multiplication by 0 makes NaN of it
    w = watched("behind multiply", leaf())
    product = watched("behind sqrt", w * 0)
    return fw.sqrt(product).sum()

def difference():  # one sqrt gives inf, the other -inf: their sum is NaN
    w = leaf()
    w.register_hook(told("sum"))
    return (fw.sqrt(watched("first", w * 1)) - fw.sqrt(watched("second", w * 1))).sum()

def passing():  # sqrt makes inf, and nobody NaN
    w = watched("behind scale", leaf())
    return fw.sqrt(watched("behind sqrt", w * 2)).sum()

loss = globals()[sys.argv[1]]()
loss.backward()
print("SEEN", json.dumps(seen))
"""


@pytest.fixture(params=[case(name, name, id=name) for name in MAKE])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(MAKE[request.param]) + SCRIPT)
    return path


def _seen(script: Path, what: str) -> dict[str, list[int]]:
    output = run([sys.executable, script, what]).stdout
    found: dict[str, list[int]] = json.loads(next(t for t in output.splitlines() if t.startswith("SEEN"))[5:])
    return found


def _sentences(script: Path, what: str, kind: str) -> list[str]:
    outcome = adbg("run", "--batch", "--json", "-b", kind, script, what)
    return [line["message"].lower() for line in outcome.of("stopped") if line["reason"] in ("nan", "inf")]


def test_nan_of_inf_names_both_makers(script: Path) -> None:
    seen = _seen(script, "factor")
    assert seen["behind sqrt"] == [0, 3] and seen["behind multiply"][0] == 3
    (told,) = _sentences(script, "factor", "nan")
    assert "made nan from inf; sqrt (script.py" in told and "made that at #" in told
    assert "sqrt" not in told.split("made nan")[0], "the one that made Inf did not make NaN"


def test_infinities_that_cancel_are_no_node_s_nan(script: Path) -> None:
    seen = _seen(script, "difference")
    assert seen["first"][0] == seen["second"][0] == 0 and seen["sum"] == [3, 0]
    (told,) = _sentences(script, "difference", "nan")
    assert told.startswith("nan appeared between two nodes") and "their sum" in told
    assert "sqrt" not in told.split("; grad_")[0] or "behind" in told


def test_inf_alone_is_called_inf(script: Path) -> None:
    assert _seen(script, "passing")["behind sqrt"] == [0, 3]
    assert not _sentences(script, "passing", "nan")
    told = _sentences(script, "passing", "inf")[0]
    assert told.startswith("sqrt (script.py") and "made inf from finite gradients" in told
