"""Which processes are ranks: on trees of processes as launchers make them, written by hand."""

from __future__ import annotations

import pytest

from adbg.tui.attach import jobs
from adbg.tui.attach.jobs import job_root, ranks_of
from adbg.tui.attach.processes import Seen, Table

TRAIN = ("/usr/bin/python3", "-u", "train.py")


def table(*rows: Seen) -> Table:
    return {row.pid: row for row in rows}


def told(pid: int, parent: int, rank: int, port: str = "29500", **fields: object) -> Seen:
    """A rank as torchrun makes it."""
    environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
    return Seen(pid, parent, TRAIN, environment=environment, frameworks=("torch",), **fields)  # type: ignore[arg-type]


def launcher(pid: int, parent: int = 1, **fields: object) -> Seen:
    return Seen(pid, parent, ("python3", "torchrun"), frameworks=("torch",), **fields)  # type: ignore[arg-type]


def pids(seen: Table, root: int) -> list[int]:
    return [rank.pid for rank in ranks_of(seen, root)]


def test_torchrun_and_its_ranks() -> None:
    """Workers of a rank have its environment, and are none."""
    seen = table(launcher(10), told(12, 10, 1), told(11, 10, 0), told(13, 11, 0), told(14, 11, 0))
    assert pids(seen, 10) == [11, 12]
    assert pids(seen, 12) == [11, 12], "from one of its ranks"
    assert job_root(seen, 12) == 10


def test_a_launcher_that_has_a_rank_itself() -> None:
    """On a cluster RANK may be the node's: torchrun has it, its ranks have others and a local rank."""
    node = launcher(10, environment={"RANK": "0", "MASTER_PORT": "29500"})
    seen = table(node, told(11, 10, 0), told(12, 10, 1))
    assert pids(seen, 10) == [11, 12]
    assert pids(seen, 11) == [11, 12]


def test_mpirun_with_a_shell_between() -> None:
    """mpirun is no Python; what the shell was told, its child was told too."""
    mpirun = Seen(10, 1, ("mpirun", "-n", "2", "run.sh"), python=False)

    def world(pid: int, parent: int, rank: int, python: bool) -> Seen:
        command = TRAIN if python else ("/bin/bash", "run.sh")
        return Seen(pid, parent, command, python=python, environment={"OMPI_COMM_WORLD_RANK": str(rank)})

    shells = [world(20 + rank, 10, rank, False) for rank in range(2)]
    ranks = [world(30 + rank, 20 + rank, rank, True) for rank in range(2)]
    seen = table(mpirun, *shells, *ranks)
    assert pids(seen, 10) == [30, 31]
    assert pids(seen, 31) == [30, 31]
    assert pids(seen, 20) == [30, 31], "the shell of one of them"


def test_two_jobs_of_one_shell_are_two() -> None:
    shell = Seen(5, 1, ("bash",), python=False)
    seen = table(
        shell, told(10, 5, 0, "1"), told(11, 5, 1, "1"), told(20, 5, 0, "2"), told(21, 5, 1, "2"), Seen(30, 5, TRAIN)
    )
    assert pids(seen, 11) == [10, 11]
    assert pids(seen, 20) == [20, 21]
    assert sorted(pids(seen, 5)) == [10, 11, 20, 21], "the shell was asked for"


def test_spawned_ranks_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.multiprocessing.spawn: the parent has the framework too and is no rank; nor is a DataLoader's worker."""
    spawned = ("python3", "-c", "from multiprocessing.spawn import spawn_main; …", "--multiprocessing-fork")
    parent = Seen(10, 1, TRAIN, frameworks=("torch",))
    ranks = [Seen(20 + n, 10, spawned, frameworks=("torch",)) for n in range(2)]
    named = Seen(30, 20, spawned, name="pt_data_worker", frameworks=("torch",))
    forked = Seen(31, 21, spawned, frameworks=("torch",))
    monkeypatch.setattr(jobs, "_connections", lambda pid: {"to a store of data"} if pid == 30 else set())
    assert pids(table(parent, *ranks, named, forked), 10) == [20, 21]


def test_forked_ranks_talk_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of one script: workers of a loader, or ranks; only ranks have connections of their own."""
    parent = Seen(10, 1, TRAIN, frameworks=("torch",))
    forks = [Seen(20 + n, 10, TRAIN, frameworks=("torch",)) for n in range(2)]
    seen = table(parent, *forks)
    monkeypatch.setattr(jobs, "_connections", lambda pid: set())
    assert pids(seen, 10) == [10], "two workers"
    monkeypatch.setattr(jobs, "_connections", lambda pid: {(pid, "127.0.0.1")} if pid >= 20 else set())
    assert pids(seen, 10) == [20, 21], "two ranks"


def test_a_single_process_is_a_job_of_one() -> None:
    assert pids(table(Seen(10, 1, TRAIN, frameworks=("paddle",))), 10) == [10]
    assert pids(table(told(10, 1, 3)), 10) == [10], "a rank whose launcher is on another host, or gone"


def test_nothing_to_find() -> None:
    seen = table(Seen(10, 1, ("bash",), python=False), Seen(11, 10, ("python3", "-m", "http.server")))
    assert pids(seen, 10) == [] and pids(seen, 4711) == []
