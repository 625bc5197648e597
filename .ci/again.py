"""Runs pytest, and what failed once more, alone: python3 .ci/again.py [--at-most 3] PYTEST-ARGUMENTS...

For CI, where one of thousands of tests with real processes and real time-outs may meet a machine that stands still for
seconds (what CPython's regrtest calls --rerun). A test that fails alone too fails the build, and so does every failure
where more than ``--at-most`` failed. One that passes alone is named at the end as a race: it may well be adbg's.
The exit status is pytest's.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS_FAILED = 1  # of pytest's exit codes


def failed(cache: str) -> list[str]:
    """Names of tests, without the group that pytest-xdist's --dist loadgroup puts behind them ("test_x[a-b]@group")."""
    found = Path(cache, "v", "cache", "lastfailed")
    names = json.loads(found.read_text()) if found.is_file() else {}
    return sorted({name[: name.rfind("@")] if "@" in name[name.rfind("]") + 1 :] else name for name in names})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--at-most", type=int, default=3, help="failures that are looked at again (default: 3)")
    options, arguments = parser.parse_known_args()
    # The time limit's SIGINT goes to the whole group: pytest ends at it, with its summary; subprocess would kill it
    signal.signal(signal.SIGINT, lambda number, frame: None)
    with tempfile.TemporaryDirectory(prefix="adbg-pytest-") as cache:
        pytest = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={cache}"]
        status = subprocess.run(pytest).returncode
        again = failed(cache) if status == TESTS_FAILED else []
        if not again or len(again) > options.at_most:
            return status
        print(f"\n{len(again)} failed: once more, with nothing beside", flush=True)
        # No worker is ended here (tests/support/unending.py), so that the stacks of one that hangs are all there is
        status = subprocess.run([*pytest, "-n", "0", "-o", "faulthandler_timeout=700", *again]).returncode
    if status == 0:
        print("\nFAILED BESIDE OTHERS, PASSED ALONE, so they race:\n  " + "\n  ".join(again), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
