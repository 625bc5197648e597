"""The promise "no effect": losses, gradients, parameters and random numbers are bit-identical with and without adbg."""

from __future__ import annotations

import pytest
from support.frameworks import case, debuggee_of
from support.program import Outcome, batch, commands, plain

MODELS = {
    "torch": ["mlp", "conv", "transformer", "lstm", "dropout", "checkpointing", "custom_function", "double_backward"],
    "paddle": ["mlp", "conv", "transformer", "nested_pylayer", "double_grad", "recompute"],
}
SCRATCH = {
    "torch": "! import torch; scratch = torch.zeros(3, requires_grad=True); scratch.exp().sum().backward()",
    "paddle": "! import paddle; scratch = paddle.to_tensor([0.0], stop_gradient=False); scratch.exp().backward()",
}
STEPPING = (
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
    "SCRATCH",
    "delete 1",
    "continue",
)
pytestmark = [
    pytest.mark.parametrize(
        "model",
        [
            case(framework, debuggee_of(framework, name), group=f"model-{framework}-{name}")
            for framework, names in MODELS.items()
            for name in names
        ],
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
    scratch = SCRATCH["paddle" if model.startswith("paddle_") else "torch"]
    outcome = batch(model, *commands(*(scratch if line == "SCRATCH" else line for line in STEPPING)))
    check(outcome, expected)
    assert len(outcome.of("stopped", reason="step")) >= 8, str(outcome)
    assert {line["backward"] for line in outcome.of("stopped")} >= {1, 2}, str(outcome)
    assert not outcome.of("error"), str(outcome)


def test_tracing_all_nodes(model: str, expected: str) -> None:
    # From level 6 on Paddle itself renames tensors, and so changes what Adam does: see test_level_6_of_paddle.
    level = 5 if model.startswith("paddle_") else 6
    outcome = batch(model, "-b", "nonfinite", *commands("trace *", "trace * after", f"vlog {level}"))
    check(outcome, expected)
    assert not outcome.of("stopped"), str(outcome)
    traced = [line for line in outcome.of("trace") if line["breakpoint"] == 2]
    begun = outcome.of("backward", phase="begin")
    assert begun
    assert len(traced) == sum(line["nodes"] for line in begun), str(outcome)
