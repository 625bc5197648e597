"""A forward hook that looks at a detached output and gives that back: its ``return`` is named."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

FIT = """
seen = []
HOOK
for _ in range(8):
    loss = (net(noise(6, 4)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
# A function that another one makes; and one that is registered itself.
MADE = """
def watching(name):
    def record(module, given, output):
        values = output.detach()
        seen.append((name, float(values.mean())))
        return values  # CAUSE
    return record
net[0].register_forward_hook(watching("first"))
"""
OWN = """
def record(module, given, output):
    values = output.detach()
    seen.append(float(values.mean()))
    return values  # CAUSE
net[0].register_forward_hook(record)
"""
# No hook: there the detach is the line.
CALLED = """
def look(output):
    values = output.detach()  # CAUSE
    seen.append(float(values.mean()))
    return values
net[0].register_forward_hook(lambda module, given, output: None)
whole, inner = net, list(net)
net = lambda x: inner[2](inner[1](look(inner[0](x))))
"""
PROGRAMS = {"made": MADE, "own": OWN, "called": CALLED}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: small_net(request.param) + FIT.replace("HOOK", text) for name, text in PROGRAMS.items()}
    if request.param == "paddle":
        own = "register_forward_post_hook"
        texts = {name: text.replace("register_forward_hook", own) for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("runs", [case(name, name, group=f"cuts-hooked-{name}") for name in FRAMEWORKS], indirect=True)
def test_what_gives_the_detached_output_back(runs: dict[str, Run], name: str) -> None:
    assert "detach" in runs[name].check_first("no-gradient")["message"]
