"""The screen for a terminal that shows ASCII only: one for each character drawn, cell by cell. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.cells import cell_len

_ALIKE = (
    ("│┃║┊╏▏▕▎▍▌▐╎┆‖╵╷", "|"), ("─━═╍╌┄▔−—–╴╶", "-"), ("┌╭╔┏┐╮╗┓", "."), ("└╰╚┗", "`"), ("┘╯╝┛", "'"), ("├┤┬┴┼╟╢", "+"),
    ("╪", "#"), ("●", "*"), ("○", "o"), ("▶▸»→", ">"), ("■█▓▉▊▋", "#"), ("◆", "@"), ("◇", "%"), ("▾⤓↓", "v"),
    ("⤒↑", "^"), ("✗×", "x"), ("…", "~"), ("·░▂", "."), ("µμ", "u"), ("σ", "s"), ("Σ", "S"), ("⏎", "$"), ("▀", '"'),
    ("▁", "_"), ("▃", ":"), ("▄", "-"), ("▅", "="), ("▆", "+"), ("▇", "*"), ("«←", "<"), ("“”„", '"'), ("‘’", "'"),
)  # fmt: skip
_TABLE = {ord(character): plain for characters, plain in _ALIKE for character in characters}


def plain_ascii(text: str) -> str:
    """``text`` in as many cells, all ASCII; "?" for what has nothing like it."""
    if text.isascii():
        return text
    text = text.translate(_TABLE)
    return text if text.isascii() else "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


def wants_ascii(environment: Mapping[str, str], coerced: bool = sys.flags.utf8_mode == 1) -> bool:
    """Whether the user's locale says that the terminal shows no UTF-8: LANG=C, de_DE.ISO-8859-1. A container without a
    locale says nothing, and its terminal mostly does. ``ADBG_ASCII`` 1 or 0 decides.

    coerced: Python found the C locale; it has then written LC_CTYPE=C.UTF-8 into the environment by itself (PEP 538).
    """
    if environment.get("ADBG_ASCII") in ("0", "1"):
        return environment["ADBG_ASCII"] == "1"
    category = environment.get("LC_CTYPE", "")
    if coerced and category in ("C.UTF-8", "C.utf8", "UTF-8"):
        category = ""
    name = environment.get("LC_ALL", "") or category or environment.get("LANG", "")
    codeset = name.partition("@")[0].partition(".")[2].lower().replace("-", "")
    return bool(name) and codeset != "utf8"
