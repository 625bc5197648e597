"""Programs that share a process are run once: all tests of such a module on one worker."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = getattr(item, "module", None)
        if hasattr(module, "diagnose_each") and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(module.__name__))
