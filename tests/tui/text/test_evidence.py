"""Findings of non-finite numbers in words: the verdict first, then what it rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adbg.engine.types import Evidence, NodeInfo, NodeStop, Origin, Phase, Role, SourceLine, StopReason
from adbg.tui.app.banner import banner_text
from adbg.tui.text.evidence import evidence_text, stop_message, verdict_text
from adbg.tui.text.formatting import stop_lines

LINE = SourceLine("/home/me/tiny_gpt.py", 20, "forward")
LOG = SourceLine("/home/me/vae.py", 21, "forward")
MADE = Evidence(Role.GRAD_INPUTS, "grad_inputs[0]", 192, 4, 0, Origin.MADE_HERE, slot=0)
BETWEEN = Evidence(Role.GRAD_OUTPUTS, "grad_outputs[0]", 3, 3, 0, Origin.BETWEEN, slot=0, after=("MulBackward0#1",))
PASSED = Evidence(Role.GRAD_OUTPUTS, "grad_outputs[0]", 3, 3, 0, Origin.PASSED_ON, slot=0)


def stop(*evidence: Evidence, message: str = "", reason: StopReason = StopReason.NAN) -> NodeStop:
    node = NodeInfo(7, "SqrtBackward0", "SqrtBackward0#1", forward=LINE)
    return NodeStop(reason, Phase.AFTER, 1, 1, 199, 204, 0, 0, node=node, message=message, evidence=evidence)


def saved(name: str, nan: int, inf: int = 0, role: Role = Role.SAVED, **more: Any) -> Evidence:
    return Evidence(role, name, 16, nan, inf, Origin.FORWARD, **more)


def test_what_a_node_made() -> None:
    verdict = "Sqrt (tiny_gpt.py:20) made NaN from finite gradients"
    sentence = f"{verdict}; grad_inputs[0] of SqrtBackward0#1: 4 of 192 elements are nan"
    assert stop_message(stop(MADE)) == sentence
    assert "  " + sentence in stop_lines(stop(MADE))
    assert banner_text(stop(MADE), 160) == f"✗ {verdict} — #199, grad_inputs[0]: 4 of 192 elements are nan"
    assert banner_text(stop(MADE), 80) == f"✗ {verdict} — #199, grad_inputs[0]: 4/192 nan"
    both = replace(MADE, inf=1, neg_inf=1, pos_inf=0)
    assert evidence_text([both]) == "grad_inputs[0]: 4 of 192 elements are nan and 1 of 192 elements is -inf"


@pytest.mark.parametrize(
    ("left", "verdict"),
    [
        (
            saved("self", 2, node="LogBackward0#2", index=201, forward=LOG),
            "NaN came from the forward pass (saved `self` of Log, vae.py:21)",
        ),
        (saved("self", 2), "NaN came from the forward pass (saved `self` of Sqrt, tiny_gpt.py:20)"),
        (
            saved("result", 0, 3, pos_inf=3, neg_inf=0, node="exp2GradNode", forward=LOG),
            "NaN came from Inf of the forward pass (saved `result` of exp2, vae.py:21)",
        ),
        (saved("fc.bias", 1, role=Role.LEAF, parameter="fc.bias", node="AccumulateGrad#3"),
         "NaN came from parameter fc.bias: NaN before the forward pass"),
        (saved("", 1, role=Role.LEAF, node="AccumulateGrad#3"),
         "NaN came from a leaf that is no registered parameter: NaN before the forward pass"),
        (replace(saved("", 1, role=Role.ROOT), numel=1), "NaN came from the forward pass (the loss is NaN already)"),
        (saved("mask", 0, 3, neg_inf=3, pos_inf=0), "Sqrt (tiny_gpt.py:20) made NaN from finite gradients"),
    ],
)  # fmt: skip
def test_what_the_forward_pass_left(left: Evidence, verdict: str) -> None:
    at = stop(MADE, left)
    assert verdict_text(at) == verdict
    assert banner_text(at, 80).startswith(f"✗ {verdict} — #199, grad_inputs[0]: 4/192 nan; ")
    assert len(f"✗ {verdict}") <= 80 or left.role is Role.LEAF, "the decisive part fits into 80 cells"


def test_what_it_rests_on_comes_behind() -> None:
    text = evidence_text([MADE, saved("self", 2, node="LogBackward0#2"), saved("mask", 0, 3, neg_inf=3, pos_inf=0)])
    assert text == (
        "grad_inputs[0]: 4 of 192 elements are nan; saved 'self' of LogBackward0#2: 2 of 16 elements are nan; "
        "saved 'mask': 3 of 16 elements are -inf"
    )


def test_what_was_made_between_two_nodes() -> None:
    here = "NaN appeared between two nodes: after MulBackward0#1 and before Sqrt (tiny_gpt.py:20), by"
    assert verdict_text(stop(BETWEEN)) == f"{here} a tensor hook or an in-place change"
    assert verdict_text(stop(replace(MADE, origin=Origin.PASSED_ON), BETWEEN)).startswith(here)
    many = replace(BETWEEN, nan=0, inf=1, after=tuple("abcdef"), others=2, summed=True)
    assert verdict_text(stop(many, reason=StopReason.INF)) == (
        "Inf appeared between two nodes: after a, b, c, 5 others and before Sqrt (tiny_gpt.py:20), "
        "by their sum, a tensor hook or an in-place change"
    )


def test_a_victim_is_told_with_its_maker_where_that_is_known() -> None:
    known = replace(PASSED, node="LogBackward0#1", index=198, forward=LOG)
    assert verdict_text(stop(known)) == "Log (vae.py:21) made NaN at #198; Sqrt (tiny_gpt.py:20) was given it"
    assert verdict_text(stop(PASSED)) == "NaN flowed into Sqrt (tiny_gpt.py:20): another node made it"
    given = replace(PASSED, origin=Origin.UNKNOWN)
    assert "given to backward" in verdict_text(stop(given))
    assert "`break nonfinite`" in verdict_text(stop(given, reason=StopReason.BREAKPOINT))


def test_what_a_framework_does_not_show() -> None:
    first = replace(BETWEEN, after=("EinsumGradNode#1",), unseen=True)
    assert verdict_text(stop(first)) == (
        "NaN was first seen flowing into Sqrt (tiny_gpt.py:20): made by EinsumGradNode#1, or on the way from there by "
        "a tensor hook or an in-place change"
    )
    gone = replace(MADE, origin=Origin.UNKNOWN, unseen=True)
    told = "NaN came out of Sqrt (tiny_gpt.py:20); what flowed into it is not known: it wrote over that"
    assert verdict_text(stop(gone)) == told
    loss = replace(saved("", 1, role=Role.ROOT), numel=1)
    assert verdict_text(stop(gone, loss)) == "NaN came from the forward pass (the loss is NaN already)"


def test_a_message_stands_before_the_evidence_and_alone_in_runs_recorded_without() -> None:
    assert stop_message(stop(MADE, message="condition 'x': no")).startswith("condition 'x': no; Sqrt (tiny_gpt.py:20)")
    assert stop_message(stop(message="grad_inputs[0] of X#1: 1 of 2 elements is nan")).endswith("is nan")
    assert stop_message(stop()) == verdict_text(stop()) == ""
