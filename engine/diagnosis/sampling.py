"""Which iterations are looked at closely."""

from __future__ import annotations

_FIRST = 3
#: What a loop does in every 5th, 10th, 25th, 50th or 100th of its iterations, before the backward or after it.
_ROUND = frozenset({10, 11, 20, 21, 50, 51, 100, 101})
_MOST = 4  # phases; meta learning makes an optimizer a task


def is_sampled(iteration: int) -> bool:
    """Whether the iteration that ends with the ``iteration``-th outermost backward is looked at closely."""
    return iteration <= _FIRST or iteration in _ROUND or (iteration >= 8 and iteration & (iteration - 1) == 0)


class Sampling:
    """Those, and the first whole ones of a phase after a pre-training: a model that was frozen, and given adapters."""

    def __init__(self) -> None:
        self._until = 0
        self._left = _MOST

    def optimizer_made(self, iteration: int) -> None:
        """Behind the ``iteration``-th backward."""
        until = iteration + 1 + _FIRST  # the one that runs was not watched from its begin
        if iteration and self._left and until > self._until:
            self._left -= 1
            self._until = until

    def holds(self, iteration: int) -> bool:
        return is_sampled(iteration) or iteration <= self._until
