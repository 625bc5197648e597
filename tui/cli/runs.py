"""``adbg runs``: recorded runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from adbg.tui.cli.subcommand import Parser


class Runs:
    """List recorded runs, show one, say why one hung, delete old ones."""

    usage = None

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--root", metavar="DIR", help="where they are kept (default: $ADBG_RUNS or the user's state folder)"
        )
        actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
        listing = actions.add_parser("list", help="list them, newest first (default)")
        listing.add_argument("--all", action="store_true", help="list all runs, not only the newest 25")
        show = actions.add_parser("show", help="one run: backward calls, stops, files")
        show.add_argument("name", metavar="NAME", help="name, unique prefix of a name, or path")
        why = actions.add_parser("why", help="why a run of many ranks hung: its ledger of collectives, compared")
        why.add_argument("name", metavar="NAME", help="name, unique prefix of a name, or path")
        why.add_argument("--json", action="store_true", help="the verdict as one JSON line")
        delete = actions.add_parser("delete", help="delete runs")
        delete.add_argument("names", nargs="*", metavar="NAME")
        delete.add_argument("--older", type=float, metavar="DAYS", help="all runs that ended more than DAYS ago")
        delete.add_argument("--force", action="store_true", help="also runs that are still being written")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        options = parser.parse_args(words)
        from adbg.tui.cli import runs_text

        if options.action == "show":
            return runs_text.show_run(options.name, options.root)
        if options.action == "why":
            return runs_text.why_hung(options.name, options.root, options.json)
        if options.action == "delete":
            return runs_text.delete_runs(options.names, options.older, options.force, options.root)
        return runs_text.show_list(options.root, getattr(options, "all", False))
