"""Losses whose arguments are swapped. Witness: the framework's own word on which of them carries gradients."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def program(loss: str, net: str = "nn.Linear(6, 3)", target: str = "") -> str:
    return f"""
net = {net}
optimizer = Sgd(net.parameters())
x = noise(64, 6)
labels = x[:, :3].argmax(1)
{target}
for step in range(6):
    out = net(x)
    {loss}
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""


SOFT = "soft = F.one_hot(labels, 3).cast('float32') if fw.__name__ == 'paddle' else F.one_hot(labels, 3).float()"
CROSS = "F.cross_entropy(GIVEN, soft_label=True) if fw.__name__ == 'paddle' else F.cross_entropy(GIVEN)"
BUGGY = {
    "classes": program("loss = " + CROSS.replace("GIVEN", "soft, F.softmax(out, -1)") + "  # CAUSE", target=SOFT),
    "probabilities": program("loss = F.binary_cross_entropy(soft, fw.sigmoid(out))  # CAUSE", target=SOFT),
    "logits": program("loss = F.binary_cross_entropy_with_logits(soft, out)  # CAUSE", target=SOFT),
}
HEALTHY = {
    "classes": program("loss = " + CROSS.replace("GIVEN", "out, soft"), target=SOFT),
    "a difference": program("loss = F.mse_loss(soft, out)", target=SOFT),
    "a divergence": program("loss = F.kl_div(fw.log(soft * 0.8 + 0.05), F.softmax(out, -1))", target=SOFT),
    "both": program("loss = F.binary_cross_entropy_with_logits(out, fw.sigmoid(out * 0.5))", target=SOFT),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | {
        f"healthy, {name}": part for name, part in HEALTHY.items()
    }
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"swapped-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_arguments_that_are_swapped(runs: dict[str, Run], name: str) -> None:
    first = runs[f"buggy, {name}"].check_first("loss-input")
    assert first["severity"] == "error" and "the other way round" in first["message"], first


@each
@named(HEALTHY, {})
def test_arguments_in_their_order(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert not [found for found in run.every if "the other way round" in found["message"]], run
