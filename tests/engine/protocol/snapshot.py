"""The protocol's schema as plain data: what ``schema.json`` commits, so that every change of a message is seen in
review."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import typing
from pathlib import Path
from typing import Any

from adbg.engine.protocol import messages as protocol

SCHEMA = Path(__file__).with_name("schema.json")


def _type_name(hint: Any) -> str:
    if hint is type(None):
        return "None"
    args = typing.get_args(hint)
    if args:
        origin = typing.get_origin(hint)
        names = [_type_name(a) for a in args if a is not Ellipsis]
        if origin in (list, dict, tuple):
            return f"{origin.__name__}[{', '.join(names)}]"
        return " | ".join(names)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"{hint.__name__}({'|'.join(str(m.value) for m in hint)})"
    return getattr(hint, "__name__", str(hint))


def _collect(cls: Any, types: dict[str, Any]) -> None:
    for arg in typing.get_args(cls):
        _collect(arg, types)
    if not dataclasses.is_dataclass(cls) or cls.__name__ in types:
        return
    hints = typing.get_type_hints(cls)
    types[cls.__name__] = {}
    for f in dataclasses.fields(cls):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        types[cls.__name__][f.name] = _type_name(hints[f.name]) + ("" if required else " (optional)")
        _collect(hints[f.name], types)


def schema() -> dict[str, Any]:
    """Requests, events and every dataclass reachable from them."""
    types: dict[str, Any] = {}
    for arguments, body in protocol.REQUESTS.values():
        _collect(arguments, types)
        _collect(body, types)
    for body in protocol.EVENTS.values():
        _collect(body, types)
    return {
        "version": protocol.PROTOCOL_VERSION,
        "requests": {c: [a.__name__, b.__name__] for c, (a, b) in sorted(protocol.REQUESTS.items())},
        "events": {e: b.__name__ for e, b in sorted(protocol.EVENTS.items())},
        "types": dict(sorted(types.items())),
    }


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n")
    print(f"wrote {SCHEMA}", file=sys.stderr)
