"""``adbg``, ``python -m adbg``, and ``python /path/to/checkout/adbg``, each with nothing installed but dependencies."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """The console script: hand over to the command line."""
    from adbg.tui.cli.main import main as cli_main

    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    if not __package__:  # run as a folder, which is sys.path[0] then: import this adbg, not one that is installed
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        import adbg  # noqa: F401

        del sys.path[0]  # an adbg/../tests must not be importable as "tests"
    sys.exit(main())
