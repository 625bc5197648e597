"""Findings of non-finite numbers in words."""

from __future__ import annotations

from dataclasses import replace

from adbg.engine.types import Evidence, NodeInfo, NodeStop, Origin, Phase, Role, StopReason
from adbg.tui.app.banner import banner_text
from adbg.tui.text.evidence import evidence_text, stop_message
from adbg.tui.text.formatting import stop_lines

MADE = Evidence(Role.GRAD_INPUTS, "grad_inputs[0]", 192, 4, 1, Origin.MADE_HERE, slot=0)
BETWEEN = Evidence(Role.GRAD_OUTPUTS, "grad_outputs[0]", 3, 3, 0, Origin.BETWEEN, slot=0, after=("MulBackward0#1",))


def stop(*evidence: Evidence, message: str = "") -> NodeStop:
    node = NodeInfo(7, "SqrtBackward0", "SqrtBackward0#1")
    return NodeStop(StopReason.NAN, Phase.AFTER, 1, 1, 199, 204, 0, 0, node=node, message=message, evidence=evidence)


def saved(name: str, nan: int, inf: int = 0, **more: object) -> Evidence:
    return Evidence(Role.SAVED, name, 16, nan, inf, Origin.FORWARD, **more)  # type: ignore[arg-type]


def test_what_a_node_made() -> None:
    sentence = (
        "grad_inputs[0] of SqrtBackward0#1: 4 of 192 elements are nan and 1 of 192 elements is inf, "
        "incoming gradients all finite"
    )
    assert stop_message(stop(MADE)) == sentence
    assert "  " + sentence in stop_lines(stop(MADE))
    assert (
        banner_text(stop(MADE), 80)
        == "✗ NaN #199 SqrtBackward0 grad_inputs[0]: 4/192 nan and 1/192 inf, incoming finite"
    )


def test_what_was_made_between_two_nodes() -> None:
    made = "made between MulBackward0#1 and here (a tensor hook, or an in-place change)"
    assert evidence_text([BETWEEN]) == f"grad_outputs[0]: 3 of 3 elements are nan: {made}"
    passed = Evidence(Role.GRAD_INPUTS, "grad_inputs[0]", 3, 3, 0, Origin.PASSED_ON, slot=0)
    assert evidence_text([passed, BETWEEN]) == (
        f"grad_inputs[0]: 3 of 3 elements are nan, incoming gradients not finite either: {made}"
    )
    many = Evidence(
        Role.GRAD_OUTPUTS, "grad_outputs[0]", 1, 0, 1, Origin.BETWEEN, after=tuple("abcdef"), others=2, summed=True
    )
    assert evidence_text([many], brief=True) == (
        "grad_outputs[0]: 1/1 inf: made between a, b, c, 5 others and here (their sum, a tensor hook, "
        "or an in-place change)"
    )


def test_what_a_framework_does_not_show() -> None:
    first = replace(BETWEEN, after=("EinsumGradNode#1",), unseen=True)
    assert evidence_text([first]) == (
        "grad_outputs[0]: 3 of 3 elements are nan: first seen here: made by EinsumGradNode#1, or on the way from there "
        "(a tensor hook, or an in-place change)"
    )
    gone = replace(MADE, inf=0, origin=Origin.UNKNOWN, unseen=True)
    assert evidence_text([gone]).endswith("are nan, incoming gradients not known: the node wrote over them")
    assert evidence_text([gone], brief=True).endswith("nan, incoming not known")


def test_what_the_forward_pass_left() -> None:
    one = "saved tensor 'self', parameter fc.bias, is already nan (2 of 16): the forward pass made it"
    text = evidence_text([MADE, saved("self", 2, parameter="fc.bias")])
    assert text.endswith(f"all finite; {one}, this backward did not")
    two = "saved tensors 'a' (1 of 16) and 'b' (2 of 16) are already nan: the forward pass made them"
    both = evidence_text([MADE, saved("a", 1), saved("mask", 0, 3, neg_inf=3, pos_inf=0), saved("b", 2)])
    assert both.endswith(f"; {two}, this backward did not; saved tensor 'mask' holds 3 -inf")
    assert evidence_text([MADE, saved("x", 0, 2)]).endswith("saved tensor 'x' holds 2 inf")


def test_a_message_stands_before_the_evidence_and_alone_in_runs_recorded_without() -> None:
    assert stop_message(stop(MADE, message="condition 'x': no")).startswith("condition 'x': no; grad_inputs[0] of")
    assert stop_message(stop(message="grad_inputs[0] of X#1: 1 of 2 elements is nan")).endswith("is nan")
    assert stop_message(stop()) == ""
