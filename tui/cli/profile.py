"""``adbg profile``: the name is reserved, this version has no profiler."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from adbg.engine.errors import CommandError


class Profile:
    """Profile a script without a debugging session (not in this version)."""

    usage = None

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        raise CommandError(
            "this version of adbg has no profiler", "use `python -m cProfile SCRIPT` or torch.profiler instead"
        )
