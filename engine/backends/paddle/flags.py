"""Paddle's FLAGS as several of adbg's features want them, and as the script had them (any thread).

Forward stacks and the aids want some of the same flags, and Paddle sets some silently with others and does not put
them back (measured on 3.3.1: a stack or md5 path sets ``enable_unique_name``, a stack path ``call_stack_level`` too).
So one object remembers for each flag what the script had before the first feature, and who wants what: what the last
one wants holds, and what the script sets meanwhile stays as it set it.
"""

from __future__ import annotations

import threading
from typing import Any

import paddle

Flags = dict[str, Any]
NAMES = (
    "FLAGS_call_stack_level",
    "FLAGS_enable_unique_name",
    "FLAGS_dump_api_python_stack_path",
    "FLAGS_dump_grad_node_forward_stack_path",
    "FLAGS_tensor_md5_checksum_output_path",
    "FLAGS_check_nan_inf",
    "FLAGS_check_nan_inf_level",
    "FLAGS_benchmark",
    "FLAGS_alloc_fill_value",
    "FLAGS_use_system_allocator",
)


def read_flags() -> Flags:
    """The flags that adbg touches, as they are; those that this Paddle lacks are left out."""
    found: Flags = {}
    for name in NAMES:
        try:
            found.update(paddle.get_flags([name]))
        except ValueError:
            continue
    return found


class SharedFlags:
    """Flags of this process, which are all threads'. ``aids`` and ``stacks`` share one."""

    def __init__(self) -> None:
        self._wants: dict[str, Flags] = {}  # by feature, the latest last
        self._before: Flags = {}  # of every flag that somebody wants: the script's value
        self._left: Flags = {}  # and the one it has from us
        self._lock = threading.RLock()

    def want(self, feature: str, wanted: Flags) -> None:
        """Set ``wanted`` until ``drop``. A feature wants one set of flags at a time."""
        with self._lock:
            self.drop(feature)
            before = read_flags()
            paddle.set_flags(wanted)
            after = read_flags()
            changed = {flag for flag in after if after[flag] != before[flag]} | set(wanted)
            self._wants[feature] = {flag: after[flag] for flag in changed}
            for flag in changed:
                if self._left.get(flag, before[flag]) != before[flag]:  # set by the script since we last did
                    self._before[flag] = before[flag]
                self._before.setdefault(flag, before[flag])
                self._left[flag] = after[flag]

    def drop(self, feature: str) -> None:
        """Its flags as another feature wants them, else as the script had them."""
        with self._lock:
            mine = self._wants.pop(feature, {})
            now = read_flags()
            back: Flags = {}
            for flag in mine:
                if flag not in self._left or now.get(flag) != self._left[flag]:
                    self._before.pop(flag, None)
                    self._left.pop(flag, None)
                    continue
                heirs = [wants[flag] for wants in self._wants.values() if flag in wants]
                back[flag] = heirs[-1] if heirs else self._before[flag]
                if heirs:
                    self._left[flag] = heirs[-1]
                else:
                    del self._before[flag], self._left[flag]
            self._put(back)

    def own(self, flag: str) -> Any:
        """The script's value, whatever adbg has set."""
        with self._lock:
            now = paddle.get_flags([flag])[flag]
            return self._before[flag] if flag in self._left and now == self._left[flag] else now

    def _put(self, back: Flags) -> None:
        for _ in range(2):  # again for those that another one sets on its way
            now = read_flags()
            different = {flag: value for flag, value in back.items() if now.get(flag) != value}
            if different:
                paddle.set_flags(different)

    def abandon(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = threading.RLock()
