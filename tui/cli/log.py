"""``adbg log``: VLOG files, gzipped too. Main thread.

On a terminal they are opened in the log panel (app/log/logapp.py); on one that cannot position its cursor
(``TERM=dumb``) the text goes through the user's pager (``$PAGER``, else ``less``); otherwise, or with ``--batch``, to
stdout.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from adbg.engine.errors import CommandError


class Log:
    """View VLOG / GLOG files: folded, filtered, followed."""

    usage = None

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("files", nargs="+", metavar="FILE", help="a log, the folder of a run, or - for standard input")
        add("--batch", action="store_true", help="print and exit, also on a terminal")
        add("--depth", type=int, metavar="N", help="fold records nested deeper than N")
        add("--level", type=int, metavar="N", help="only records up to VLOG level N")
        add("--grep", metavar="REGEX", help="only records that match")
        add("--full", action="store_true", help="print all lines of a record, not one")
        add("-f", "--follow", action="store_true", help="keep reading what is appended (one file)")

    def run(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
        options = parser.parse_args(words)
        from adbg.tui.cli import log_listing
        from adbg.tui.cli.log_scan import View

        files = log_listing.logs(options.files)
        view = View(options.depth, options.level, log_listing.pattern(options.grep), options.full)
        on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not options.batch
        if (
            on_terminal
            and all(map(os.path.isfile, files))  # a pipe can be read only once
            and os.environ.get("TERM", "dumb") != "dumb"
        ):
            return _open_app(files, options)
        if options.follow:
            if len(files) > 1:
                raise CommandError("only one file can be followed", "adbg log -f FILE")
            return log_listing.follow(files[0], view)
        lines = log_listing.listing(files, view)
        if options.batch or not sys.stdout.isatty():
            return log_listing.write(lines)
        return log_listing.page(lines)


def _open_app(files: list[str], options: argparse.Namespace) -> int:
    from adbg.tui.app.log.log_app import LogApp

    words = [f"level:{options.level}"] if options.level is not None else []
    words += [options.grep] if options.grep is not None else []
    app = LogApp(files, " ".join(words), options.depth, options.follow)
    app.run()
    return app.return_code or 0
