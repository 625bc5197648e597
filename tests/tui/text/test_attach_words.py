"""The words of ``adbg attach``."""

from __future__ import annotations

import pytest

from adbg.tui.text.attach import (
    COLUMNS,
    age_text,
    aligned,
    arrival_text,
    entering_summary,
    launches,
    lost_text,
    no_node_text,
    process_cells,
    program_name,
    script_of,
)


@pytest.mark.parametrize(
    ("command", "script", "name"),
    [
        (["/usr/bin/python3", "/home/me/train.py", "--epochs", "2"], "train.py --epochs 2", "train.py"),
        (["python", "-u", "-X", "dev", "-W", "ignore", "a/b.py"], "b.py", "b.py"),
        (["python3.11", "-m", "package.train", "x"], "-m package.train x", "-m package.train"),
        (["python", "-mpackage"], "-m package", "-m package"),
        (["python", "-c", "import x\nx.y()"], "-c import x; x.y()", "-c import"),
        (["python"], "(interactive)", "(interactive)"),
        (["/usr/bin/mpirun", "-n", "2", "run.sh"], "mpirun -n 2 run.sh", "mpirun"),
        ([], "?", "?"),
    ],
)
def test_what_a_command_line_runs(command: list[str], script: str, name: str) -> None:
    assert script_of(command) == script
    assert program_name(command) == name


@pytest.mark.parametrize(
    ("command", "known"),
    [
        (["python", "/venv/bin/torchrun", "--nproc-per-node", "2", "x.py"], True),
        (["python", "-m", "torch.distributed.run", "x.py"], True),
        (["python", "-m", "paddle.distributed.launch", "x.py"], True),
        (["python", "/venv/bin/accelerate", "launch", "x.py"], True),
        (["/usr/bin/mpirun", "-n", "2", "python", "x.py"], True),
        (["bash", "torchrun.sh"], False),
        (["python", "train.py", "torchrun"], False),
    ],
)
def test_launchers_by_their_names(command: list[str], known: bool) -> None:
    assert launches(command) is known


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (99.9, "99 s"), (100, "1 min"), (5999, "99 min"), (12000, "3 h 20"), (360000, "4 d 4 h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_columns_stand_under_each_other() -> None:
    rows = [
        COLUMNS,
        process_cells(7, None, (), 0.0, 3 << 20, 5, "sleeping", "torchrun x.py"),
        process_cells(4711, 0, ("torch",), 99.6, 600 << 20, 500, "running", "x.py --long", depth=1),
    ]
    head, first, second = aligned(rows)
    assert head.index("state") == first.index("sleeping") == second.index("running")
    assert second.endswith("└ x.py --long") and "100%" in second and "600MiB" in second
    assert [line[-1] for line in aligned(rows, 40)[1:]] == ["…", "…"]
    assert all(len(line) <= 40 for line in aligned(rows, 40))


def test_the_live_line() -> None:
    one = entering_summary([(4711, True, "recv", 12.3)])
    assert one.startswith("process 4711: main thread waits in recv (12 s); adbg goes in when it runs Python again")
    assert "Ctrl-C" in one
    assert entering_summary([(4711, False, "", 0.2)]) == "process 4711: adbg goes in"
    several = entering_summary([(1, False, "", 1.0), (2, True, "recv", 3.0), (3, True, "futex", 9.0)])
    assert "3 processes" in several and "process 3" in several and "futex (9 s)" in several


def test_what_is_known_after_the_hello() -> None:
    text = arrival_text(7, 1, "train.py", ["torch 2.13.0"], "3.11.7", "ptrace-thread", 43.2, False)
    assert text.startswith("attached to process 7; forward lines") and "stacks on" in text
    assert "rank 1 · train.py · torch 2.13.0 · Python 3.11.7 · entered through a waiting thread in 43 ms" in text
    assert "not counted before the attach" in text and "next node that any backward reaches" in text
    assert "\n" not in arrival_text(7, 1, "train.py", ["torch"], "", "", None, False, job=True)
    assert "; forward lines" not in arrival_text(7, None, "", [], "", "listening", 3.0, True).splitlines()[0]


def test_no_backward_and_the_end() -> None:
    assert "main thread, innermost first:\n    step train.py:7\n" in no_node_text(
        "process 7", 5, ["step train.py:7"], False
    )
    for text in (no_node_text("process 7", 5, [], False), no_node_text("process 7", 5, [], True)):
        assert "process 7 has reached no node in 5 s" in text and "where all" in text
    assert "did not start it" in lost_text(7, False) and "runs on" in lost_text(7, True)
