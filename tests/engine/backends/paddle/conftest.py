"""What tests of Paddle's backend share."""

from __future__ import annotations

import pytest


@pytest.fixture
def paddles_own_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks come from Paddle's texts, also where the extension would take them."""
    from adbg.engine.backends.paddle import stacks

    monkeypatch.setattr(stacks, "core", lambda: None)
