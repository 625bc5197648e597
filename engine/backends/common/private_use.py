"""Private names of a framework, found by looking (never by comparing versions). Any thread.

What is missing is None, and the callers switch the capability off; ``adbg doctor`` lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class PrivateUse:
    """One private name: what it is for, and whether this framework has it. ``problem``: a check that failed."""

    name: str
    purpose: str
    present: bool
    problem: str = ""


class PrivateUses(list[PrivateUse]):
    """All that a backend uses."""

    def find(self, owner: Any, path: str, purpose: str) -> Any:
        """The object at ``path``, whose first word stands for ``owner``; None where there is none."""
        value = owner
        for part in path.split(".")[1:]:
            value = getattr(value, part, None)
            if value is None:
                break
        self.append(PrivateUse(path, purpose, value is not None))
        return value
