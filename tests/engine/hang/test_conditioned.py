"""Which conditions on the rank a line of the source stands under."""

from __future__ import annotations

from pathlib import Path

import pytest

from adbg.engine.hang.conditioned import condition_of
from adbg.engine.types import SourceLine

UNDER = {
    "an if": "def main(rank):\n    if rank == 0:\n        barrier()  # HERE\n",
    "an else": "def main(rank):\n    if rank != 0:\n        work()\n    else:\n        barrier()  # HERE\n",
    "one line": "def main(me):\n    if me.is_main: barrier()  # HERE\n",
    "the others have left": "def save(dist):\n    if dist.get_rank():\n        return\n    barrier()  # HERE\n",
    "a loop and a try": """
def main(args):
    for step in range(4):
        if args.local_rank == 0 and step % 2:
            try:
                with timer():
                    barrier()  # HERE
            finally:
                pass
""",
}
NOT_UNDER = {
    "no condition": "def main(rank):\n    barrier()  # HERE\n",
    "one that raises": "def main(rank, world):\n    if rank >= world:\n        raise\n    barrier()  # HERE\n",
    "whether there are ranks": "def main(args):\n    if args.local_rank != -1:\n        barrier()  # HERE\n",
    "one of none": "def main(rank):\n    if rank is None:\n        return\n    barrier()  # HERE\n",
    "another thing of that name": "def main(low_rank):\n    if low_rank:\n        barrier()  # HERE\n",
    "another condition": "def main(step):\n    if step % 2 == 0:\n        barrier()  # HERE\n",
    "behind it": "def main(rank):\n    if rank == 0:\n        save()\n    barrier()  # HERE\n",
    "in the condition itself": "def main(rank):\n    if barrier(rank):  # HERE\n        save()\n",
    "of a function that all call": """
def save():
    barrier()  # HERE
def main(rank):
    save()
    if rank == 0:
        save()
""",
    "of a function that nobody calls by its name": "def save():\n    barrier()  # HERE\n",
}


def place(folder: Path, text: str) -> SourceLine:
    file = folder / "train.py"
    file.write_text(text)
    (line,) = [number for number, each in enumerate(text.splitlines(), 1) if "# HERE" in each]
    return SourceLine(str(file), line, "")


@pytest.mark.parametrize("name", UNDER)
def test_only_some_ranks_come_there(tmp_path: Path, name: str) -> None:
    line = place(tmp_path, UNDER[name])
    found = condition_of(line)
    assert found is not None and found.call.line == line.line and ("rank" in found.text or "is_main" in found.text)


@pytest.mark.parametrize("name", NOT_UNDER)
def test_all_ranks_may_come_there(tmp_path: Path, name: str) -> None:
    assert condition_of(place(tmp_path, NOT_UNDER[name])) is None


def test_the_call_that_leads_there_is_named(tmp_path: Path) -> None:
    """Not one of a module's function of that name, nor the function's own line."""
    text = """
import torch
class Keeper:
    def save(self, step):
        torch.save(step, "kept")
        barrier()  # HERE
def main(keeper, rank):
    if rank == 0:
        keeper.save(1)
"""
    found = condition_of(place(tmp_path, text))
    assert found is not None and (found.call.line, found.call.function) == (9, "main")
    assert (found.test.line, found.text) == (8, "rank == 0")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("rank == 0", [0]), ("rank != 0", [1, 2]), ("not rank", [0]), ("self.rank == 2", [2]), ("is_main()", [0]),
     ("step % 2 and dist.get_rank() == 1", [1]), ("not is_main_process()", [1, 2])],
)  # fmt: skip
def test_whom_it_lets_there(tmp_path: Path, text: str, ranks: list[int]) -> None:
    found = condition_of(place(tmp_path, f"def main(rank):\n    if {text}:\n        barrier()  # HERE\n"))
    other = condition_of(place(tmp_path, f"def main(rank):\n    if {text}:\n        return\n    barrier()  # HERE\n"))
    assert found is not None and [each for each in range(3) if found.lets(each)] == ranks
    if "and" in text:
        assert other is None
    else:
        assert other is not None and [each for each in range(3) if other.lets(each)] == sorted({0, 1, 2} - {*ranks})


def test_a_file_that_is_not_there_says_nothing() -> None:
    assert condition_of(SourceLine("/nowhere/train.py", 3, "main")) is None
