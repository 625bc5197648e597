"""Which graphs a finished backward has used up, and which nodes are of earlier ones. Runs on the parked thread, and at
the end of a backward.

torch frees what a node saved when a backward without ``retain_graph`` has run it, and says so when it is read: no
record of the calls is needed, and one that ran before adbg was there counts too. A graph whose nodes saved nothing can
be run again, as one that was retained can.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.common.graph import roots_first
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch import saved as torch_saved
from adbg.engine.backends.torch.saved import NodeFields
from adbg.engine.backends.torch.touched import SMALL, Ledger
from adbg.engine.types import ValueState

_MOST_ASKED = 500  # nodes below one root that are asked; a walk of so few is safe beside any other: ``touched``


def used_up(root: Any, fields: NodeFields) -> bool:
    """Whether each of the first nodes below ``root`` that saved something has lost it, and there is one."""
    seen = {root}
    todo = collections.deque([root])
    freed = False
    while todo:
        if len(seen) > _MOST_ASKED:
            return False
        node = todo.popleft()
        verdict = None if hasattr(node, "variable") else _freed(node, fields)
        if verdict is False:
            return False
        if verdict:
            freed = True
            continue
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                todo.append(below)
    return freed


def older_nodes(roots: Sequence[Any], mark: int, most: int, touched: Ledger) -> int:
    """How many of the nodes below ``roots`` have a number below ``mark``. It touches nodes, so it is counted among the
    walks."""
    nodes = list(dict.fromkeys(roots))
    if not nodes:
        return 0
    seen = set(nodes)
    with touched.lock:
        limit = min(most, touched.allowance(nodes))
        for node in nodes:  # grows while it is followed
            for below, _ in node.next_functions:
                if below is not None and below not in seen and len(nodes) < limit:
                    seen.add(below)
                    nodes.append(below)
        if len(nodes) > SMALL:
            touched.record(roots, nodes, len(nodes) < limit)
    numbers = (private.sequence(node) for node in nodes)
    older = sum(number is not None and number < mark for number in numbers)
    seen.clear()
    roots_first(nodes)
    return older


def _freed(node: Any, fields: NodeFields) -> bool | None:
    """None: it saved nothing, and tells nothing."""
    if torch_saved.holds_some(node, fields):
        return False
    values = torch_saved.saved(node, fields)
    if any(value.state is ValueState.FREED for value in values):
        return True
    return False if any(value.value is not None or value.remark for value in values) else None
