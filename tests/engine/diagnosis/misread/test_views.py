"""Two views of each sample, laid out one way, whose partners are told another way. Witness: how many rows have a
partner of their own sample, by Python's numbers of the samples, laid out as the program lays out its views."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
randn, made, cat, stack, arange, eye = fw.randn, fw.tensor, fw.cat, fw.stack, fw.arange, fw.eye
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
made, cat, stack, arange, eye = fw.to_tensor, fw.concat, fw.stack, fw.arange, fw.eye
def randn(*shape):
    return fw.randn(shape)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
net = nn.Linear(8, 4)
optimizer, clear = sgd(net)
n, views = 6, VIEWS
for at in range(5):
    x = randn(n, 8)
    parts = [net(x + 0.1 * randn(n, 8)) for _ in range(views)]
    a, b = parts[:2]
    z = F.normalize(JOINED)
    scores = z @ z.t() / 0.5 - 1e4 * eye(views * n)
    BODY
    loss.backward()
    optimizer.step()
    clear()
whose = [int(each) for each in (LAID).flatten().tolist()]
pairs = PAIRS
print("partners of one sample:", sum(whose[i] == whose[j] for i, j in pairs), "of", len(pairs))
"""
ENDS = "loss = F.cross_entropy(scores, target)"
SHARED = (
    "positive = 1.0 * (group[:, None] == group[None, :]) - eye(views * n)",
    "loss = -(positive * F.log_softmax(scores, -1)).sum(1).mean()",
)
TARGETS = "[*enumerate(target.tolist())]"
GROUPS = "[(i, j) for i in range(views * n) for j in range(views * n) if i != j and positive[i, j].item() == 1]"


def program(*lines: str, joined: str = "cat([a, b])", views: int = 2) -> str:
    """What lays out the views lays out the numbers of the samples as well."""
    laid = (
        joined.replace("parts", "[arange(n)] * views").replace("net(", "(").replace(", 4)", ")").replace(", 4])", "])")
    )
    laid = laid.replace("[a, b]", "[arange(n), arange(n)]").replace("a, b", "arange(n), arange(n)")
    ends = lines if "loss" in lines[-1] else ((*lines, ENDS) if "target" in lines[-1] else (*lines, *SHARED))
    pairs = TARGETS if any("target" in line for line in ends) else GROUPS
    body = START.replace("BODY", "\n    ".join(ends)).replace("JOINED", joined).replace("VIEWS", str(views))
    return body.replace("LAID", laid).replace("PAIRS", pairs)  # fmt: skip


INTERLEAVED = "stack([a, b], 1).reshape([2 * n, 4])"
SIDE = {"torch": "target = arange(2 * n) ^ 1  # CAUSE",
        "paddle": "target = fw.bitwise_xor(arange(2 * n), made([1]))  # CAUSE"}  # fmt: skip


def by(lines: dict[str, str], **words: str) -> dict[str, str]:
    return {name: program(line, **words) for name, line in lines.items()}


BUGGY = {
    "the row beside it": by(SIDE),
    "the row beside it, an axis named": {
        "torch": program("target = arange(2 * n) ^ 1  # CAUSE", joined="cat([a, b], dim=0)"),
        "paddle": program("target = arange(2 * n) ^ made([1])  # CAUSE", joined="cat([a, b], axis=0)"),
    },
    "by what is odd": program("rows = arange(2 * n)", "target = rows + 1 - 2 * (rows % 2)  # CAUSE"),
    "of whole tables": program("group = arange(n).repeat_interleave(2)  # CAUSE"),
    "of whole tables, three views": program("group = arange(n).repeat_interleave(3)  # CAUSE", joined="cat(parts)",
                                            views=3),
}  # fmt: skip
DIVIDED = {
    # FAULT: of Paddle; the line that compares the groups is named, not the one that makes them
    "of whole tables, divided": program("group = arange(2 * n) // 2  # CAUSE"),
    "of whole tables, three views, divided": program("group = arange(3 * n) // views  # CAUSE", joined="cat(parts)",
                                                     views=3),
}  # fmt: skip
HEALTHY = {
    "n rows on": program("target = (arange(2 * n) + n) % (2 * n)"),
    "n rows on, joined": program("target = cat([arange(n) + n, arange(n)])"),
    "beside, interleaved": by(SIDE, joined=INTERLEAVED),
    "whole tables, tiled": {
        "torch": program("group = arange(n).repeat(2)"), "paddle": program("group = arange(n).tile([2])")},
    "whole tables, three views": {
        "torch": program("group = arange(n).repeat(3)", joined="cat(parts)", views=3),
        "paddle": program("group = arange(n).tile([3])", joined="cat(parts)", views=3)},
    "whole tables, interleaved": program("group = arange(n).repeat_interleave(2)", joined=INTERLEAVED),
    "whole tables, by the rest": program("group = arange(2 * n) % n"),
    "whole tables, joined": program("group = cat([arange(n), arange(n)])"),
}  # fmt: skip
# FAULT: views that were joined one after another, and laid beside each other after that
MOVED = {
    "joined, then interleaved": {
        "torch": program(SIDE["torch"], joined="cat([a, b]).reshape([2, n, 4]).transpose(0, 1).reshape([2 * n, 4])"),
        "paddle": program(SIDE["paddle"],
                          joined="cat([a, b]).reshape([2, n, 4]).transpose([1, 0, 2]).reshape([2 * n, 4])"),
    },
    "joined, then picked": program("group = arange(n).repeat_interleave(2)",
                                   joined="cat([a, b])[arange(2 * n) // 2 + arange(2 * n) % 2 * n]"),
}  # fmt: skip
MOVED["joined, then interleaved"] = {
    name: part.replace("[2, n])", "[2, n])").replace("transpose([1, 0, 2]).reshape([2 * n])",
                                                     "transpose([1, 0]).reshape([2 * n])")
    for name, part in MOVED["joined, then interleaved"].items()
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    return HEAD[framework] + (part if isinstance(part, str) else part[framework])


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: text(request.param, part) for name, part in {**BUGGY, **DIVIDED, **HEALTHY, **MOVED}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"views-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)
torch = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
paddle = pytest.mark.parametrize("runs", [cases["paddle"]], indirect=True)


def check_others(run: Run, name: str) -> None:
    assert "partners of one sample: 0 of " in run.plain, run
    first = run.check_first("loss-input")
    views = 3 if "three" in name else 2
    assert first["severity"] == "error" and f"joined {views} views of 6 samples" in first["message"], first


@each
@pytest.mark.parametrize("name", BUGGY)
def test_partners_of_other_samples(runs: dict[str, Run], name: str) -> None:
    check_others(runs[name], name)


@torch
@pytest.mark.parametrize("name", DIVIDED)
def test_groups_of_torch_that_are_quotients(runs: dict[str, Run], name: str) -> None:
    check_others(runs[name], name)


@paddle
@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.xfail(reason="see DIVIDED")
def test_groups_of_paddle_that_are_quotients(runs: dict[str, Run], name: str) -> None:
    check_others(runs[name], name)


def check_right(run: Run) -> None:
    assert "partners of one sample: 12 of 12\n" in run.plain or "partners of one sample: 36 of 36\n" in run.plain, run
    run.check_healthy()


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_partners_of_one_sample(runs: dict[str, Run], name: str) -> None:
    check_right(runs[name])


@each
@pytest.mark.parametrize("name", MOVED)
def test_views_that_are_laid_out_anew(runs: dict[str, Run], name: str) -> None:
    check_right(runs[name])
