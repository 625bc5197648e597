"""What taps for modules are given: whom they tell of those that run."""

from __future__ import annotations


class Modules:
    """Those that ran."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def meet(self, module: object, inner: bool) -> None:
        if not self.met(module):
            self.told.append(module)

    def met(self, module: object) -> bool:
        return any(each is module for each in self.told)
