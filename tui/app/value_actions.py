"""What is done with the value shown: printing, watching, slicing, changing it, and looking at its numbers. UI
thread."""

from __future__ import annotations

import math
from collections.abc import Callable

from adbg.engine.types import TensorView
from adbg.tui.app.screens.grid import Answered, GridScreen
from adbg.tui.app.screens.grid_search import Values, next_nonfinite
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.app.stop_reader import StopReader
from adbg.tui.debugger.debugger import Debugger


def value_source(target: str, view: TensorView | None) -> str:
    """What a value is, as one may type it: the number where it is a single one, else the expression that reads it."""
    window = view.window if view is not None else None
    if view is None or view.meta is None or window is None or view.meta.numel != 1 or window.reduced != "exact":
        return target
    value = window.values[0][0]
    if not math.isfinite(value):
        return f"float('{value}')"
    for digits in (6, 9, 17):  # f32 has 9 at most: 0.1, not 0.10000000149011612
        text = f"{value:.{digits}g}"
        if float(text) == value or (view.meta.dtype != "f64" and digits == 9):
            break
    return text


class ValueActions:
    """Act on what the value panel of ``main`` shows; ``run_line`` runs console commands."""

    def __init__(
        self, debugger: Debugger, main: MainScreen, reader: StopReader, run_line: Callable[[str], None]
    ) -> None:
        self.debugger = debugger
        self.main = main
        self.reader = reader
        self._run_line = run_line

    def print(self) -> None:
        """Print what the value panel shows; that of another node than the stop's is not there to be evaluated."""
        target = self.main.value.model.target
        stop = self.debugger.stop
        if not target or stop is None:
            self.main.type_command("print ")
        elif self.reader.selected != stop.index:
            self.main.notify(
                f"print reads the current node (#{stop.index}); the panel shows #{self.reader.selected}",
                severity="warning",
                markup=False,
            )
        else:
            self._run_line(f"print {target}")

    def watch(self) -> None:
        target = self.main.value.model.target
        hint = "an expression whose value is shown at every stop"
        text = f"norm({target})" if target else ""
        self.main.ask_line("watch", text, hint, lambda line: self._run_line(f"watch {line}"))

    def slice(self) -> None:
        model = self.main.value.model

        def chosen(text: str) -> None:
            model.good_slice = model.slice
            model.slice, model.view, model.problem = text, None, ""
            self.reader.read_value()

        if model.target:
            self.main.ask_line(
                f"slice of {model.target}",
                model.slice or "[]",
                "as in Python: [0, :, 10:20]; [] the first plane",
                chosen,
            )

    def edit(self) -> None:
        """Ask what the value is to be, beginning with what it is; what `set` would refuse is not asked."""
        model = self.main.value.model
        stop = self.debugger.stop
        if not model.target or stop is None:
            self.main.app.bell()
            return
        if model.slots[model.chosen][0] == "saved":
            why = "a saved tensor cannot be set: choose a gradient of the current node with ] and ["
        elif self.reader.selected != stop.index:
            why = f"set changes the current node (#{stop.index}); the panel shows #{self.reader.selected}: H goes there"
        else:
            hint = "a number or an expression of its shape and dtype; checked, cloned and passed to the engine"
            self.main.ask_line(
                f"set {model.target} =",
                value_source(model.target, model.view),
                hint,
                lambda line: self._run_line(f"set {model.target} = {line}"),
            )
            return
        self.main.notify(why, severity="warning", markup=False)

    def _why_nothing(self) -> str:
        """Why there are no numbers to be shown, and how one comes to them."""
        stop, row = self.debugger.stop, self.main.graph.selected
        if stop is None:
            return "values are shown at a stop: i pauses at the next node"
        if row is None or row.index == stop.index:
            return "no value here"
        if row.state == "todo":
            return f"#{row.index} has not run yet: nothing flows into it so far; t runs to it"
        return f"the gradients of #{row.index} are gone: it ran, and was no stop; `b {row.unique_name}` stops at it"

    def grid(self) -> None:
        """The value shown, as numbers."""
        model = self.main.value.model
        stop = self.debugger.stop
        slot = model.slot
        if not model.target or stop is None or (slot is not None and (slot.meta is None or slot.meta.shape is None)):
            self.main.notify(self._why_nothing(), timeout=6, markup=False)
            return
        selected = self.reader.selected
        target, index = model.target, 0 if selected == stop.index else selected

        def ask(slice_text: str, rows: int, cols: int, exact: bool, then: Answered) -> None:
            self.reader.lookups.ask(
                "grid",
                slice_text,
                lambda: self.debugger.view.tensor(
                    target, node=index, exact=exact, window=True, slice=slice_text, rows=rows, cols=cols
                ),
                then,
            )

        def numbers(slice_text: str, rows: int, cols: int) -> Values:
            view = self.debugger.view.tensor(target, node=index, window=True, slice=slice_text, rows=rows, cols=cols)
            return view.window.values if view.window is not None else ()

        def seek(slice_text: str, row: int, column: int, planes: bool, then: Answered) -> None:
            shape = slot.meta.shape if planes and slot is not None and slot.meta is not None else None
            self.reader.lookups.ask(
                "seek",
                (slice_text, row, column),
                lambda: next_nonfinite(slice_text, row, column, numbers, shape or ()),
                then,
            )

        title = f"{target} of #{selected}" if selected else target
        self.main.app.push_screen(GridScreen(title, model.slice, ask, seek))
