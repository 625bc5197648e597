"""What was overwritten behind autograd's back: its version did not move, so no backward raises; gradients are wrong.

Asked by ``in_place``, whose ledger it reads, as a sampled backward begins.
"""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import scope_at
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine, ValueState

if TYPE_CHECKING:
    from adbg.engine.diagnosis.detectors.graphs.in_place import Use, Write

_SHARES = frozenset({"numpy", "__array__", "as_tensor", "asarray"})
EVERYWHERE = 0, 1 << 64
_MOST = 64 << 20  # bytes that are compared
# Where a framework hides what its nodes saved: operators that keep what they take, and those that keep what they make.
_KEEPS_TAKEN = frozenset({
    "matmul", "linear", "mul", "multiply", "conv2d", "div", "divide", "truediv", "pow", "square", "log", "layer_norm",
    "bmm", "mv", "dot", "mm", "conv3d", "depthwise_conv2d", "sin", "cos",
})  # fmt: skip
# Of these each of the first two operands is needed for the gradient of the other one only.
_PRODUCTS = frozenset({
    "matmul", "linear", "mul", "multiply", "bmm", "mv", "dot", "mm", "conv1d", "conv2d", "conv3d", "depthwise_conv2d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv2d_transpose", "convolution",
})  # fmt: skip
_KEEPS_MADE = frozenset({"exp", "tanh", "sigmoid", "softmax", "sqrt", "relu", "rsqrt"})


@dataclass(slots=True)
class Shared:
    """Memory that an array of numpy shares."""

    where: frozenset[int]
    line: SourceLine | None
    ref: Any
    digest: int  # of its bytes when an operator took it last
    version: int | None
    mark: int | None  # nodes made by then: others that saved what lies there may have it in memory that was freed since
    used: bool = False
    span: tuple[int, int] = (0, 0)
    view: Any = None  # what the array was made of, until the next backward begins


class Silent:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._arrays: dict[int, SourceLine | None] = {}  # memory that arrays share -> where that was made
        self._late: Finding | None = None  # of a node of an earlier iteration, until the backward at hand has gone well
        self._holders: dict[int, Any] = {}  # the same -> the tensor that an array of it keeps alive
        self._shared: dict[tuple[int, tuple[int, int]], Shared] = {}  # by memory, and which part of it
        self._bytes = 0  # of views that are kept
        self.told: set[tuple[str, int]] = set()  # lines that write

    # ---- arrays that share memory

    def note(self, call: OperatorCall, where: frozenset[int], value: Any, ref: Any) -> None:
        """An array shares the memory of ``value`` from here on."""
        digest = self._digest(value)
        if digest is not None:
            version, mark = self.facts.backend.version_of(value), self.facts.backend.made_so_far()
            span = span_of(value)
            for at in where:
                self._arrays[at] = line_of(call.lines)
                self._holders[at] = ref
                self._shared[at, span] = Shared(
                    where, line_of(call.lines), ref, digest, version, mark, span=span, view=self._kept(value, span)
                )

    def _kept(self, value: Any, span: tuple[int, int]) -> Any:
        """``x.detach()[:, :8].numpy()``: nothing else has that view, and the array keeps its memory alive mostly."""
        size = sum(size for _, size in self.facts.backend.storages(value))
        whole = span != EVERYWHERE and span[1] - span[0] >= size  # known again by where it lies
        if whole or self._bytes + size > _MOST or self.facts.backend.has_graph(value):
            return None
        self._bytes += size
        return value

    @staticmethod
    def shares(call: OperatorCall) -> Any:
        """The tensor whose memory an array shares by this call."""
        if call.name not in _SHARES:
            return None
        return call.results[0] if call.results else call.operands[0] if call.operands else None

    def took(self, value: Any, where: frozenset[int], line: SourceLine | None) -> None:
        """An operator that makes a node took what lies there."""
        self._forget_gone(value, where)
        if not where <= self._arrays.keys():
            if not is_foreign(value):
                return
            self._arrays.update(dict.fromkeys(where, sharing(line)))
        digest = self._digest(value)
        if digest is not None:
            # Only the part that was taken: another part of a ring of buffers may be filled meanwhile.
            span, version = span_of(value), self.facts.backend.version_of(value)
            mark = self.facts.backend.made_so_far()
            for at in where:
                self._shared[at, span] = Shared(
                    where, self._arrays[at], weakref.ref(value), digest, version, mark, True, span
                )

    def _forget_gone(self, value: Any, where: frozenset[int]) -> None:
        """Memory that an array had may be the framework's by now: an array keeps the tensor that it was made of, and a
        tensor that was made of an array has memory that is not the framework's."""
        gone = [at for at in where & self._arrays.keys() if (ref := self._holders.get(at)) is None or ref() is None]
        if gone and _is_own(value):
            for at in gone:
                self._arrays.pop(at)
                self._holders.pop(at, None)

    def __bool__(self) -> bool:
        return bool(self._shared)

    def _digest(self, value: Any) -> int | None:
        with suppress(Exception):
            if sum(size for _, size in self.facts.backend.storages(value)) <= _MOST:
                return self.facts.digest(value)
        return None

    def by_arrays(self, running: Running, uses: list[Use]) -> None:
        """Bytes that changed since an operator took them, while no version moved."""
        noted = {key: each for key, each in self._shared.items() if not each.used}
        self._by_saved(running, noted, uses)
        for each in noted.values():
            each.view = None
        self._bytes = 0
        for gone in [key for key, each in self._shared.items() if each.ref() is None]:
            del self._shared[gone]
        for (at, _), shared in tuple(self._shared.items()):
            value = shared.ref()
            if value is None or not shared.used or self.facts.backend.version_of(value) != shared.version:
                continue
            if self._digest(value) == shared.digest:
                continue
            shared.used = False
            saved = self._saved(running)
            key = next((key for key, _, lies, span, _ in saved if at in lies and overlap(span, shared.span)), None)
            if key is None and running.call.order() and not self._hidden(running):
                continue
            self._tell_array(running, key, shared)

    def _tell_array(self, running: Running, key: int | None, shared: Shared) -> None:
        line = written_at(shared.line)
        message = f"an array that shares the memory of a tensor is written at {place(line)}, behind autograd's back"
        if line == shared.line:
            message = (
                f"the array made at {place(line)} shares the memory of a tensor, and is written behind autograd's back"
            )
        proof = f"the bytes of the tensor changed between the operator that saved it and backward {running.call.number}"
        evidence = [proof, f"the array was made at {place(shared.line)}"]
        self.facts.tell(self._found(running, key, line, message, evidence, 0.85))

    def _by_saved(self, running: Running, shared: dict[tuple[int, tuple[int, int]], Shared], uses: list[Use]) -> None:
        """An array that was made of what a node had saved by then (``x.detach().numpy()``). A node that was made since
        saved something else, which may lie where a tensor lay that is gone."""
        known = {at for use in uses if shared for where, _, _ in (*use.takes, *use.makes) for at in where}
        asked = [each for key, each in shared.items() if key[0] in known]
        if not asked or self._hidden(running):
            return
        call, backend = running.call, self.facts.backend
        for key in call.order():
            # The node of a custom function is made before its forward, which may fill what it saves through an array.
            for saved in () if call.is_accumulate(key) or call.is_custom(key) else call.saved(key):
                value = saved.value
                if value is None or saved.state is not ValueState.OK or not backend.is_tensor(value):
                    continue
                storages = backend.storages(value)
                for found in (each for each in asked if any(at in each.where for at, _ in storages)):
                    if not _lies_in(found, value, storages) or backend.version_of(value) != found.version:
                        continue
                    seq = call.describe(key).seq
                    if seq is not None and found.mark is not None and seq >= found.mark:
                        continue
                    if self._digest(value if found.view is None else found.view) != found.digest:
                        self._tell_array(running, key, found)
                        return

    # ---- writes of operators

    def by_writes(self, running: Running, uses: list[Use], writes: list[Write]) -> None:
        """``writes`` through another counter than the one of what ``uses`` saved."""
        suspects = self._behind(uses, writes)
        if not suspects:
            return
        if self._hidden(running):
            self._by_nodes(running, uses, suspects)
            return
        for key, name, where, span, version in self._saved(running):
            seq, custom = running.call.describe(key).seq, running.call.is_custom(key)
            for write in suspects:
                # The node of a custom function is made before its forward, which may fill what it saves: by the
                # counter of that, then, which backward looks at.
                own = custom and version is not None and write.after is not None and version >= write.after
                later = write.mark is not None and seq is not None and seq < write.mark and not own
                if later and write.where & where and overlap(span, write.span):
                    self.facts.tell(self._found_of(running, key, write, f"saved {name}"))
                    break

    def _behind(self, uses: list[Use], writes: list[Write]) -> list[Write]:
        """Those that changed the memory of something that an earlier use took or made, whose version did not move."""
        at: dict[int, list[tuple[int, int | None, Any]]] = {}
        for use in uses if writes else ():
            needed = (each for place, each in enumerate(use.takes) if place not in use.idle)
            for where, version, ref in (*needed, *use.makes):
                for address in where:
                    at.setdefault(address, []).append((use.when, version, ref))
        version_of, found = self.facts.backend.version_of, []
        for write in writes:
            for when, version, ref in (each for address in write.where for each in at.get(address, ())):
                if when < write.when and ((value := ref()) is None or version_of(value) == version):
                    found.append(write)
                    break
        return found

    def _by_nodes(self, running: Running, uses: list[Use], suspects: list[Write]) -> None:
        """The framework hides what is saved: operators are known by their node, and what they save by their name."""
        call = running.call
        latest = {use.node: use for use in uses if use.node}
        for key in call.order():
            use = latest.get(call.address(key))
            if use is None:
                continue
            name = plain(use.name)
            taken = [each for at, each in enumerate(use.takes) if at not in use.idle] if name in _KEEPS_TAKEN else ()
            kept = taken or (use.makes if name in _KEEPS_MADE else ())
            for write in suspects:
                if write.when <= use.when:
                    continue
                for where, version, ref in kept:
                    value = ref()
                    same = value is not None and self.facts.backend.version_of(value) == version
                    if where & write.where and same:
                        found = self._found_of(running, key, write, "needs it as it was")
                        if use.iteration < self.facts.iteration - 1:  # forwards run before their backward is counted
                            self._late = found
                        else:
                            self.facts.tell(found)
                        return

    def ends(self, error: BaseException | None) -> None:
        """A backward ends that ``by_writes`` was asked about. Where a graph spans two iterations, the step in between
        has written to what the older half needs; and where the framework hides what nodes saved, it hides that an
        earlier backward has freed it. The one that runs into that raises: it computes no gradient of the new value."""
        late, self._late = self._late, None
        if late is not None and error is None:
            self.facts.tell(late)

    @staticmethod
    def _hidden(running: Running) -> bool:
        order = running.call.order()
        return any(bool(running.call.saved_hidden(key)) for key in order[:3])

    def _saved(self, running: Running) -> Iterator[tuple[int, str, frozenset[int], tuple[int, int], int | None]]:
        call = running.call
        for key in call.order():
            if call.is_accumulate(key):
                continue
            for each in call.saved(key):
                if each.value is not None and each.state is ValueState.OK and self.facts.backend.is_tensor(each.value):
                    where = frozenset(at for at, _ in self.facts.backend.storages(each.value))
                    yield key, each.name, where, span_of(each.value), self.facts.backend.version_of(each.value)

    def _found_of(self, running: Running, key: int, write: Write, how: str) -> Finding:
        node, _ = self.facts.node(running.call, key)
        what = write.leaf or "a tensor"
        needs = node.unique_name or "a node"
        message = (
            f"{write.name} at {place(write.line)} overwrites {what} behind autograd's back: {needs} {how}, and its "
        )
        message += "gradient is computed of the new value"
        evidence = [
            f"{write.name} wrote {write.shape} at {place(write.line)}, after {needs} was made and before its backward",
            "its version counter did not move, so backward cannot tell",
        ]
        if write.leaf:
            evidence.append("an update of parameters belongs after the backward that uses them")
        return self._found(running, key, write.line, message, evidence, 0.85)

    def _found(
        self, running: Running, key: int | None, line: SourceLine | None, message: str, evidence: list[str], sure: float
    ) -> Finding:
        facts = self.facts
        if line is not None:
            self.told.add((line.file, line.line))
        node, forward = facts.node(running.call, key) if key is not None else (None, None)
        if forward is not None:
            evidence.append(f"saved at {place(forward)}: {facts.text_of(forward)}")
        name = node.unique_name if node is not None else None
        return Finding(
            0, "silent-overwrite", "error", sure, message, node, running.call.number, None, forward,
            facts.cause(line), evidence, [f"b {name}", "info node"] if name else ["info graph"],
        )  # fmt: skip


def idle_operands(call: OperatorCall) -> frozenset[int]:
    """Places of the operands that the operator's backward does not need: the other factor takes no gradient."""
    if plain(call.name) not in _PRODUCTS or len(call.operands) < 2:
        return frozenset()
    return frozenset(at for at in (0, 1) if not call.operands[1 - at].requires_grad)


def span_of(value: Any) -> tuple[int, int]:
    """Where its elements lie; all of memory where that cannot be told."""
    with suppress(Exception):
        if value.is_contiguous():
            begin = int(value.data_ptr())
            return begin, begin + int(value.numel()) * int(value.element_size())
    return EVERYWHERE


def _lies_in(shared: Shared, value: Any, storages: Sequence[tuple[int, int]]) -> bool:
    """Whether what the array was made of is ``value`` or a part of it. Several views have the span ``EVERYWHERE``: of
    the one that is kept it is known to lie in a tensor that fills its memory."""
    span = span_of(value)
    if span == EVERYWHERE or shared.view is None:
        return span == shared.span != EVERYWHERE
    whole = span[1] - span[0] == sum(size for _, size in storages)
    return whole or (span[0] <= shared.span[0] and shared.span[1] <= span[1])


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def is_foreign(value: Any) -> bool:
    """Whether its memory is not the framework's: that of an array (``from_numpy``)."""
    if value.requires_grad or not value.is_leaf or not getattr(value, "is_cpu", False):
        return False
    with suppress(Exception):
        return not value.untyped_storage().resizable()
    return False


def _is_own(value: Any) -> bool:
    """Whether its memory is known to be the framework's."""
    with suppress(Exception):
        return bool(value.untyped_storage().resizable())
    return False


def sharing(line: SourceLine | None) -> SourceLine | None:
    """Where in the file of ``line`` a tensor is made over an array: above it, if there is one."""
    if line is None:
        return None
    lines = linecache.getlines(line.file)
    for at in (*range(line.line, 0, -1), *range(line.line + 1, len(lines) + 1)):
        if re.search(r"(?<!def )\b(from_numpy|as_tensor|asarray|frombuffer)\(", lines[at - 1].partition("#")[0]):
            return SourceLine(line.file, at, getattr(scope_at(line.file, at), "name", "<module>"))
    return None


def written_at(line: SourceLine | None) -> SourceLine | None:
    """The line after the one that made the array where it is written into, by its name."""
    if line is None:
        return None
    text = linecache.getline(line.file, line.line).partition("#")[0]
    made = re.match(r"\s*(?:self\.)?(\w+)\s*(?::[^=]+)?=(?!=)", text)
    taken = re.search(r"(?:from_numpy|as_tensor|asarray)\(\s*((?:self\.)?\w+)", text)
    name = taken[1] if taken is not None else made[1] if made is not None else ""
    if not name:
        return line
    known = re.escape(name)
    write = re.compile(
        rf"(?<![\w.]){known}(?:\s*\[[^=]*\])\s*(?:[-+*/%@&|^]|//|\*\*)?=(?!=)|(?<![\w.]){known}\s*(?:[-+*/%]|//|\*\*)=(?!=)"
        rf"|out\s*=\s*{known}\b|(?<![\w.]){known}\.(?:fill|sort|put|itemset|partition)\(|copyto\(\s*{known}\b"
        rf"|shuffle\(\s*{known}\b"
    )
    lines = linecache.getlines(line.file)
    for at in (*range(line.line + 1, len(lines) + 1), *range(line.line - 1, 0, -1)):
        if write.search(lines[at - 1].partition("#")[0]):
            return SourceLine(line.file, at, line.function)
    return line
