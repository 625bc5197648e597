"""Where Paddle's own log has an effect on results, adbg's has the same one and no other."""

from __future__ import annotations

import os

from support.program import batch, commands, plain


def test_level_6_of_paddle() -> None:
    """From level 6 on Paddle gives tensors unique names, parameters too, and Adam loses its state at each step:
    ``vlog 6`` computes what GLOG_v=6 computes without adbg."""
    alone = plain("paddle_mlp", env={**os.environ, "GLOG_v": "6"})
    assert alone.digest != plain("paddle_mlp").digest, "Paddle has mended this: README and doctor should say so"
    assert batch("paddle_mlp", *commands("vlog 6")).digest == alone.digest
