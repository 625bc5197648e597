"""ruff, mypy (strict, as pyproject.toml says) and the import contracts, all three even when one fails; exit status 1
when any did.

mypy and import-linter read the packages under their import names through tests/typing, a farm of relative links.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
CHECKS = {
    "ruff": [PYTHON, "-m", "ruff", "check", "."],
    "mypy": [PYTHON, "-m", "mypy"],
    "import contracts": [PYTHON, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-logo"],
}


def main() -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "typing")}
    failed = []
    for name, command in CHECKS.items():
        print(f"-- {name}", flush=True)
        if subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL).returncode != 0:
            failed.append(name)
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
