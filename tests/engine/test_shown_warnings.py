"""Listeners of warnings that are shown. Witness: what the program's own ``showwarning`` gets."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from adbg.engine import shown_warnings

PLACE: Any = warnings


@pytest.mark.parametrize("first", [0, 1])
def test_nothing_is_left_in_whatever_order_they_go(first: int) -> None:
    before, heard = PLACE._showwarnmsg, list[str]()
    listeners = [lambda message, n=n: bool(heard.append(f"{n} {message.message}")) for n in range(2)]
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for each in listeners:
            assert shown_warnings.listen(each)
        warnings.warn("one", stacklevel=1)
        shown_warnings.forget(listeners.pop(first))
        warnings.warn("two", stacklevel=1)
        shown_warnings.forget(listeners.pop())
        warnings.warn("three", stacklevel=1)
    assert PLACE._showwarnmsg is before
    assert [str(each.message) for each in shown] == ["one", "two", "three"]
    assert heard == ["0 one", "1 one", f"{1 - first} two"]


def test_what_a_listener_has_dealt_with_is_not_shown() -> None:
    def ours(message: Any) -> bool:
        return "ours" in str(message.message)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        shown_warnings.listen(ours)
        try:
            warnings.warn("of ours", stacklevel=1)
            warnings.warn("of theirs", stacklevel=1)
        finally:
            shown_warnings.forget(ours)
    assert [str(each.message) for each in shown] == ["of theirs"]
