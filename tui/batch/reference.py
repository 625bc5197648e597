"""``docs/json-lines.md``: the reference of the JSON lines, generated from their dataclasses.

``python -m adbg.tui.batch.reference`` prints it; with a file name behind, it is written there. A test compares them.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from adbg.engine.types import Evidence, Origin, Phase, Role, SourceLine, StopReason
from adbg.tui.batch import lines

HEAD = """# JSON lines

`adbg run --batch --json`, and `adbg diagnose --json`, print one JSON object a line on stdout, and nothing else: what
the program prints comes as lines of the type `output`. Warnings and errors go to stderr as well. The exit status is
the program's; 2 is a usage error (with `--strict` also a refused command, or a `-b` that matched nothing), 3 a hit of
`--fail-on SPEC`, 1 of `adbg diagnose` a finding of severity error, 124 `--timeout`, 125 a failure of adbg itself.

```sh
adbg run --batch --json -b nan -e continue examples/nan_at_sqrt.py | jq 'select(.type == "stopped") | .evidence'
```

- `type` names the kind of a line. Kinds and fields may be added; those that are there stay as they are.
- Numbers of backward calls, indices and ordinals count from 1.
- NaN and infinities, which JSON cannot write, are the strings `"nan"`, `"inf"` and `"-inf"`.
- A field marked *optional* is left out where it would say nothing.

This page is generated: `python -m adbg.tui.batch.reference docs/json-lines.md`.
"""
NODE = lines.Node(name="SqrtBackward0", unique_name="SqrtBackward0#1", module="layers.0.norm1", parameter=None)
STOP: dict[str, Any] = {
    "reason": StopReason.NAN,
    "breakpoints": [1],
    "phase": Phase.AFTER,
    "backward": 9,
    "index": 199,
    "total": 204,
    "depth": 0,
    "rank": 0,
    "node": NODE,
    "forward": SourceLine("/home/me/examples/tiny_gpt.py", 20, "forward"),
    "enclosing": [],
    "location": SourceLine("/home/me/examples/nan_at_sqrt.py", 72, "main"),
    "message": "Sqrt (tiny_gpt.py:20) made NaN from finite gradients; "
    "grad_inputs[0] of SqrtBackward0#1: 4 of 192 elements are nan",
    "iteration": 9,
    "evidence": [Evidence(Role.GRAD_INPUTS, "grad_inputs[0]", 192, 4, 0, Origin.MADE_HERE, slot=0)],
}
TRACE: dict[str, Any] = {
    "reason": StopReason.BREAKPOINT,
    "backward": 14,
    "iteration": 14,
    "breakpoints": [1],
    "phase": Phase.BEFORE,
    "message": "",
    "evidence": [],
    "breakpoint": 1,
    "text": "before SqrtBackward0#1: grad_outputs[0] [8, 24, 1] f32 norm nan",
}
EXAMPLES: tuple[lines.Line, ...] = (
    lines.BackwardBegins(
        phase="begin",
        backward=9,
        nodes=204,
        roots=["NllLossBackward0"],
        file="/home/me/examples/nan_at_sqrt.py",
        line=72,
        depth=0,
        rank=0,
    ),
    lines.BackwardEnds(phase="end", backward=9, us=67211.172, depth=0, rank=0),
    lines.Stopped(**STOP),
    lines.Trace(**{**STOP, **TRACE}),
    lines.Display(number=1, expression="index", text="200", error="", watch=True, changed=True),
    lines.Result(command="p norm(saved['result'])", value=13.6395902633667, text="13.6395902633667"),
    lines.Error(command="p nope", message="name 'nope' is not defined", hint="closest: node"),
    lines.Output(stream="stdout", text="iteration 14  loss    nan  gradient norm    nan\n"),
    lines.Notice(level="warning", text="breakpoint 2 (inf) was never hit: no inf was seen"),
    lines.Profile(
        profiler="cprofile",
        state="done",
        region={"kind": "iterations", "count": 10, "warmup": 1, "place": "", "spec": ""},
        folder="/home/me/run/profiles/001-cprofile",
        file="profile.pstats",
        format="pstats",
        iterations=10,
        seconds=0.154,
        why="",
        warnings=[],
        pid=4711,
        rank=0,
    ),
    lines.MemoryGrows(
        owner="losses",
        file="/home/me/train.py",
        line=17,
        unit="tensors",
        counts=[(3, 3), (6, 6), (9, 9)],
        sure=False,
        rank=0,
    ),
    lines.Finding(
        id=1,
        kind="zero-grad",
        severity="error",
        confidence=0.97,
        message="optimizer.zero_grad() is never called: gradients of fc1.weight and 3 more add up over 4 iterations",
        node=lines.FoundAt(name="AccumulateGrad", unique_name="AccumulateGrad#1", module="fc1", parameter="fc1.weight"),
        backward=None,
        iteration=4,
        forward=None,
        cause=lines.Cause(file="/home/me/train.py", line=31, function="train", text="optimizer.step()"),
        evidence=["norms of fc1.weight.grad at the steps: 1.21, 2.35, 3.52, 4.18"],
        next=["b /fc1.weight after"],
        victim_of=None,
        rank=None,
    ),
    lines.Exited(code=137, signal="SIGKILL"),
    lines.Diagnosis(
        findings=[lines.RankedFinding(number=1, id=1, kind="zero-grad", process=1, ranks=(), also=())],
        examined=[
            lines.Looked(kind="zero-grad", result="finding", why=""),
            lines.Looked(kind="in-place", result="clear", why=""),
        ],
        iterations=10,
        whole=True,
    ),
    lines.Process(
        pid=4711,
        parent=4700,
        rank=1,
        frameworks=["torch"],
        program="train.py --epochs 2",
        argv=["/usr/bin/python3", "-u", "train.py", "--epochs", "2"],
        cpu=99.8,
        memory=612368384,
        age=5021.4,
        state="running",
        ranks=[],
        obstacle="",
        cwd="/home/me",
    ),
)
NESTED = {
    lines.Node: "node",
    SourceLine: "forward, location",
    Evidence: "evidence",
    lines.FoundAt: "node` of `finding",
    lines.Cause: "cause",
    lines.RankedFinding: "findings",
    lines.Looked: "examined",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for example in EXAMPLES:
        kind = type(example)
        parts += [f"## {_title(example)}", "", _doc(kind), "", "```json", _json(example), "```", ""]
        inherited = [base for base in kind.__mro__[1:] if base in lines.LINES]
        parts += [*_table(kind, {field.name for base in inherited for field in dataclasses.fields(base)}), ""]
    for nested, where in NESTED.items():
        parts += [f"## In `{where}`", "", _doc(nested), "", *_table(nested, set()), ""]
    return "\n".join(parts).rstrip() + "\n"


def _title(example: lines.Line) -> str:
    phase = getattr(example, "phase", None) if example.TYPE == "backward" else None
    return f"`{example.TYPE}`" + (f", phase `{phase}`" if phase else "")


def _doc(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _json(example: lines.Line) -> str:
    return json.dumps(lines.as_json(example), ensure_ascii=False)


def _table(kind: type, known: set[str]) -> list[str]:
    """One row for each field that is not ``known``."""
    hints = typing.get_type_hints(kind, include_extras=True)
    rows = ["| field | type | |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name not in known and field.name in hints:
            (text,) = hints[field.name].__metadata__
            optional = issubclass(kind, lines.Line) and field.default is not dataclasses.MISSING
            words = type_words(hints[field.name].__origin__)
            words = words.removesuffix(" or null") + ", *optional*" if optional else words
            rows.append(f"| `{field.name}` | {words} | {text}{_values(hints[field.name].__origin__)} |")
    return rows


def type_words(hint: Any) -> str:
    """A type as JSON has it: "string", "list of integers", "object or null"."""
    if hint is type(None):
        return "null"
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (list, tuple):
        return "list of lists" if typing.get_origin(arguments[0]) is list else f"list of {type_words(arguments[0])}s"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_words(argument) for argument in arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "string"
    plain = {str: "string", bool: "boolean", int: "integer", float: "number", Any: "any"}
    return plain.get(hint, "object")


def _values(hint: Any) -> str:
    """The values of an enumeration."""
    if not (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return ""
    return ": " + ", ".join(f"`{member.value}`" for member in hint)


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        path.write_text(page())
    if not paths:
        print(page(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
