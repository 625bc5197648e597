"""Paddle's own debugging aids as switches. Any thread under the GIL. Whatever changes with an aid is put back with
it, as ``flags`` says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Aid, Aids
from adbg.engine.backends.paddle.flags import Flags, SharedFlags, read_flags
from adbg.engine.errors import CommandError, Unsupported

_NAN, _NAN_LEVEL = "FLAGS_check_nan_inf", "FLAGS_check_nan_inf_level"
_STACK, _NAMES = "FLAGS_call_stack_level", "FLAGS_enable_unique_name"
_SYNC, _FILL = "FLAGS_benchmark", "FLAGS_alloc_fill_value"
_MD5, _SYSTEM = "FLAGS_tensor_md5_checksum_output_path", "FLAGS_use_system_allocator"


@dataclass(frozen=True, slots=True)
class _Switch:
    """``wanted`` turns the user's value into flags, None for off; ``shown`` the flags into a value."""

    name: str
    flags: tuple[str, ...]
    values: str
    what: str
    cpu: str  # what a build for the CPU does with it
    gpu: str
    wanted: Callable[[str], Flags | None]
    shown: Callable[[Mapping[str, Any]], str]


def _nan(value: str) -> Flags | None:
    if value == "off":
        return None
    if value not in ("0", "1", "2", "3", "on"):
        raise CommandError(f"no level {value!r} of check_nan_inf", "off, or 0 (raise), 1 and 2 (print), 3 (print all)")
    # At a lower stack level than 3 the raising level keeps a stack for each operator: 6.6 -> 88 ms an iteration after
    # 75 of them, and 120 MB; at 3 it stays at 2.9 ms.
    return {_NAN: True, _NAN_LEVEL: 0 if value == "on" else int(value), _STACK: 3}


def _on_off(flag: str) -> Callable[[str], Flags | None]:
    def wanted(value: str) -> Flags | None:
        if value not in ("on", "off"):
            raise CommandError(f"expected on or off, got {value!r}")
        return {flag: True} if value == "on" else None

    return wanted


def _byte(value: str) -> Flags | None:
    if value == "off":
        return None
    if not value.isdecimal() or int(value) > 255:
        raise CommandError(f"expected a byte from 0 to 255, or off, got {value!r}")
    return {_FILL: int(value)}


def _path(value: str) -> Flags | None:
    if value == "off":
        return None
    path = os.path.abspath(os.path.expanduser(value))
    if not os.path.isdir(os.path.dirname(path)) or os.path.isdir(path):
        raise CommandError(f"{path} cannot be written", "give a file in a folder that exists")
    return {_MD5: path, _NAMES: True}


def _level(value: str) -> Flags | None:
    if value not in ("1", "2", "3", "off"):
        raise CommandError(f"no call stack level {value!r}", "1 Python line, 2 C++ stack too, 3 forward stack too")
    return None if value == "off" else {_STACK: int(value)}


_SWITCHES = (
    _Switch(
        "check_nan_inf", (_NAN, _NAN_LEVEL), "off | 0 | 1 | 2 | 3",
        "looks at every operator's output: 0 raises at the first NaN or Inf, 1 and 2 print it, 3 prints all statistics",
        "works; prints to stdout; sets call_stack_level 3 (small operators take 7.7 times, resnet18 1.6 times)",
        "works; sets call_stack_level 3", _nan, lambda f: str(f[_NAN_LEVEL]) if f[_NAN] else "off",
    ),
    _Switch(
        "sync", (_SYNC,), "on | off", "waits for the device after every operator: an error is met where it is made",
        "ignored: operators on the CPU are done when they return", "works", _on_off(_SYNC),
        lambda f: "on" if f[_SYNC] else "off",
    ),
    _Switch(
        "alloc_fill", (_FILL,), "off | 0-255", "fills fresh memory with a byte, so that reading it unset shows",
        "ignored: fresh memory on the CPU is not filled (measured)", "works", _byte,
        lambda f: "off" if f[_FILL] < 0 else str(f[_FILL]),
    ),
    _Switch(
        "md5", (_MD5,), "off | FILE", "appends NAME:MD5 of every operator's output to FILE, to compare two runs",
        "works; also sets unique_names (see that row) (small operators take 3.8 times, a transformer 40 times)",
        "works; also sets unique_names (see that row)",
        _path, lambda f: f[_MD5] or "off",
    ),
    _Switch(
        "unique_names", (_NAMES,), "on | off", "numbers operators, nodes and tensors over the run: matmul2GradNode",
        "works, and changes results: parameters are renamed at every step, so Adam and Momentum lose their state",
        "works, and changes results: parameters are renamed at every step, so Adam and Momentum lose their state",
        _on_off(_NAMES), lambda f: "on" if f[_NAMES] else "off",
    ),
    _Switch(
        "system_allocator", (_SYSTEM,), "on | off", "asks the system for every tensor's memory instead of a pool",
        "accepted; no difference measured: on the CPU memory goes back to the system at once either way",
        "accepted; for the places whose allocator was not made yet: set it before the first tensor", _on_off(_SYSTEM),
        lambda f: "on" if f[_SYSTEM] else "off",
    ),
    _Switch(
        "call_stack_level", (_STACK,), "1 | 2 | 3 | off", "what an error tells: 1 line, 2 C++ stack, 3 forward stack",
        "works; 3 makes a small operator take 3.5 times", "works", _level, lambda f: str(f[_STACK]),
    ),
)  # fmt: skip


class PaddleAids(Aids):
    """``paddle`` is the module; its flags are process-wide."""

    def __init__(self, paddle: Any, flags: SharedFlags) -> None:
        self._gpu = bool(paddle.is_compiled_with_cuda())
        self._shared = flags

    def list(self) -> Sequence[Aid]:
        flags = read_flags()
        return [self._aid(switch, flags) for switch in _SWITCHES]

    def set(self, name: str, value: str) -> Aid:
        switch = next((switch for switch in _SWITCHES if switch.name == name), None)
        if switch is None:
            raise CommandError(f"no aid {name!r}", ", ".join(each.name for each in _SWITCHES))
        value = value.strip()
        if value:
            wanted = switch.wanted(value)
            missing = [flag for flag in (*switch.flags, *(wanted or ())) if flag not in read_flags()]
            if missing:
                raise Unsupported(f"this Paddle has no {', '.join(missing)}", "`aids` lists what it has")
            if wanted is not None:
                self._shared.want(_feature(name), wanted)
            else:
                self._shared.drop(_feature(name))
        return self._aid(switch, read_flags())

    def restore(self) -> None:
        for switch in _SWITCHES:
            self._shared.drop(_feature(switch.name))

    def _aid(self, switch: _Switch, flags: Flags) -> Aid:
        note = switch.gpu if self._gpu else switch.cpu
        if any(flag not in flags for flag in switch.flags):
            return Aid(switch.name, "", switch.values, switch.what, "missing in this Paddle")
        return Aid(switch.name, switch.shown(flags), switch.values, switch.what, note)


def _feature(name: str) -> str:
    return f"aids {name}"
