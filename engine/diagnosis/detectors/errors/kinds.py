"""The operand whose type or device is not that of the others, as far as the exception is about these."""

from __future__ import annotations

import re
from typing import Any

from adbg.engine.diagnosis.facts import Facts

_WORDS = {
    "double": "f64", "float": "f32", "half": "f16", "bfloat16": "bf16", "long": "i64", "int": "i32", "bool": "bool",
    "float64": "f64", "float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32", "byte": "u8", "short": "i16",
}  # fmt: skip
_GOT = re.compile(
    r"(?:found|got|but is|Received|not implemented for)[ :]*(?:dtype )?['\"\[]*(?:torch\.|paddle\.)?(\w+)"
)
_HELD = re.compile(r"the type of data \((\w+)\) currently contained")  # Paddle, where a kernel reads another one
_FLOATS = re.compile(r"\bb?float\d\d\b")
_DTYPES = re.compile(
    r"dtype|scalar type|data type|data_type|type of data|expected .*(Long|Float|Double|Half|Int)|not implemented for",
    re.I,
)


def of_types(text: str) -> bool:
    """An exception is about dtypes."""
    return _DTYPES.search(text) is not None


def other_kind(
    facts: Facts, text: str, operands: list[tuple[str, Any]], inputs: list[tuple[str, Any]], weights: list[Any]
) -> tuple[str, Any, str] | None:
    """The operand whose dtype or device is not that of the others."""
    meta = facts.backend.meta
    by_device = {meta(value).device for _, value in operands}
    if len(by_device) > 1:
        home = next((meta(v).device for _, v in operands if facts.name_of(v)), meta(operands[0][1]).device)
        for name, value in inputs:
            if meta(value).device != home:
                return name, value, f"{name} is on {meta(value).device} and the rest on {home}"
    if not of_types(text):
        return None
    known = [meta(value).dtype for _, value in operands if facts.name_of(value)]
    tensors = [value for value in weights if facts.backend.is_tensor(value)]
    known = known or [meta(value).dtype for value in tensors if facts.name_of(value)]
    said = [_WORDS.get(word.lower(), "") for word in [*_GOT.findall(text), *_HELD.findall(text)]]
    said += ["f64"] if len(set(_FLOATS.findall(text))) > 1 else []  # of two floating types the one that NumPy has
    for name, value in inputs:
        dtype = meta(value).dtype
        if (known and dtype not in known) or (not known and dtype in said):
            wanted = f", the parameters are {known[0]}" if known else ""
            return name, value, f"{name} is {dtype}{wanted}"
    return None
