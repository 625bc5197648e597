"""What paddle.profiler writes otherwise than other tools do in Chrome's trace events, put right. Pure.

It writes the duration into each name ("backward[7.396 ms]"); a begin in whole microseconds beside a duration in
nanoseconds, so that what lies in an event ends behind it, and the begin once more, exactly, among the arguments; and
the events of one thread as two lanes, "123(Python)" and "123(C++)".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from adbg.profiles.report.model import NATIVE, NODE, PYTHON, Frame

_TOOK = re.compile(r"\[\d+(?:\.\d+)? (?:ns|us|ms|s)\]$")
_LANE = re.compile(r"\((?:Python|C\+\+)\)$")
_STEP = re.compile(r"^ProfileStep#\d+$")
_NODE = "Global_"
OURS: Final = "paddle event"  # a key that no tool writes: this event is Paddle's, its name is clean
MODULE: Final = "paddle"
# Events that begin a part of the step, and what else they name; ``report/phases.py`` knows the part by the module
_PARTS = {"Forward": "forward", "Backward": "backward", "Optimization": "optimizer", "Dataloader": "data"}
_DEVICE = ("Kernel", "Memcpy", "Memset")
# The operators of paddle.optimizer, which write into their parameter
_OPTIMIZER = re.compile(
    r"^(?:(?:merged|fused|distributed_fused)_)?(?:adadelta|adagrad|adam|adamax|adamw|asgd|lamb|lars_momentum|momentum|"
    r"nadam|radam|rmsprop|rprop|sgd|decayed_adagrad|dpsgd|ftrl)_ (?:dygraph|pybind_imperative_func)$"
)


def put_right(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events, those of paddle.profiler in clear: names, exact times, one lane a thread. Those of other tools
    as they are."""
    begins = {number: begin for number, event in enumerate(events) if (begin := _exact(event)) is not None}
    if not begins:
        return events
    first = min(float(events[number]["ts"]) - begin for number, begin in begins.items())
    found = []
    for number, event in enumerate(events):
        event = {**event, "tid": _joined(event.get("tid"))} if "tid" in event else event
        if number in begins:
            name = _TOOK.sub("", str(event["name"]))
            event = {**event, "name": name, "ts": begins[number], OURS: True}
        elif "ts" in event:  # of the same clock
            event = {**event, "ts": float(event["ts"]) - first}
        elif event.get("ph") == "M" and isinstance(facts := event.get("args"), dict) and "name" in facts:
            event = {**event, "args": {**facts, "name": _joined(facts["name"])}}
        found.append(event)
    return found


def _exact(event: Mapping[str, Any]) -> float | None:
    """Microseconds since the profile began, of an event of Paddle's; None of any other."""
    facts = event.get("args")
    if "ts" not in event or not isinstance(facts, dict) or not _TOOK.search(str(event.get("name", ""))):
        return None
    number, _, unit = str(facts.get("start_time", "")).partition(" ")
    return float(number) if unit == "us" else None


def _joined(lane: object) -> object:
    return _LANE.sub("", lane) if isinstance(lane, str) else lane


def frame(event: Mapping[str, Any]) -> Frame:
    """Of an event that ``put_right`` has marked."""
    name, category = str(event["name"]), str(event.get("cat") or "")
    if _STEP.match(name):
        return Frame("ProfileStep", side=PYTHON)  # one function, however often
    if name.startswith(_NODE):
        return Frame(name.removeprefix(_NODE), side=NODE)
    if category in _DEVICE:
        return Frame(name, side=NATIVE, module="device")
    if category.startswith("Python"):  # the program's own RecordEvent
        return Frame(name, side=PYTHON)
    part = _PARTS.get(category, "")
    if not part and category == "UserDefined" and name == "backward":  # around the engine
        part = "backward"
    if not part and _OPTIMIZER.match(name):
        part = "optimizer"
    return Frame(name, side=NATIVE, module=f"{MODULE}.{part}" if part else MODULE)
