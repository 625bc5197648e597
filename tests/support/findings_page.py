"""docs/findings.md: what diagnosis finds, from the docstrings of the detectors.

    python tests/support/findings_page.py            writes the page
    python tests/support/findings_page.py --check    fails when the page is stale

A docstring begins with a sentence that says what is found; "Evidence:", "Mistaken for:" and "Cost:" say the rest. It is
read, not run: no framework has to be installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from adbg.tui.debugger.findings.kinds import CRASHED, REPEATED, DetectorText, detectors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "findings.md"
FAMILIES = {
    "training": "The training loop",
    "schedules": "Learning rates",
    "graphs": "Graphs: tensors that are overwritten, cut off",
    "earlier": "Graphs of earlier iterations",
    "numbers": "Numbers that are not finite, ranges of a type",
    "sizes": "Gradients that are zero, vanish or explode",
    "functions": "Custom functions, hooks, errors",
    "modules": "What modules hold",
    "aliases": "Names of one tensor",
    "axes": "Axes",
    "errors": "Exceptions",
    "misread": "Numbers that are taken for something else",
    "compared": "The two sides of a loss",
    "integers": "Integers",
    "randomness": "Random numbers",
    "ranks": "Several ranks",
    "hangs": "Programs that stand still",
}
HEAD = """<!-- made by: python tests/support/findings_page.py -->
# What it finds

```sh
adbg diagnose train.py                       # also -m MODULE, -c CODE, -- torchrun train.py
adbg diagnose --iterations 20 train.py       # watch 20 iterations, then the script runs on
adbg diagnose --timeout 600 train.py         # end it after 10 minutes (Ctrl-C: now), and list what was found
adbg diagnose --only nonfinite,in-place --json train.py
adbg diagnose 20261122-1841-train.py         # a recorded run: what was found in it
```

At a prompt, in the console and in batch mode: `diagnose`, `diagnose 2`, `diagnose start`; in the app also F8.

A finding names what is wrong in one sentence, the line to change, the node and the line that made it, what proves it,
and the commands that show it. `error`: certainly wrong, the exit status is 1; `warning`: probably; `note`: worth
knowing, or less than 50 % certain, and then it says what would decide it. What follows from another finding is folded
under it. The script's results are the same as without adbg, to the bit. Where nothing was watched (no backward was
called, the program was killed, a detector failed) the first line says that, and not that nothing was found.

Cheap looks are taken in every iteration. Those that cost more (every operator, every gradient) are taken in iterations
1 to 3, in 8, 16, 32 and so on, in 10, 20, 50, 100 and the next one of each, and in the first three behind a new
optimizer; with `--deep` in each one, and the script is
run twice to see whether it repeats itself.

At a stop that you came to without it (`adbg run -b nan train.py`, an exception), `diagnose` judges what lies there: the
gradients, what the node and those below it saved, the frames of the exception. Where the cause lies in a forward that
nobody watched, it says so, as a note, and which command watches it. In a program that runs (`adbg attach PID`),
`diagnose start` begins behind the next backward, `diagnose` tells what was found so far, `diagnose stop` ends it; until
then forward lines are kept.

The ranks of a job (`adbg diagnose -- torchrun train.py`) tell what they find, and facts that are compared here; the
same finding of several ranks is one, and a rank that lost its connection follows from what ended the other one.

While operators are watched, a traceback out of a function that PyTorch has in Python (`F.cross_entropy`) shows two more
frames of PyTorch's own (`handle_torch_function`): they are really on the stack. Those out of `Tensor.backward`, and
warnings, are those of a run without adbg.
"""


TWICE = """Two runs of the script differ (`--deep` alone): the first backward and node whose numbers are not the same.
- *Evidence*: the norms of that node in both runs; how many backward calls before have the same ones (within 2e-6).
- *Mistaken for*: a script that sets no seed, of which nothing can be said: a note. Kernels that add in any order (GPUs)
  differ in the last digits.
- *Line*: the only one of the source that may do it, where there is only one: a generator that nothing seeds, a clock, a
  set that is gone through. The node alone does not tell: it is the last of the forward that had other values.
- *Cost*: a second run, every node of both recorded. What the script writes is written twice.
"""
CRASH = """A signal killed the program (SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL): its innermost line as that happened.
- *Evidence*: the Python stack that was written at the crash, and the node that ran, where it was hooked. The crash
  journal stands above the findings.
- *Mistaken for*: memory that was destroyed earlier, and only met here: the line is where the process was, which is
  often, but not always, the line to change. A rank that gloo ends for what the ranks called is told as `hang`.
- *Cost*: nothing.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    families = [*FAMILIES, *sorted({each.family for each in detectors()} - FAMILIES.keys())]
    for family in families:
        rows = [line for each in detectors() if each.family == family for line in (*section(each), "")]
        parts += [f"## {FAMILIES.get(family, family.capitalize())}", "", *rows] if rows else []
    parts.append(f"## Crashes\n\n### `{CRASHED}`\n\n{CRASH}")
    parts.append(f"## Two runs\n\n### `{REPEATED}`\n\n{TWICE}")
    return "\n".join(parts).rstrip() + "\n"


def section(each: DetectorText) -> list[str]:
    """One detector."""
    said, labelled = each.parts()
    several = sum(other.kinds[:1] == each.kinds[:1] for other in detectors()) > 1
    title = f": {each.title}" if several and each.title.replace(" ", "-") not in each.kinds else ""
    lines = [f"### {', '.join(f'`{kind}`' for kind in each.kinds)}{title}", "", said]
    return lines + [f"- *{label}*: {text}" for label, text in labelled.items()]


def main(words: list[str]) -> int:
    if words == ["--check"]:
        stale = not PAGE.exists() or PAGE.read_text() != page()
        if stale:
            print(f"{PAGE.name} is stale: python tests/support/findings_page.py")
        return int(stale)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
