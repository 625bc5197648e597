"""The records of Paddle's VLOG in one line: which inputs and outputs, their dtypes and shapes. ``glog`` has their
grammar. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator

from adbg.engine.glog import (
    API_MARKER,
    DUMP,
    KERNEL_ATTRIBUTES,
    KERNEL_DTYPE,
    KERNEL_INPUTS,
    KERNEL_OUTPUTS,
    LAYER_STACK,
    NODE_INPUTS,
    RULER,
    STACK_FRAME,
    TENSOR_FIELD,
    Record,
)

_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


SHORT_DTYPES = tuple(_SHORT.values())


def summary(record: Record) -> str:
    """What one line says of ``record``."""
    text, more = record.text.strip(), record.continuation
    if not text and more:
        text, more = more[0].strip(), more[1:]
    marker = API_MARKER.match(text)
    if marker:
        verb, kind, name = marker.groups()
        kinds = {"AD_API": "", "AD_API_GRAD": "grad ", "AD_API_Grad": "grad "}
        return ("" if verb == "Running" else "end ") + kinds.get(kind, "kernel call ") + name
    if text.startswith(LAYER_STACK):
        frames = STACK_FRAME.findall("\n".join((text, *more)))
        return (
            f"{LAYER_STACK} {frames[-1][0].rpartition('/')[2]}:{frames[-1][1]} in {frames[-1][2]}" if frames else text
        )
    ruler = RULER.match(text)
    if ruler:
        return ruler[1]
    if not more and NODE_INPUTS not in text:
        return text
    if text.startswith(DUMP):
        name = next((line.split(":", 1)[1].strip(" :") for line in more if line.startswith("API_Name:")), "?")
        inputs, outputs = tensors("\n".join(more))
        return f"Forward {name}({inputs}) → {outputs or 'nothing'}"
    if NODE_INPUTS in text:
        inputs, _ = tensors(text.replace(NODE_INPUTS, "", 1) + "\n" + "\n".join(more))
        return f"{text.partition('{')[0]}Input {inputs or 'none'}"
    if KERNEL_INPUTS in text:
        return _kernel(text, more)
    return text


def is_block(record: Record) -> bool:
    """There is more text than ``summary`` shows."""
    lines = [line for line in (record.text, *record.continuation) if line.strip()]
    return len(lines) > 1


def tensors(text: str) -> tuple[str, str]:
    """ "x f32[2,3], y f32[3,3]" of a dump, before and behind its ``Output:``; of one without shapes "x, y"."""
    sides: list[list[str]] = [[], []]
    side, var, dtype, named = 0, "", "", 0  # ``named``: tensors of ``var`` that have said no more than their names

    def close() -> None:
        if var:
            sides[side].append(f"{var}×{named}" if named > 1 else var)

    for found in TENSOR_FIELD.finditer(text):
        kind = found.lastgroup
        if kind == "output":
            close()
            side, var = 1, ""
        elif kind == "var":
            close()
            var, dtype, named = found["var"], "", 0
        elif kind == "name":
            dtype, named = "", named + 1
        elif kind == "dtype":
            dtype = _SHORT.get(found["dtype"], found["dtype"])
        elif kind == "shape":
            shape = found["shape"].replace(" ", "").strip(",")
            sides[side].append(f"{var} {dtype or '?'}[{shape}]".strip())
            var = ""
        elif kind == "unknown":
            sides[side].append(f"{var} uninitialized".strip())
            var = ""
    close()
    return tuple(", ".join(_cut(side)) for side in sides)  # type: ignore[return-value]


def _cut(words: list[str], most: int = 8) -> Iterator[str]:
    yield from words[:most]
    if len(words) > most:
        yield f"{len(words) - most} more"


def _kernel(text: str, more: tuple[str, ...]) -> str:
    inputs, _, outputs = "\n".join(more).partition(KERNEL_OUTPUTS)
    outputs, _, _ = outputs.partition(KERNEL_ATTRIBUTES)
    sides = [", ".join(_cut([_SHORT.get(d, d) for d in KERNEL_DTYPE.findall(side)])) for side in (inputs, outputs)]
    return f"{text.partition('{')[0].strip()} ({sides[0]}) → {sides[1] or 'nothing'}"
