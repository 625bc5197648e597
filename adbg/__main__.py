"""``adbg`` and ``python -m adbg``."""

from __future__ import annotations

import sys


def main() -> int:
    """The console script: hand over to the command line."""
    from adbg.tui.cli.main import main as cli_main

    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
