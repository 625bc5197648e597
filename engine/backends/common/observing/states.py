"""What a module is given to load."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


def given_values(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """For each parameter of ``module``, in their order, what a state dict has under its name; None for nothing. Of
    dicts alone: another mapping may be the program's own."""
    state = args[1] if len(args) > 1 else kwargs.get("state_dict")
    if state is None or type(state) not in (dict, OrderedDict):
        return ()
    return tuple(state.get(name) for name, _ in module.named_parameters())
