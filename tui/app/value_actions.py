"""What is done with the value shown: printing, watching, slicing, changing it, and looking at its numbers. UI
thread."""

from __future__ import annotations

from collections.abc import Callable

from adbg.tui.app.screens.grid import Answered, GridScreen
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.app.stop_reader import StopReader
from adbg.tui.debugger.debugger import Debugger


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
        model = self.main.value.model
        if model.target:
            hint = "checked, cloned and passed to the engine"
            text = f"{model.target} * 0.5"
            self.main.ask_line(
                f"set {model.target} =", text, hint, lambda line: self._run_line(f"set {model.target} = {line}")
            )

    def grid(self) -> None:
        """The value shown, as numbers."""
        model = self.main.value.model
        stop = self.debugger.stop
        slot = model.slot
        if not model.target or stop is None or (slot is not None and (slot.meta is None or slot.meta.shape is None)):
            self.main.app.bell()
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

        self.main.app.push_screen(GridScreen(f"{target} of #{selected}" if selected else target, model.slice, ask))
