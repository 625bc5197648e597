"""ruff, mypy (strict, as pyproject.toml says) and the import contracts, all three even when one fails; exit status 1
when any did.

mypy and import-linter read the packages under their import names through tests/typing, a farm of relative links.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FARM = ROOT / "tests" / "typing"
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as run; run()"
CHECKS = {  # name: (folder, command); import-linter takes the packages of the folder that it runs in
    "ruff": (ROOT, ["-m", "ruff", "check", "."]),
    "mypy": (ROOT, ["-m", "mypy"]),
    "import contracts": (FARM, ["-c", LINT_IMPORTS, "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"]),
}


def main() -> int:
    failed = []
    for name, (folder, arguments) in CHECKS.items():
        print(f"-- {name}", flush=True)
        if subprocess.run([sys.executable, *arguments], cwd=folder, stdin=subprocess.DEVNULL).returncode != 0:
            failed.append(name)
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
