"""Findings of non-finite numbers in words: for the stop report, the banner, the JSON line. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence

from adbg.engine.types import Evidence, NodeStop, Origin, Role

_NAMES = 4  # nodes named of those that gave a gradient


def stop_message(stop: NodeStop) -> str:
    """What there is to say of a stop beside its title: the exception, a condition's error, what is not finite.

    "grad_inputs[0] of SqrtBackward0#1: 4 of 192 elements are nan, incoming gradients all finite"
    """
    where = stop.node.unique_name if stop.node is not None else ""
    return "; ".join(filter(None, (stop.message, evidence_text(stop.evidence, where))))


def evidence_text(evidence: Sequence[Evidence], where: str = "", brief: bool = False) -> str:
    """``where``: the node to name. ``brief``: "grad_inputs[0]: 4/192 nan, incoming finite"."""
    groups = {role: [found for found in evidence if found.role is role] for role in Role}
    leaving, arriving = groups[Role.GRAD_INPUTS], groups[Role.GRAD_OUTPUTS]
    made = next((_between(found) for found in arriving if found.origin is Origin.BETWEEN), "")
    text = "; ".join(_counts(found, where, brief) for found in leaving or arriving)
    if leaving:
        incoming = "incoming" if brief else "incoming gradients"
        if leaving[0].origin is Origin.MADE_HERE:
            text += f", {incoming} finite" if brief else f", {incoming} all finite"
        elif leaving[0].origin is Origin.PASSED_ON:
            text += f", {incoming} not finite" if brief else f", {incoming} not finite either"
        elif leaving[0].unseen:
            text += f", {incoming} not known" if brief else f", {incoming} not known: the node wrote over them"
    return "; ".join(filter(None, (f"{text}: {made}" if made else text, *_saved(groups[Role.SAVED]))))


def _counts(found: Evidence, where: str, brief: bool) -> str:
    """ "grad_inputs[0] of SqrtBackward0#1: 1 of 64 elements is inf"."""
    kinds = [(count, kind) for count, kind in ((found.nan, "nan"), (found.inf, "inf")) if count]
    if brief:
        counts = [f"{count}/{found.numel} {kind}" for count, kind in kinds]
    else:
        counts = [f"{count} of {found.numel} elements {'is' if count == 1 else 'are'} {kind}" for count, kind in kinds]
    return f"{found.name}{f' of {where}' if where else ''}: " + " and ".join(counts)


def _between(found: Evidence) -> str:
    """ "made between MulBackward0#1 and here (a tensor hook, or an in-place change)"."""
    names = list(found.after)
    count = len(names) + found.others
    if count > _NAMES:
        names[_NAMES - 1 :] = [f"{count - _NAMES + 1} others"]
    causes = (
        "their sum, a tensor hook, or an in-place change" if found.summed else "a tensor hook, or an in-place change"
    )
    if found.unseen:
        return f"first seen here: made by {' or '.join(names)}, or on the way from there ({causes})"
    return f"made between {', '.join(names)} and here ({causes})"


def _saved(saved: Sequence[Evidence]) -> list[str]:
    """ "saved tensor 'self' is already nan (16 of 16): the forward pass made it, this backward did not"; then those
    that are infinite only, which may be meant (a mask)."""
    spoilt = [(_called(found), f"({found.nan} of {found.numel})") for found in saved if found.nan]
    parts = []
    if len(spoilt) == 1:
        told = f"saved tensor {spoilt[0][0]} is already nan {spoilt[0][1]}: the forward pass made it"
        parts.append(f"{told}, this backward did not")
    elif spoilt:
        told = f"saved tensors {' and '.join(f'{name} {count}' for name, count in spoilt)} are already nan"
        parts.append(f"{told}: the forward pass made them, this backward did not")
    return parts + [
        f"saved tensor {_called(found)} holds {found.inf} {_sign(found)}" for found in saved if not found.nan
    ]


def _called(found: Evidence) -> str:
    return f"{found.name!r}, parameter {found.parameter}," if found.parameter else repr(found.name)


def _sign(found: Evidence) -> str:
    """ "inf", "-inf", or "inf and -inf"."""
    signs = (("inf", found.pos_inf), ("-inf", found.neg_inf))
    return " and ".join(text for text, count in signs if count) or "inf"
