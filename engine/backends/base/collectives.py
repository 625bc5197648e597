"""Collectives as a framework's taps tell them: the live row, the group, and the contract of the taps."""

from __future__ import annotations

import abc
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.types import SourceLine


class KnownGroup:
    """A group whose collectives are counted. ``native``: what the framework's own counter is expected to show before
    the next call: what it shows more was issued past the taps (a C++ reducer), and is counted too. ``counted`` False:
    it was used before the taps were in and its framework does not count, so numbers would mean nothing."""

    __slots__ = ("backend", "count", "counted", "name", "native", "ranks")

    def __init__(
        self, name: str, ranks: Sequence[int], backend: str = "", count: int = 0, native: int = 0, counted: bool = True
    ) -> None:
        self.name = name
        self.ranks = list(ranks)
        self.backend = backend
        self.count = count
        self.native = native
        self.counted = counted

    def catch_up(self, native: int) -> None:
        if native > self.native:
            self.count += native - self.native


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method of a process group. ``tensor``: the place of its tensor, or list of tensors, among the arguments, -1 for
    none; ``detail``: of what is kept of them until ``tell`` makes (reduce operator, member that is root or peer) of it:
    no tensor. ``alone``: a send or receive. ``whole``: it is over when it returns."""

    op: str
    tensor: int
    detail: slice
    tell: Callable[[tuple[Any, ...]], tuple[Any, int | None]]
    alone: bool = False
    whole: bool = False


# A live row is a list: what the taps note of a collective, in the form in which it costs least to note (0.1 us; an
# object with these attributes takes 0.6). It holds no tensor.
METHOD, GROUP, SEQ, SHAPE, DTYPE, DETAIL, FILE, LINE, FUNCTION, THREAD, NODE, BACKWARD, BEGUN, ENDED, STATE, ID = range(
    16
)
LiveRow = list[Any]


def row_value(row: LiveRow) -> Collective:
    """A row as it is now, in plain values. Any thread."""
    method, group, shape, file = row[METHOD], row[GROUP], row[SHAPE], row[FILE]
    reduce, member = method.tell(row[DETAIL])
    return Collective(
        id=row[ID],
        group=group.name,
        seq=row[SEQ],
        op=method.op,
        shape=None if shape is None else tuple(int(size) for size in shape),
        dtype=short_dtype(row[DTYPE]),
        reduce=short_reduce(reduce),
        peer=group.ranks[member] if isinstance(member, int) and 0 <= member < len(group.ranks) else member,
        state=row[STATE],
        place=SourceLine(file, row[LINE], row[FUNCTION]) if file else None,
        thread=row[THREAD],
        node=row[NODE],
        backward=row[BACKWARD],
        begun=row[BEGUN],
        ended=row[ENDED],
    )


def short_dtype(dtype: Any) -> str:
    """ "float32" of torch.float32, paddle.float32."""
    return "" if dtype is None else str(dtype).rpartition(".")[2]


def short_reduce(op: Any) -> str:
    """ "SUM" of the forms that frameworks have: "ReduceOp.SUM", "<RedOpType.SUM: 0>", or an object around these."""
    return "" if op is None else str(getattr(op, "op", op)).strip("<>").partition(":")[0].rpartition(".")[2]


class LedgerSink(Protocol):
    """Where taps put their rows, before the collective is issued, with the next of ``number``.
    ``inside``: the backward calls that each thread is in, as far as they are known. Any thread."""

    def add(self, row: LiveRow) -> None:
        """On a thread of the program's; never raises."""

    @property
    def number(self) -> Callable[[], int]: ...

    @property
    def inside(self) -> MutableMapping[int, list[int]]: ...

    def met(self, group: KnownGroup) -> None:
        """A group is used for the first time. On a thread of the program's; never raises."""


class CollectiveTaps(abc.ABC):
    """The collectives of one framework. Made with the backend; ``install`` may be called for a process that has no
    group yet, and puts in what it takes to notice the first. Installed and removed on "adbg-reader" or the thread that
    imports; the rest on any thread."""

    sink: LedgerSink | None = None

    @abc.abstractmethod
    def install(self) -> None: ...

    @abc.abstractmethod
    def uninstall(self) -> None:
        """Every function of the framework's as it was."""

    @property
    @abc.abstractmethod
    def tapped(self) -> bool:
        """The taps are in: this process has a group."""

    @abc.abstractmethod
    def groups(self) -> list[ProcessGroup]:
        """Those that this process is in. Attribute reads alone: safe while its threads run or hang."""

    @abc.abstractmethod
    def history(self) -> list[Collective]:
        """What the framework itself kept of collectives, in order; [] where it keeps nothing. Their ``id`` is 0."""

    @abc.abstractmethod
    def in_frames(self) -> list[Collective]:
        """The collectives that threads are in at this moment, read from their frames' locals."""

    @property
    @abc.abstractmethod
    def notes(self) -> list[str]:
        """What is not seen of this framework's collectives."""
