"""What the report says around its flame graph and its tables: the legend, what is under the cursor in full. Pure, but
for ``earlier``, which lists a folder."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import wrap

from adbg.profiles.folders import order_of
from adbg.profiles.report.flame import ROOT, Tree
from adbg.profiles.report.formats import detect
from adbg.profiles.report.model import Frame
from adbg.tui.app import theme
from adbg.tui.app.profile.colours import KINDS, kind_of
from adbg.tui.app.profile.contents import FLAME, NODES
from adbg.tui.app.profile.icicle import Icicle
from adbg.tui.app.profile.sheets import Sheet
from adbg.tui.text.cells import Spans, elide
from adbg.tui.text.profile_report import amount_text

KEYS = {
    FLAME: "? keys · q back · ⏎ zoom · o source · i invert · c callers · / search · tab view · d difference · w write",
    NODES: "? keys · q back · ⏎ in the graph · o source · s S sort · b each · / search · tab view · w write",
    "": "? keys · q back · ⏎ o source · s S sort · b by · c callers · / search · tab view · d difference · w write",
}
ALL_KEYS = (
    ("tab [ ]", "the next view, the previous one: flame graph, table, nodes, iterations, difference"),
    ("j k g G", "down, up, the first, the last; ctrl+d ctrl+u half a page; the mouse selects"),
    ("h l", "flame graph: the frame on the left, on the right"),
    ("enter", "flame graph: the frame in full width; nodes: the node in the graph; tables: the source line"),
    ("escape 0", "one zoom back, then out; all of the flame graph again"),
    ("i", "flame graph: the innermost frames first, their callers below them"),
    ("f c", "this function in the flame graph: what it calls; all of its callers"),
    ("o", "the source line; F5 comes back from it to the report"),
    ("/ n N", "search in names, files, modules (a regular expression); next, previous"),
    ("s S", "tables: sort by the next column, the previous one; a click on a title does the same"),
    ("b", "tables: rows of functions, lines, files, modules, origins, phases, threads; nodes: each by itself"),
    ("d", "the difference to another profile: red takes more in this one, green less"),
    ("w", "write it: .svg .html .speedscope.json .pb.gz .trace.json .collapsed .pstats"),
    ("y", "copy the function's name and place"),
    ("q", "leave the report"),
)
_NARROW = 112  # cells: in fewer not each key is named
_SHORT = {
    FLAME: "? keys · q back · ⏎ zoom · tab view · d difference · w write · / search",
    NODES: "? keys · q back · ⏎ graph · o source · tab view · s sort · w write",
    "": "? keys · q back · o source · tab view · s sort · d difference · w write",
}
LOW = 32  # rows of a terminal with fewer are short: the verdict is told in two lines
_MANY = 20_000  # frames, of which not each is asked whose it is


def keys(view: str, width: int) -> str:
    """What stands in the frame."""
    names = KEYS if width >= _NARROW else _SHORT
    return names.get(view, names[""])


def head(lines: list[str], width: int, low: bool) -> list[Spans]:
    """The verdict and the three lines, in a low terminal these in one; then what it is a profile of."""
    verdict, told = lines[:-1], lines[-1]
    if low and len(verdict) > 2:
        *lost, last = [line.strip() for line in verdict[2:]]
        verdict = [verdict[0], *(["  " + " · ".join(lost)] if lost else []), last]
    style = "dim" if len(verdict) == 1 or verdict[0].startswith("no verdict") else "here"
    styled: list[Spans] = [[(line, style)] for line in wrap(verdict[0], width, subsequent_indent="  ")]
    styled += [[(elide(line, width), "")] for line in verdict[1:]]
    return [*styled, [(elide(told, width), "dim")]]


def turned(around: tuple[Frame, bool] | None, inverted: bool) -> Spans:
    """What the flame graph is of, where it is not simply of all."""
    if around is not None:
        frame, callers = around
        return [(f"{'callers' if callers else 'calls'} of {elide(frame.name, 40)} · ", "warn")]
    return [("inverted: callers below · ", "warn")] if inverted else []


def legend(compared: bool, tree: Tree | None) -> Spans:
    """What the colours of the flame graph mean."""
    if compared:
        return [(" more ", f"flame-more{theme.SHADES}"), (" less ", f"flame-less{theme.SHADES}"),
                (" same ", "flame-same"), (" in share of the whole", "dim")]  # fmt: skip
    present = {kind_of(frame) for frame in tree.frames} if tree is not None and len(tree.frames) < _MANY else KINDS
    return [(f" {text} ", f"flame-{kind}") for kind, text in KINDS.items() if kind in present]


def matched(icicle: Icicle) -> str:
    """What the search found, nothing counted twice."""
    tree = icicle.stacks
    return f" {100 * tree.share(icicle.found) / icicle.whole:.1f}% in {len(icicle.found):,}" if tree is not None else ""


def of_span(icicle: Icicle) -> tuple[str, str]:
    """Name and numbers of the frame under the cursor."""
    tree = icicle.stacks
    if tree is None:
        return "", ""
    frame = tree.frame_of(icicle.here)
    weight, own = tree.weight[icicle.here], tree.own[icicle.here]
    parts = [f"{amount_text(weight, icicle.unit)}, {100 * weight / icicle.whole:.1f}% of all"]
    if icicle.zoom != ROOT:
        parts.append(f"{100 * weight / (tree.weight[icicle.zoom] or 1.0):.1f}% of the zoom")
    parts.append(f"self {amount_text(own, icicle.unit)}")
    return (frame.name if frame is not None else "all"), " · ".join(parts)


def of_item(sheet: Sheet, row: int) -> tuple[str, str]:
    """The same of a row of a table."""
    item = sheet.items[row]
    told = [(column.title, column.text(number)) for column, number in zip(sheet.columns, item.numbers)]
    numbers = " · ".join(f"{title} {text}" for title, text in told if text and title != "%")
    return item.name, numbers + (f" · {item.more}" if item.more else "")


def place(frame: Frame | None, width: int) -> str:
    """Whose it is, and where; the end of a path tells most."""
    if frame is None or not (frame.file or frame.module):
        return ""
    line = f":{frame.line}" if frame.line and frame.file else ""
    text = f"{KINDS[kind_of(frame)]}  {frame.file}{line}" + (f"  {frame.module}" if frame.module else "")
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def earlier(path: str) -> list[str]:
    """Names of the artifacts beside this one, the one before it last."""
    parent, name = os.path.split(os.path.abspath(path))
    if detect.artifact_of(Path(path)) is None:
        return []
    try:
        names = sorted((each for each in os.listdir(parent) if each != name), key=order_of)
    except OSError:
        return []
    found = [each for each in names if detect.is_profile(Path(parent, each))]
    here = order_of(name)
    return [each for each in found if order_of(each) > here] + [each for each in found if order_of(each) < here]
