"""``adbg profile``: a saved profile as a report (profile_report.py)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from adbg.engine.errors import CommandError


class Profile:
    """Show a saved profile: a table, a flame graph, the difference of two; or write it in another format."""

    usage = None

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        from adbg.tui.cli import profile_report

        profile_report.prepare_parser(parser)

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        from adbg.tui.cli import profile_report

        asks_only = not words or not {"-h", "--help"}.isdisjoint(words)
        if asks_only or profile_report.file_of(words) is not None:
            return profile_report.run(parser, words)
        raise CommandError(
            "this version of adbg has no profiler",
            "use `python -m cProfile -o FILE SCRIPT`, and `adbg profile FILE` shows it",
        )
