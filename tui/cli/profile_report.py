"""``adbg profile FILE``: a saved profile as text, or written in another format. Main thread."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.profiles.report import tables
from adbg.profiles.report.comparison import paired
from adbg.profiles.report.flame import ROOT, Tree
from adbg.profiles.report.formats import detect
from adbg.profiles.report.formats.problem import FormatError
from adbg.profiles.report.formats.soundness import sound
from adbg.profiles.report.model import Profile
from adbg.profiles.report.node_groups import with_stacks
from adbg.profiles.report.node_tables import node_table
from adbg.profiles.report.tables import Grouping, Order
from adbg.tui.cli.profile_timeline import is_run
from adbg.tui.cli.profile_timeline import read as read_run
from adbg.tui.cli.subcommand import Parser
from adbg.tui.text import profile_report as text
from adbg.tui.text.profile_difference import difference_lines

if TYPE_CHECKING:
    from adbg.tui.app.profile.artifacts import Saved

DEPTH = 40
LIMIT = 30


def file_of(words: Sequence[str], valued: Collection[str] = ()) -> str | None:
    """The first word that is no option, where it is a profile: then the words ask for a report. ``valued``: options of
    a run that take a value; what follows them is none, nor is what follows ``-m`` or ``-c``."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _VALUED or word in valued:
            skip = True
        elif word == "--" or (word[:2] in ("-m", "-c") and not word.startswith("--")):
            return None
        elif not word.startswith("-"):
            return word if _is_report(Path(word)) else None
    return None


_VALUED = {"--sort", "--by", "--limit", "--search", "--diff", "--zoom", "--width", "-o", "--output"}


_ENDINGS = {".pstats", ".prof", ".collapsed", ".folded", ".speedscope", ".pprof"}  # a report even where it is damaged
_SOURCES = {".py", ".pyw", ".pyz", ".sh"}  # never one: nothing of it is looked at


def _is_report(path: Path) -> bool:
    if path.suffix in _SOURCES and not path.is_dir():
        return False
    return detect.is_profile(path) or is_run(path) or path.suffix in _ENDINGS


def parser(program: str) -> Parser:
    made = Parser(
        prog=program,
        usage=f"{program} FILE [OPTIONS]",
        description="Show a saved profile: a table, a flame graph, a difference; or write it in another format.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "file",
        metavar="FILE",
        help="a profile: " + detect.KINDS + "; or the folder of a run: its profile, else its time line",
    )
    add("--sort", default="self", choices=[one.value for one in Order], help="the order of the table (default: self)")
    add("--by", default="function", choices=[one.value for one in Grouping], help="what a row is (default: function)")
    add("--each-node", action="store_true", help="nodes: a row for each, not for each kind and line")
    add("--limit", type=int, default=LIMIT, metavar="N", help="rows of the table (default: 30; 0: all)")
    add("--search", metavar="REGEX", help="only what matches in name, file or module")
    add("--diff", metavar="FILE2", help="the difference of two profiles: what takes more or less in FILE2")
    add("--flame", action="store_true", help="the flame graph of functions, or of --by, the outermost first")
    add("--zoom", metavar="REGEX", help="the flame graph with the widest frame that matches in full width")
    add("--inverted", action="store_true", help="the flame graph with the innermost frames first, their callers below")
    add("--width", type=int, metavar="N", help="cells of a line (default: the terminal's)")
    add("--json", action="store_true", help="the rows as JSON lines")
    opening = made.add_mutually_exclusive_group()
    opening.add_argument(
        "--open", action="store_true", default=None, help="on the whole screen (default on a terminal)"
    )
    opening.add_argument(
        "--no-open",
        dest="open",
        action="store_false",
        help="as text (default in a pipe, and with an option of the text)",
    )
    add("-o", "--output", metavar="FILE2", help="write it as " + " ".join(detect.WRITERS))
    return made


def run(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    options = parser.parse_args(words)
    if options.limit < 0:
        raise CommandError(f"--limit {options.limit} is below 0", "0 shows all rows")
    if _on_screen(options):
        return _open(options)
    several = _profiles_of(options.file)
    if len(several) > 1 and not (options.output or options.diff or options.json):
        print("\n".join(text.list_lines(options.file, several)))
        return 0
    options.file = _chosen(options.file, options.output or "")
    profile = _read(Path(options.file))
    if options.output:
        target = Path(options.output)
        detect.write(profile, target)
        print(f"wrote {target}")
        return 0
    width = max(options.width or shutil.get_terminal_size((120, 24)).columns, 40)
    if profile.empty and not options.json:
        print(f"{options.file}: nothing was sampled in it")
        return 0
    if options.diff:
        return _difference(profile, options, width)
    if options.json:
        return _json(profile, options)
    lines = text.head_lines(profile, options.file)
    if options.flame or options.zoom or options.inverted:
        lines += _flame(with_stacks(profile), options, width)
    else:
        lines += _tables(profile, options, width)
    print("\n".join(lines))
    return 0


def _on_screen(options: argparse.Namespace) -> bool:
    """On a terminal, unless the text is asked for.

    Raises:
        CommandError: --open, and there is no terminal for it.
    """
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    able = terminal and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    if options.open is not None:
        if options.open and not able:
            raise CommandError("the report's screen needs a terminal, and there is none", "without --open it is text")
        return bool(options.open)
    as_text = any(
        getattr(options, name)
        for name in ("each_node", "search", "flame", "zoom", "inverted", "width", "json", "output")
    )
    changed = (options.sort, options.by, options.limit) != ("self", "function", LIMIT)
    return (
        able
        and not as_text
        and not changed
        and (detect.is_profile(Path(options.file)) or bool(_profiles_of(options.file)))
    )


def _profiles_of(file: str) -> Sequence[Saved]:
    """Of a run's folder; none of anything else."""
    from adbg.tui.app.profile.artifacts import saved

    return saved(file) if is_run(Path(file)) else ()


def _open(options: argparse.Namespace) -> int:
    from adbg.tui.app.profile.contents import read
    from adbg.tui.app.profile.report_app import ReportApp

    path, before, several = options.file, "", _profiles_of(options.file)
    if options.diff:
        path, before, several = _chosen(options.diff), _chosen(options.file), ()
    elif len(several) == 1:
        path, several = several[0].path, ()
    known = {} if several else {each: read(each) for each in filter(None, (path, before))}  # what is wrong is said here
    if before:
        paired(known[before].profile, known[path].profile)
    app = ReportApp(path, known, before, several, options.file)
    app.run()
    return app.return_code or 0


def _read(path: Path) -> Profile:
    if not detect.is_profile(path) and is_run(path):
        return sound(read_run(path))
    return detect.read(path)


def _chosen(file: str, output: str = "") -> str:
    """Of a run's folder the profile in it; the run itself, its time line, where it has none or is written as one.

    Raises:
        CommandError: there are several.
    """
    found = _profiles_of(file)
    if not found or (output.lower().endswith(".trace.json") and not read_run(Path(file)).empty):
        return file
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise CommandError(f"{file} has {len(found)} profiles: {names}", f"name one: {found[0].path}")
    return found[0].path


def _pattern(text_: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text_, re.IGNORECASE) if text_ else None
    except re.error as error:
        raise CommandError(f"{text_!r} is no regular expression: {error}") from None


def _rows(profile: Profile, options: argparse.Namespace) -> tuple[tables.Table, list[tables.Row]]:
    made = node_table if profile.nodes and not (profile.samples or profile.calls) else tables.table
    table = made(profile, Grouping(options.by), Order(options.sort))
    pattern = _pattern(options.search)
    rows = list(table.rows) if pattern is None else tables.matching(table.rows, pattern)
    return table, rows


def _tables(profile: Profile, options: argparse.Namespace, width: int) -> list[str]:
    lines = text.verdict_lines(profile, width)
    lines += text.iteration_lines(profile, width)
    columns = options.by == Grouping.FUNCTION.value  # of nodes, which a row of several kinds has none of
    if profile.nodes and columns:
        found = text.node_rows(profile, options.each_node, Order(options.sort), _pattern(options.search))
        if not found:
            return [*lines, f"no row matches {options.search!r}"]
        lines += ["", *text.node_lines(profile, width, options.limit, options.each_node, found)]
    if profile.samples or profile.calls or (profile.nodes and not columns):
        table, rows = _rows(profile, options)
        if not rows:
            return [*lines, f"no row matches {options.search!r}"]
        lines += ["", *text.table_lines(table, rows, width, options.limit, options.by)]
    return lines


def _flame(profile: Profile, options: argparse.Namespace, width: int) -> list[str]:
    tree = Tree(tables.grouped_stacks(profile, Grouping(options.by)), inverted=options.inverted)
    zoom = ROOT
    if pattern := _pattern(options.zoom):
        found = text.find_node(tree, pattern)
        if found is None:
            raise CommandError(f"no frame matches {options.zoom!r}", "`adbg profile FILE` lists the functions")
        zoom = found
    lines = list(text.flame_lines(tree, profile.unit, width, DEPTH, zoom))
    if pattern := _pattern(options.search):
        share = tree.share(tree.find(pattern)) / (tree.weight[ROOT] or 1.0)
        lines.append(f"{options.search!r} matches {100 * share:.1f}%")
    return lines


def _difference(profile: Profile, options: argparse.Namespace, width: int) -> int:
    options.diff = _chosen(options.diff)
    other = _read(Path(options.diff))
    if other.empty:
        raise FormatError(f"{options.diff}: nothing was sampled in it")
    pair = paired(profile, other)
    before, after = pair.before, pair.after
    if before.nodes and after.nodes:
        before, after = with_stacks(before, kinds=True), with_stacks(after, kinds=True)
    difference = tables.difference(before, after, Grouping(options.by), shares=pair.shares)
    lines = difference_lines(difference, (options.file, options.diff), width, options.limit, pair)
    print("\n".join(lines))
    return 0


def _json(profile: Profile, options: argparse.Namespace) -> int:
    table, rows = _rows(profile, options)
    for row in rows[: options.limit] if options.limit else rows:
        frame = row.frame
        body = {
            "name": frame.name, "file": frame.file, "line": frame.line, "side": frame.side, "module": frame.module,
            "self": row.own, "cumulative": row.cumulative, "calls": row.calls, "unit": table.unit,
        }  # fmt: skip
        if profile.nodes:
            body["forward"] = row.forward
        sys.stdout.write(json.dumps(body) + "\n")
    return 0
