"""Chrome's trace events, which Perfetto, torch.profiler, paddle.profiler, viztracer and py-spy use: a time line.

Read as spans and as stacks: what lies within another event of its thread was called by it. Written from the spans,
or, for a profile that has none, from its samples one behind the other.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adbg.profiles.report.formats import paddle_trace
from adbg.profiles.report.formats.collapsed import frame_of
from adbg.profiles.report.formats.problem import FormatError, damaged
from adbg.profiles.report.model import NATIVE, NODE, OUTSIDE, PYTHON, SECONDS, Builder, Frame, Profile, Sample, Span

_KIND = "Chrome trace"
_MICRO = 1e6
_SAME = 1e-9  # seconds: the finest that traces are written in
_PYTHON = re.compile(r"(?P<file>.+?)\((?P<line>\d+)\): (?P<name>.+)", re.DOTALL)  # torch's python_function
_NODE = "autograd::engine::evaluate_function: "
_SKIPPED = {"Trace", "overhead"}  # torch: the whole of it as one event; the profiler's own
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
_Facts = Mapping[str, str | int | float]


def is_kind(text: str) -> bool:
    return '"traceEvents"' in text or (text[:1] == "[" and '"ph"' in text)


def read(path: Path) -> Profile:
    try:
        body = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise damaged(path, _KIND, str(error)) from None
    events = body.get("traceEvents") if isinstance(body, dict) else body
    if not isinstance(events, list):
        raise damaged(path, _KIND, "it has no list of events")
    try:
        spans, frames = _spans(paddle_trace.put_right([event for event in events if isinstance(event, dict)]))
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise damaged(path, _KIND, f"its events are not those of the format ({error!r})") from None
    return _stacked(spans, frames, {"format": "Chrome trace"})


def of_spans(spans: Sequence[Span], meta: Mapping[str, object]) -> Profile:
    """A time line as a profile: what lies within another span of its thread was called by it."""
    ordered = sorted(spans, key=lambda span: (span.begin, -span.duration))
    return _stacked(ordered, _frames(ordered), meta)


class Counted:
    """How often a function was called: an event each. ``primitive``: not within itself; ``by``: (caller, function)."""

    def __init__(self) -> None:
        self.calls: Counter[Frame] = Counter()
        self.primitive: Counter[Frame] = Counter()
        self.by: Counter[tuple[Frame, Frame]] = Counter()
        self._open: Counter[Frame] = Counter()

    def begins(self, frame: Frame, above: Frame | None) -> None:
        self.calls[frame] += 1
        self.primitive[frame] += not self._open[frame]
        self._open[frame] += 1
        if above is not None:
            self.by[above, frame] += 1

    def ends(self, frame: Frame) -> None:
        self._open[frame] -= 1


def counted(spans: Sequence[Span]) -> Counted:
    counts = Counted()
    _stacked(spans, _frames(spans), {}, counts)
    return counts


def _frames(spans: Sequence[Span]) -> list[Frame]:
    return [_frame({"name": span.name, "args": span.facts}, span.category) for span in spans]


def _stacked(
    spans: Sequence[Span], frames: Sequence[Frame], meta: Mapping[str, object], counts: Counted | None = None
) -> Profile:
    builder = Builder()
    lanes: dict[tuple[str, str], list[tuple[Span, Frame]]] = defaultdict(list)
    for span, frame in zip(spans, frames):
        if span.duration > 0 and span.category != "iteration":  # its time is that of the threads
            lanes[span.process, span.thread].append((span, frame))
    several = len({process for process, _ in lanes}) > 1
    for (process, thread), lane in lanes.items():
        _nest(builder, lane, f"{process} {thread}".strip() if several else thread, counts)
    return Profile(builder.frames, builder.samples, SECONDS, spans=tuple(spans), meta=meta)


def _spans(events: list[dict[str, Any]]) -> tuple[list[Span], list[Frame]]:
    names: dict[tuple[str, object, object], str] = {}
    for event in events:
        if event.get("ph") == "M" and event.get("name") in ("thread_name", "process_name"):
            tid = event.get("tid") if event["name"] == "thread_name" else None
            facts = event.get("args")
            name = str(facts.get("name") or "") if isinstance(facts, dict) else ""
            names[event["name"], event.get("pid"), tid] = name
    found: list[tuple[Span, Frame, int]] = []
    for number, begin, duration, event in _complete(events):
        category = str(event.get("cat") or "")
        if category not in _SKIPPED:
            pid, tid = event.get("pid"), event.get("tid")
            thread = _text(tid, names.get(("thread_name", pid, tid)), "thread")
            process = _text(pid, names.get(("process_name", pid, None)), "process")
            frame = _frame(event, category)
            span = Span(str(event.get("name", "")), category, begin, duration, thread, process, _facts(event))
            found.append((span, frame, number))
    # Of equal ones the outer one comes first in the file
    found.sort(key=lambda row: (row[0].begin, -row[0].duration, row[2]))
    return [span for span, _, _ in found], [frame for _, frame, _ in found]


def _text(number: object, name: str | None, what: str) -> str:
    if name:
        return name if str(number) in name else f"{name} {number}"
    return f"{what} {number}" if number is not None else ""


def _facts(event: Mapping[str, Any]) -> _Facts:
    facts = event.get("args")
    if not isinstance(facts, dict):
        return {}
    known = {str(key): value for key, value in facts.items() if isinstance(value, (str, int, float))}
    return {key: value if _written(value) else str(value) for key, value in known.items()}


def _written(value: str | float) -> bool:
    """JSON has no word for a number that is infinite, or none."""
    return not isinstance(value, float) or math.isfinite(value)


def _complete(events: Iterable[dict[str, Any]]) -> Iterator[tuple[int, float, float, dict[str, Any]]]:
    """(where in the file, begin, duration, event) of X events, of B … E pairs, and of moments; seconds."""
    open_: dict[tuple[object, object], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for number, event in enumerate(events):
        kind = event.get("ph")
        if kind == "X":
            yield number, float(event["ts"]) / _MICRO, float(event.get("dur") or 0) / _MICRO, event
        elif kind == "B":
            open_[event.get("pid"), event.get("tid")].append((number, event))
        elif kind == "E" and (stack := open_[event.get("pid"), event.get("tid")]):
            at, first = stack.pop()
            begin = float(first["ts"])
            yield at, begin / _MICRO, (float(event["ts"]) - begin) / _MICRO, first
        elif kind in ("i", "I", "R"):
            yield number, float(event["ts"]) / _MICRO, 0.0, event


def _frame(event: Mapping[str, Any], category: str) -> Frame:
    name = str(event.get("name", ""))
    facts = event.get("args")
    facts = facts if isinstance(facts, dict) else {}
    if paddle_trace.OURS in event:
        return paddle_trace.frame(event)
    if name.startswith(_NODE):
        return Frame(name.removeprefix(_NODE), side=NODE)
    if category == "node":  # adbg's own
        return Frame(
            name, str(facts.get("file", "")), int(facts.get("line", 0) or 0), NODE, str(facts.get("module", ""))
        )
    if category == "backward":  # its name has its number
        return Frame("backward", str(facts.get("file", "")), int(facts.get("line", 0) or 0), PYTHON)
    if category in _DEVICE:
        return Frame(name, side=NATIVE, module="device")
    if found := _PYTHON.match(name):
        return Frame(found["name"], found["file"], int(found["line"]), PYTHON)
    if "filename" in facts:  # py-spy
        text = f"{name} ({facts['filename']}:{int(facts.get('line') or 0)})"
        frame = frame_of(text)
        return Frame(name, frame.file, frame.line, frame.side, frame.module)
    if category in ("cpu_op", "cuda_runtime", "cuda_driver", "Operator", "OperatorInner", "PhiOperator", "CudaRuntime"):
        return Frame(name, side=NATIVE)
    return frame_of(name)


def _nest(builder: Builder, lane: list[tuple[Span, Frame]], thread: str, counts: Counted | None) -> None:
    """Adds the self time of each event of one thread under those that it lies in."""
    stack: list[tuple[float, int]] = []  # (end, place)
    inside: list[Frame] = []
    at = 0.0

    def until(moment: float) -> None:
        nonlocal at
        # A begin and a duration, in binary, may add up to more than the begin of the next event in the same decimals.
        same = moment + max(_SAME, 4 * math.ulp(moment)) if moment < math.inf else moment
        while stack and stack[-1][0] <= same:
            end, place = stack.pop()
            if end > at:
                builder.weigh(place, end - at, thread)
                at = end
            gone = inside.pop()
            if counts is not None:
                counts.ends(gone)
        if stack and moment > at:
            builder.weigh(stack[-1][1], moment - at, thread)
        at = max(at, moment)

    for span, frame in lane:  # by begin; of equal ones the longest first
        until(span.begin)
        # The engine's event of a node, and in it the node's own: one frame
        if inside and inside[-1].side == NODE and (frame.name, frame.side) == (inside[-1].name, NATIVE):
            continue
        end, above = span.begin + span.duration, OUTSIDE
        if stack:  # clocks of two sources may overlap by a little: then it ends with the event that it lies in
            end, above = min(end, stack[-1][0]), stack[-1][1]
        if counts is not None:
            counts.begins(frame, inside[-1] if inside else None)
        stack.append((end, builder.below(above, builder.frame(frame))))
        inside.append(frame)
    until(float("inf") if not stack else stack[0][0])


def write(profile: Profile, path: Path) -> None:
    if profile.unit != SECONDS and not profile.spans:
        raise FormatError(
            f"a profile in {profile.unit} has no time line", "write it as collapsed stacks or for speedscope"
        )
    events = _Events()
    for span in profile.spans or _laid_out(profile):
        events.add(span)
    if not profile.spans:
        events.note("no time line was recorded: samples are laid out one after the other")
    path.write_text(json.dumps(events.body()), "utf-8")


class _Events:
    """Numbers processes and threads, and names them."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._rows: list[dict[str, object]] = []
        self._names: list[dict[str, object]] = []
        self._note: dict[str, object] = {}

    def note(self, text: str) -> None:
        self._note = {"note": text}

    def add(self, span: Span) -> None:
        pid = self._processes.get(span.process)
        if pid is None:
            pid = self._processes[span.process] = len(self._processes) + 1
            self._named("process_name", pid, 0, span.process or "program")
        tid = self._threads.get((span.process, span.thread))
        if tid is None:
            tid = self._threads[span.process, span.thread] = len(self._threads) + 1
            self._named("thread_name", pid, tid, span.thread or "thread")
        row: dict[str, Any] = {
            "name": span.name,
            "cat": span.category or "other",
            "ph": "X" if span.duration > 0 else "i",
            "ts": _micro(span.begin),
            "pid": pid,
            "tid": tid,
        }
        # Ends are rounded, not durations: what ends together still does
        row |= {"dur": round(_micro(span.begin + span.duration) - row["ts"], 3)} if span.duration > 0 else {"s": "t"}
        if span.facts:
            row["args"] = dict(span.facts)
        self._rows.append(row)

    def _named(self, what: str, pid: int, tid: int, name: str) -> None:
        self._names.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}})

    def body(self) -> dict[str, object]:
        return {"traceEvents": self._names + self._rows, "displayTimeUnit": "ms", "otherData": self._note}


def _micro(seconds: float) -> float:
    """Microseconds to the nanosecond, which is what Perfetto keeps."""
    return round(seconds * _MICRO, 3)


def _laid_out(profile: Profile) -> Iterator[Span]:
    """Samples of each thread one behind the other; equal frames of neighbours are one span."""
    threads: dict[str, list[Sample]] = defaultdict(list)
    for sample in profile.samples:
        threads[sample.thread].append(sample)
    for thread, samples in threads.items():
        open_: list[tuple[int, float]] = []
        at = 0.0
        for stack, weight, _ in [*sorted(samples), Sample((), 0.0)]:
            same = 0
            while same < min(len(open_), len(stack)) and open_[same][0] == stack[same]:
                same += 1
            for number, begin in open_[same:]:
                frame = profile.frames[number]
                facts: dict[str, str | int | float] = {"file": frame.file, "line": frame.line} if frame.file else {}
                if frame.module:
                    facts["module"] = frame.module
                yield Span(frame.name, frame.side, begin, at - begin, thread, facts=facts)
            open_ = open_[:same] + [(number, at) for number in stack[same:]]
            at += weight
