"""What a framework has of its own: a VLOG that it writes, and debugging aids that it can switch."""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


class NativeVlog(abc.ABC):
    """Levels of the VLOG that a framework writes to fd 2 itself. Any thread under the GIL.

    Attributes:
        elsewhere: whether the script reads fd 2 itself just now, so that a level that it sets there is the one it gets.
    """

    elsewhere: Callable[[], bool] = staticmethod(lambda: False)

    @abc.abstractmethod
    def set_levels(self, text: str) -> dict[str, int]:
        """ "6", "dygraph_functions=6,nodes=5", "off", "" to only ask. Returns what the user set ("*" the global level).
        Raises CommandError."""

    def effect(self, levels: Mapping[str, int]) -> str:
        """What the user should know of ``levels``, in a line: what they change in the program's results, modules that
        nothing logs; "" for nothing."""
        return ""

    @abc.abstractmethod
    def raise_levels(self, levels: Mapping[str, int]) -> None:
        """At least these levels until ``lower_levels`` of the same; may nest."""

    @abc.abstractmethod
    def lower_levels(self, levels: Mapping[str, int]) -> None: ...

    def begin_nodes(self, level: int) -> None:  # noqa: B027  for frameworks that can
        """Nodes that are made until ``end_nodes`` will run at ``level``, by the framework's own doing; may nest."""

    def end_nodes(self) -> None:  # noqa: B027
        """See ``begin_nodes``."""

    def runs_at(self, levels: Mapping[str, int]) -> bool:
        """Whether the framework itself has put these levels around the node whose hook has the turn."""
        return False

    @abc.abstractmethod
    def quiet(self, on: bool) -> None:
        """No record at all while ``on``, whatever the levels are: what adbg asks the framework is not the script's
        doing. Called twice per hook, by the thread that has the turn."""

    def settle(self) -> None:  # noqa: B027  most frameworks put nothing back
        """An outermost backward ended: levels are put right that the framework itself has put back in it."""

    @property
    def environment(self) -> Mapping[str, int]:
        """Levels that the program was started with ("*" the global one), by an environment variable."""
        return {}

    @abc.abstractmethod
    def restore(self) -> None:
        """The script's own levels again."""

    def abandon(self) -> None:
        """``restore`` in a forked child, where locks may be held by threads that are not here."""
        self.restore()

    @property
    @abc.abstractmethod
    def loud(self) -> bool:
        """Some level is not 0, on anybody's word."""

    @property
    def words(self) -> Sequence[ctypes.c_int32] | None:
        """Numbers that are all 0 while ``loud`` is False, the same ones for ever; None: it must be asked."""
        return None

    @property
    @abc.abstractmethod
    def logging(self) -> bool:
        """adbg has a level of it on."""


@dataclass(frozen=True, slots=True)
class Aid:
    """One of a framework's own debugging aids, switchable at run time. ``note`` says what this build does with it."""

    name: str
    value: str  # as it is now
    values: str  # what it takes: "off | 0 | 1 | 2 | 3"
    what: str
    note: str = ""


class Aids(abc.ABC):
    """A framework's own debugging aids. Any thread under the GIL."""

    @abc.abstractmethod
    def list(self) -> Sequence[Aid]: ...

    @abc.abstractmethod
    def set(self, name: str, value: str) -> Aid:
        """Raises CommandError: no such aid or value; Unsupported: not in this build."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Everything as the script had it."""
