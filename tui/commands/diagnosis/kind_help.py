"""What a kind of finding means, from the docstrings of the detectors that find it."""

from __future__ import annotations

from adbg.tui.debugger.findings.kinds import detectors


def kind_text(kind: str) -> str:
    """A paragraph for each detector that finds ``kind``, and what stands behind its labels; "" where none does.
    Paragraphs are lines: the front end breaks them."""
    about = [each for each in detectors() if kind in each.kinds]
    about.sort(key=lambda each: each.title.replace(" ", "-") != kind)  # the one that it is named after comes first
    if not about:
        return ""
    lines = [f"{kind}: a kind of finding (`diagnose {kind}` lists those that were found)"]
    for each in about:
        said, labelled = each.parts()
        lines += ["", said, *(f"  {label}: {text}" for label, text in labelled.items())]
    return "\n".join(lines)
