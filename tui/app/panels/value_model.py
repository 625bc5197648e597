"""The values of the selected node: which one is shown, and its view as far as it was read. Pure; UI thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages import NodeBody
from adbg.engine.types import SlotView, TensorView, ValueState


@dataclass(slots=True)
class ValueModel:
    """The node's slots, which one is shown, and the view of it as far as it has come."""

    body: NodeBody | None = None
    view: TensorView | None = None
    chosen: int = 0
    slice: str = ""
    problem: str = ""
    loading: bool = False
    slots: list[tuple[str, SlotView]] = field(default_factory=list)
    wanted: tuple[str, str] = ("in", "")  # kind and name that the user chose last
    preferred: str = ""  # name of the slot to show at this stop
    fresh: str = ""  # kind of the values that are new at this stop

    def prefer(self, name: str) -> None:
        """The next node shown shows the value ``name`` ("grad_inputs[0]")."""
        self.preferred = name

    def expect(self, kind: str) -> None:
        """The node shown next shows its first value of ``kind``, unless the person chose another kind before."""
        self.fresh = kind

    def show_node(self, body: NodeBody | None) -> None:
        """Another node, or the same one read again, which keeps showing what it shows. The slot stays chosen by its
        name, else by its kind, else it is the first."""
        kind, name = self.wanted
        changed = body is None or self.body is None or body.node.key != self.body.node.key
        before = self.target
        if self.fresh and kind == "in":
            kind, name = self.fresh, ""
        elif not changed and self.slots:
            name = self.slots[self.chosen][1].name
        self.body = body
        self.problem = ""
        if changed:
            self.view, self.slice = None, ""
        self.slots = []
        if body is not None:
            groups = (("in", body.grad_outputs), ("out", body.grad_inputs), ("saved", body.saved))
            self.slots = [(group, slot) for group, slots in groups for slot in slots]
        names = [slot.name for _, slot in self.slots]
        kinds = [group for group, _ in self.slots]
        self.chosen = names.index(name) if name in names else kinds.index(kind) if kind in kinds else 0
        readable = [_readable(slot) for _, slot in self.slots]
        if self.slots and not readable[self.chosen] and any(readable):
            self.chosen = readable.index(True)
        for position, shown in enumerate(names):
            if self.preferred == shown:
                self.chosen, self.view = position, None
                self.preferred = ""
        if self.target != before:
            self.view = None
        if body is not None:
            self.fresh = ""

    @property
    def slot(self) -> SlotView | None:
        return self.slots[self.chosen][1] if self.slots else None

    @property
    def target(self) -> str:
        """Expression of the value shown."""
        return self.slot.expression if self.slot else ""

    def cycle(self, step: int) -> bool:
        """Choose the next slot; False where there is no other."""
        if len(self.slots) < 2:
            return False
        self.choose((self.chosen + step) % len(self.slots))
        return True

    def choose(self, chosen: int) -> None:
        self.chosen = chosen
        kind, slot = self.slots[chosen]
        self.wanted = (kind, slot.name)
        self.slice, self.view, self.problem = "", None, ""


def _readable(slot: SlotView) -> bool:
    """Whether there are values to look at: a gradient of another node than the current one has none."""
    missing = (ValueState.NOT_KEPT, ValueState.NOT_YET, ValueState.NOT_HOOKED)
    return slot.meta is not None and slot.meta.shape is not None and slot.meta.state not in missing
