"""The promise "no effect": losses, gradients, parameters and random numbers are bit-identical with and without adbg."""

from __future__ import annotations

import pytest
from support.program import Outcome, batch, commands, plain

MODELS = ["mlp", "conv", "transformer", "lstm", "dropout", "checkpointing", "custom_function", "double_backward"]
STEPPING = commands(
    "break backward",
    "continue",
    *["step"] * 4,
    "info node",
    "p norm(grad_outputs[0])",
    "after",
    "p [stats(g) for g in grad_inputs if g is not None]",
    "where",
    *["next"] * 3,
    "p [type(s).__name__ for s in saved]",
    "graph",
    "finish",
    "continue",
    "step",
    "info backward",
    "! import torch; scratch = torch.zeros(3, requires_grad=True); scratch.exp().sum().backward()",
    "delete 1",
    "continue",
)
pytestmark = [
    pytest.mark.parametrize(
        "model", [pytest.param(name, marks=pytest.mark.xdist_group(f"model-{name}")) for name in MODELS]
    )
]


@pytest.fixture(scope="session")
def plain_digests() -> dict[str, str]:
    return {}


@pytest.fixture
def expected(model: str, plain_digests: dict[str, str]) -> str:
    """The digest of the plain run, made once."""
    if model not in plain_digests:
        outcome = plain(model)
        assert outcome.status == 0, str(outcome)
        plain_digests[model] = outcome.digest
    return plain_digests[model]


def check(outcome: Outcome, expected: str) -> None:
    assert outcome.status == 0, str(outcome)
    assert outcome.digest == expected, str(outcome)


def test_unarmed(model: str, expected: str) -> None:
    check(batch(model, "--no-stacks"), expected)


def test_stepping(model: str, expected: str) -> None:
    outcome = batch(model, *STEPPING)
    check(outcome, expected)
    assert len(outcome.of("stopped", reason="step")) >= 8, str(outcome)
    assert {line["backward"] for line in outcome.of("stopped")} >= {1, 2}, str(outcome)
    assert not outcome.of("error"), str(outcome)


def test_tracing_all_nodes(model: str, expected: str) -> None:
    outcome = batch(model, "-b", "nonfinite", *commands("trace *", "trace * after", "vlog 6"))
    check(outcome, expected)
    assert not outcome.of("stopped"), str(outcome)
    traced = [line for line in outcome.of("trace") if line["breakpoint"] == 2]
    begun = outcome.of("backward", phase="begin")
    assert begun
    assert len(traced) == sum(line["nodes"] for line in begun), str(outcome)
