"""``adbg doctor``: what works here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


class Doctor:
    """Report which frameworks were found, what works, what is missing and how to install it."""

    usage = None

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        options = parser.parse_args(words)
        from adbg.engine.launch.doctor import main

        return main(["--json"] if options.json else [])
