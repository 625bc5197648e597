"""Findings of non-finite numbers in words: for the stop report, the banner, ``why``, the JSON line. Pure; any thread.

The verdict comes first, then what it rests on. Every front end takes both from here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from adbg.engine.names import short_op
from adbg.engine.types import Evidence, NodeStop, Origin, Role, SourceLine, StopReason

_NAMES = 4  # nodes named of those that gave a gradient
_KINDS = {StopReason.NAN: "NaN", StopReason.INF: "Inf"}


EXECUTING = "it was executing when the exception left it"  # how the reason of a failure begins where that is known


def stop_message(stop: NodeStop) -> str:
    """What there is to say of a stop beside its title: the exception, a condition's error, what is not finite.

    "Sqrt (model.py:20) made NaN from finite gradients; grad_inputs[0] of SqrtBackward0#1: 4 of 192 elements are nan"
    """
    where = stop.node.unique_name if stop.node is not None else ""
    return "; ".join(filter(None, (stop.message, verdict_text(stop), evidence_text(stop.evidence, where))))


def failure_words(stop: NodeStop) -> tuple[str, str]:
    """(why the node failed, what was raised) of an exception in a backward: torch's own message of a second backward is
    300 characters that say nothing of this program, and would hide the reason behind them in a narrow terminal. ""
    where nothing was found out."""
    raised = stop.message.removesuffix(f" [{stop.why}]") if stop.why else stop.message
    return stop.why.removeprefix(EXECUTING).lstrip("; "), raised


def stop_words(stop: NodeStop) -> str:
    """``stop_message`` for a reader: the reason of a failure on a line of its own, before what was raised."""
    why, raised = failure_words(stop)
    return f"{why}\n{raised}" if why else stop_message(stop)


# ------------------------------------------------------------------ the verdict


def verdict_text(stop: NodeStop) -> str:
    """Where the numbers that are not finite come from, in one short sentence, the decisive words first; "" where the
    stop is not about such numbers.

    "NaN came from the forward pass (saved `self` of Log, vae.py:21)", "Sqrt (model.py:20) made NaN from finite
    gradients".
    """
    if stop.node is None or not stop.evidence:
        return ""
    here = called(stop.node.unique_name, stop.node.forward)
    leaving = _of(stop.evidence, Role.GRAD_INPUTS)
    arriving = _of(stop.evidence, Role.GRAD_OUTPUTS)
    kind = _KINDS.get(stop.reason) or _kind(leaving or arriving)
    if leaving and leaving[0].origin in (Origin.MADE_HERE, Origin.UNKNOWN):
        left = next((found for found in stop.evidence if _explains(found)), None)
        if left is not None:
            return _forward_verdict(left, kind, stop)
        if leaving[0].origin is Origin.MADE_HERE and arriving:
            begins = " (`break nonfinite` stops there)" if stop.reason is StopReason.NAN else ""
            maker = _inf_of(arriving)
            return f"{here} made {kind} from Inf{maker}{begins if maker else ''}"
        if leaving[0].origin is Origin.MADE_HERE:
            return f"{here} made {kind} from finite gradients"
        return f"{kind} came out of {here}; what flowed into it is not known: it wrote over that"
    between = next((found for found in arriving if found.origin is Origin.BETWEEN), None)
    if between is not None and between.unseen:
        return f"{kind} was first seen flowing into {here}: {_unseen(between)}"
    if between is not None:
        return f"{kind} appeared between two nodes: {_between(between, here)}"
    passed = next((found for found in (*arriving, *leaving) if found.origin is Origin.PASSED_ON), None)
    if passed is not None and passed.node:
        made = f"{called(passed.node, passed.forward)} made {_kind([passed])}{_number(passed.index)}"
        return f"{made}; {here} was given it"
    if passed is not None:
        return f"{_kind([passed])} flowed into {here}: another node made it"
    if arriving:
        if stop.reason in _KINDS:
            return f"{kind} flowed into {here}: given to backward, or made before gradients were looked at"
        return f"{kind} flowed into {here}: made where nothing was looked at (`break nonfinite` stops where it begins)"
    return ""


def _inf_of(arriving: Sequence[Evidence]) -> str:
    """ "; Sqrt (model.py:6) made that at #7"."""
    maker = next((found for found in arriving if found.node), None)
    return f"; {called(maker.node, maker.forward)} made that{_number(maker.index)}" if maker is not None else ""


def _forward_verdict(left: Evidence, kind: str, stop: NodeStop) -> str:
    """What the forward pass left explains it. ``kind`` is what the backward has: inf times 0 is NaN."""
    was = "NaN" if left.nan else "Inf"
    came = f"{kind} came from" if was == kind else f"{kind} came from {was} of"
    if left.role is Role.LEAF:
        name = f"parameter {left.parameter}" if left.parameter else "a leaf that is no registered parameter"
        return f"{kind} came from {name}: {was} before the forward pass"
    if left.role is Role.ROOT:
        what = "the loss" if left.numel == 1 else "what backward was called on"
        return f"{came} the forward pass ({what} is {was} already)"
    if left.node:
        node, line = left.node, left.forward
    else:
        assert stop.node is not None
        node, line = stop.node.unique_name, stop.node.forward
    saved = f"parameter {left.parameter}, saved by" if left.parameter else f"saved `{left.name}` of"
    where = f", {place(line)}" if line is not None else ""
    return f"{came} the forward pass ({saved} {short_op(node.partition('#')[0])}{where})"


def _explains(found: Evidence) -> bool:
    """What the forward pass left there can make other numbers so: -inf alone is a mask more often than not."""
    return found.origin is Origin.FORWARD and bool(found.nan or found.pos_inf or (found.inf and found.pos_inf is None))


def called(unique_name: str, forward: SourceLine | None) -> str:
    """ "Sqrt (model.py:20)" of "SqrtBackward0#1"."""
    op = short_op(unique_name.partition("#")[0])
    return f"{op} ({place(forward)})" if forward is not None else op


def place(line: SourceLine) -> str:
    """ "model.py:20"."""
    return f"{os.path.basename(line.file)}:{line.line}"


def _number(index: int | None) -> str:
    return f" at #{index}" if index else ""


def _kind(found: Sequence[Evidence]) -> str:
    return "NaN" if any(each.nan for each in found) else "Inf"


def _of(evidence: Sequence[Evidence], role: Role) -> list[Evidence]:
    return [found for found in evidence if found.role is role]


def _between(found: Evidence, here: str) -> str:
    """ "after MulBackward0#1 and before Exp (m.py:3), a tensor hook or an in-place change"."""
    return f"after {_givers(found, ', ')} and before {here}, by {_causes(found)}"


def _unseen(found: Evidence) -> str:
    """ "made by LinearGradNode#1 or MulGradNode#2, or on the way from there by a tensor hook or an in-place change"."""
    return f"made by {_givers(found, ' or ')}, or on the way from there by {_causes(found)}"


def _givers(found: Evidence, joint: str) -> str:
    names = list(found.after)
    count = len(names) + found.others
    if count > _NAMES:
        names[_NAMES - 1 :] = [f"{count - _NAMES + 1} others"]
    return joint.join(names)


def _causes(found: Evidence) -> str:
    return "their sum, a tensor hook or an in-place change" if found.summed else "a tensor hook or an in-place change"


# ------------------------------------------------------------------ what it rests on


def evidence_text(evidence: Sequence[Evidence], where: str = "", brief: bool = False) -> str:
    """How many elements of what are not finite. ``where``: the node to name. ``brief``: "grad_inputs[0]: 4/192 nan"."""
    shown = _of(evidence, Role.GRAD_INPUTS) or _of(evidence, Role.GRAD_OUTPUTS)
    text = "; ".join(_counts(found, where, brief) for found in shown)
    return "; ".join(filter(None, (text, *_left(evidence, brief))))


def _counts(found: Evidence, where: str, brief: bool) -> str:
    """ "grad_inputs[0] of SqrtBackward0#1: 1 of 64 elements is inf"."""
    return f"{found.name}{f' of {where}' if where else ''}: {_how_many(found, brief)}"


def _how_many(found: Evidence, brief: bool) -> str:
    kinds = [(count, kind) for count, kind in ((found.nan, "nan"), (found.inf, _sign(found))) if count]
    if brief:
        return " and ".join(f"{count}/{found.numel} {kind}" for count, kind in kinds)
    return " and ".join(
        f"{count} of {found.numel} elements {'is' if count == 1 else 'are'} {kind}" for count, kind in kinds
    )


def _left(evidence: Sequence[Evidence], brief: bool) -> list[str]:
    """ "saved 'self': 16 of 16 elements are nan": what the forward pass left, the first of it first."""
    return [f"{_called(found)}: {_how_many(found, brief)}" for found in evidence if found.origin is Origin.FORWARD]


def _called(found: Evidence) -> str:
    if found.role is Role.LEAF:
        return f"parameter {found.parameter}" if found.parameter else f"leaf of {found.node}"
    if found.role is Role.ROOT:
        return "root of this backward"
    saved = f"saved {found.name!r}" + (f" of {found.node}" if found.node else "")
    return f"{saved}, parameter {found.parameter}" if found.parameter else saved


def _sign(found: Evidence) -> str:
    """ "inf", "-inf", or "inf or -inf"."""
    signs = (("inf", found.pos_inf), ("-inf", found.neg_inf))
    return " or ".join(text for text, count in signs if count) or "inf"
