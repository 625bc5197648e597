"""The taps on torch.distributed, in a group of one: what is seen, what it says, and that nothing of them stays."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import wait_until

torch = pytest.importorskip("torch")
dist = torch.distributed
pytestmark = [pytest.mark.torch, pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed")]

from torch.distributed import all_reduce as early_bound  # noqa: E402

from adbg.engine.backends.torch.backend import TorchBackend  # noqa: E402
from adbg.engine.backends.torch.collectives import flight  # noqa: E402
from adbg.engine.collectives.answer import merged  # noqa: E402
from adbg.engine.collectives.ledger import Ledger  # noqa: E402
from adbg.engine.protocol.messages import Collective  # noqa: E402


@pytest.fixture
def meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    yield f"file://{tmp_path / 'meet'}"
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    backend = TorchBackend()
    ledger = Ledger(lambda groups: None)
    ledger.backend_added(backend)
    yield ledger
    backend.collectives().uninstall()
    ledger.detach()


def begin(meet: str) -> None:
    dist.init_process_group("gloo", init_method=meet, rank=0, world_size=1)


def methods() -> dict[str, object]:
    module = dist.distributed_c10d
    found = {name: vars(owner)[name] for owner in (module.ProcessGroup, module.Work) for name in vars(owner)}
    return {**found, "helper": module._new_process_group_helper}


def test_they_come_with_the_first_group_and_leave_the_very_objects(meet: str, ledger: Ledger) -> None:
    before = methods()
    (taps,) = ledger.taps
    taps.install()
    assert not taps.tapped and vars(dist.distributed_c10d.ProcessGroup)["allreduce"] is before["allreduce"]
    begin(meet)
    assert taps.tapped and vars(dist.distributed_c10d.ProcessGroup)["allreduce"] is not before["allreduce"]
    taps.uninstall()
    after = methods()
    assert {name for name in before if before[name] is not after[name]} == set()


def test_every_name_of_a_function_is_seen_with_its_line(meet: str, ledger: Ledger) -> None:
    begin(meet)
    ledger.taps[0].install()
    value = torch.ones(2, 3)
    early_bound(value)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    dist.broadcast(value, 0)
    dist.barrier()
    first, second, third, fourth = ledger.values(10)
    assert (first.op, first.seq, first.shape, first.dtype, first.reduce) == ("all_reduce", 1, (2, 3), "float32", "SUM")
    assert (second.seq, second.reduce, third.op, third.peer, fourth.op) == (2, "MAX", "broadcast", 0, "barrier")
    assert {row.state for row in ledger.values(10)} == {"done"}
    lines = [row.place.line if row.place else 0 for row in ledger.values(10)]
    assert lines == list(range(lines[0], lines[0] + 4)) and first.place is not None
    assert Path(first.place.file).read_text().splitlines()[first.place.line - 1].strip() == "early_bound(value)"


def test_numbers_are_those_of_torch_also_where_cpp_calls_between(meet: str, ledger: Ledger) -> None:
    """DDP's constructor and its reducer call past the taps; the group's own number counts them."""
    begin(meet)
    ledger.taps[0].install()
    value = torch.ones(1, 4)
    dist.all_reduce(value)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))(value).sum().backward()
    dist.all_reduce(value)
    last = ledger.values(10)[-1]
    group = dist.distributed_c10d._get_default_group()
    assert last.seq == group._get_sequence_number_for_group() > 3
    if flight.is_on():
        assert last.seq == flight.issued()[group.group_name]


def test_an_asynchronous_one_ends_with_its_wait(meet: str, ledger: Ledger) -> None:
    begin(meet)
    ledger.taps[0].install()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    assert ledger.values(1)[0].state == "issued"
    work.wait()
    assert ledger.values(1)[0].state == "done"


def test_no_tensor_is_kept(meet: str, ledger: Ledger) -> None:
    begin(meet)
    ledger.taps[0].install()
    value = torch.ones(4)
    gone = weakref.ref(value)
    dist.all_reduce(value)
    del value
    gc.collect()
    wait_until(lambda: gone() is None, "gloo's own thread to let go of it")  # plain torch too: 14-24 % of 3,000 calls
    assert len(ledger.rows) == 1


def test_what_torch_raises_has_no_frame_of_adbg(meet: str, ledger: Ledger) -> None:
    begin(meet)
    ledger.taps[0].install()
    with pytest.raises(Exception) as caught:
        dist.all_reduce(torch.ones(4, dtype=torch.complex64), op=dist.ReduceOp.MAX)
    with pytest.raises(Exception) as inside:
        dist.distributed_c10d._get_default_group().allreduce("no tensors", 3)
    for error in (caught.value, inside.value):
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        assert not [file for file in files if f"{os.sep}backends{os.sep}" in file], files


def test_rows_come_to_the_recorder_and_again_when_they_end(meet: str, ledger: Ledger) -> None:
    begin(meet)
    ledger.taps[0].install()
    recorded: list[Collective] = []
    ledger.record_into(recorded.append)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    ledger.hand_over()
    ledger.hand_over()
    assert [row.state for row in recorded] == ["issued"]
    work.wait()
    ledger.hand_over()
    assert [(row.id, row.state) for row in recorded] == [(1, "issued"), (1, "done")]


@pytest.mark.skipif(not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="no flight recorder")
def test_the_flight_recorder_and_the_ledger_tell_of_one_collective_once(meet: str, ledger: Ledger) -> None:
    begin(meet)
    dist.all_reduce(torch.ones(4))  # before the taps: the recorder's alone
    ledger.taps[0].install()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))

    def rows_now() -> list[Collective]:
        return merged(ledger.values(10), ledger.taps[0].history())

    # the flight recorder's word on its row comes from a thread of torch's
    wait_until(lambda: all(row.state == "done" for row in rows_now()), "the flight recorder's last word")
    rows = rows_now()
    assert [(row.seq, row.source) for row in rows] == [
        (1, "flight recorder"),
        (2, "ledger"),
        (3, "ledger"),
        (4, "ledger"),
    ]
    assert len({row.place.line for row in rows if row.place}) == 2 and {row.state for row in rows} == {"done"}


@pytest.mark.skipif(not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="no flight recorder")
def test_reading_the_flight_recorder_imports_nothing(meet: str) -> None:
    """Left alone, torch imports torch._inductor for it: 800 modules and seconds, with the GIL held."""
    text = (
        "import sys, torch, torch.distributed as dist\n"
        f"dist.init_process_group('gloo', init_method={meet!r}, rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(4))\n"
        "from adbg.engine.backends.torch.collectives import flight\n"
        "from adbg.engine.protocol.messages import ProcessGroup\n"
        "before = set(sys.modules)\n"
        "assert flight.history(lambda file: file, {'0': ProcessGroup('0', [0])}) and flight.is_on()\n"
        "print(sorted(set(sys.modules) - before))\n"
        "import os; os._exit(0) if sys.stdout.flush() is None else 0\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "[]", done.stderr
