"""One thread, made of what its agent, the kernel and py-spy tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adbg.engine.attach.stacks import OsThread
from adbg.engine.attach.stacks_merged import Frame, Thread, merge, native_node
from adbg.engine.attach.stacks_pyspy import SeenFrame, SeenThread
from adbg.engine.protocol.messages import AllThreadsBody, RunningNode, ThreadFacts, ThreadFrame

LIBC, TORCH, PYTHON = "/lib/libc.so.6", "/x/torch/lib/libtorch_cpu.so", "/lib/libpython3.11.so.1.0"


def kernel(tid: int, name: str = "python", **more: object) -> OsThread:
    thread = OsThread(tid, name, "S", "futex", "", 0.0, 1.0, 4.0, switches=3, started=9, woke=0, library="")
    return replace(thread, **more)  # type: ignore[arg-type]


def native(*names: str, library: str = LIBC) -> tuple[Frame, ...]:
    return tuple(Frame(name, library, 0, "native", library.rpartition("/")[2]) for name in names)


MAIN = ThreadFacts(
    70, 5, "MainThread", False, "running",
    [ThreadFrame("all_reduce", "/x/site-packages/torch/d.py", 3252, "framework", 3),
     ThreadFrame("step", "/t/train.py", 7, "user", 2),
     ThreadFrame("<module>", "/t/train.py", 9, "user", 1)],
    call=0, call_name="torch.distributed.all_reduce",
)  # fmt: skip
SEEN = SeenThread(
    70, 5, "MainThread", False,
    (SeenFrame("pthread_cond_wait", LIBC, 0, LIBC), SeenFrame("c10d::Work::wait", TORCH, 0, TORCH),
     SeenFrame("all_reduce", "/x/site-packages/torch/d.py", 3252), SeenFrame("step", "/t/train.py", 7),
     SeenFrame("<module>", "/t/train.py", 9), SeenFrame("0x7f", LIBC, 0, LIBC)),
)  # fmt: skip


def test_native_frames_stand_inside_the_python_frames_of_the_agent() -> None:
    (thread,) = merge([kernel(5)], AllThreadsBody([MAIN]), [SEEN])
    assert [frame.function for frame in thread.frames] == [frame.name for frame in _named(SEEN)]
    assert [(f.owner, f.from_end) for f in thread.frames] == [
        ("native", 0), ("native", 0), ("framework", 3), ("user", 2), ("user", 1), ("native", 0),
    ]  # fmt: skip
    assert thread.waits_in == "c10d::Work::wait" and thread.call == "torch.distributed.all_reduce"
    assert thread.user_frame is not None and thread.user_frame.line == 7


def _named(seen: SeenThread) -> list[object]:
    return [type("F", (), {"name": frame.function}) for frame in seen.frames]


def test_without_an_agent_the_call_is_known_by_its_name() -> None:
    (thread,) = merge([kernel(5)], None, [SEEN])
    assert (thread.call, thread.name, thread.ident) == ("all_reduce", "MainThread", 70)
    assert [frame.owner for frame in thread.frames if frame.owner != "native"] == [
        "framework", "user", "user",
    ]  # fmt: skip


def test_adbgs_own_threads_and_frames_are_left_out() -> None:
    own = SeenThread(71, 6, "adbg-reader", False, ())
    wrapped = SeenThread(
        70, 5, "MainThread", False,
        (SeenFrame("_entry_function.<locals>.run_backward", "/x/torch/autograd/graph.py", 979), *SEEN.frames),
    )  # fmt: skip
    threads = merge([kernel(5), kernel(6), kernel(7), kernel(8, "adbg-writer")], None, [wrapped, own])
    assert [thread.tid for thread in threads] == [5, 7]
    assert "run_backward" not in "".join(frame.function for frame in threads[0].frames)
    threads = merge([kernel(5), kernel(6), kernel(7)], AllThreadsBody([MAIN], [6]), [])
    assert [thread.tid for thread in threads] == [5, 7]


def test_a_frame_of_no_library_is_native() -> None:
    stub = SeenThread(72, 9, "", False, (SeenFrame("0x7fb190e52142", "?", 0), SeenFrame("load", "/t/train.py", 3)))
    (thread,) = merge([kernel(9)], None, [stub])
    assert [frame.owner for frame in thread.frames] == ["native", "user"]


def test_a_thread_whose_native_id_only_pyspy_knows() -> None:
    foreign = ThreadFacts(72, 0, "thread 72", False, "running", [ThreadFrame("hook", "/t/train.py", 3, "user", 1)])
    threads = merge([kernel(5), kernel(9)], AllThreadsBody([MAIN, foreign]), [SeenThread(72, 9, "", True, ())])
    assert [(thread.tid, thread.ident, thread.owns_gil) for thread in threads] == [(5, 70, False), (9, 72, True)]
    alone = merge([kernel(5)], AllThreadsBody([MAIN, foreign]), [])
    assert [(thread.tid, thread.ident) for thread in alone] == [(5, 70), (0, 72)]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("torch::autograd::generated::MmBackward0::apply", "MmBackward0"),
        ("torch::autograd::AccumulateGrad::apply", "AccumulateGrad"),
        ("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "MmBackward0"),
        ("torch::autograd::Node::operator()", ""),
        ("torch::autograd::PyNode::apply", ""),
        ("torch::autograd::PyFunctionPreHook::operator()", ""),
        ("torch::autograd::Engine::evaluate_function", ""),
        ("MatmulGradNode::operator()", "MatmulGradNode"),
        ("egr::GradNodeAccumulation::operator()", "GradNodeAccumulation"),
        ("egr::Backward", ""),
        ("at::native::mm", ""),
    ],
)
def test_the_node_that_native_frames_name(function: str, name: str) -> None:
    assert native_node([*native("sgemm"), *native(function), *native("torch::autograd::generated::X::apply")]) == (
        name or "X"
    )


def test_the_agents_node_goes_before_the_name() -> None:
    node = RunningNode("MmBackward0#3", 4, 7, 2.5)
    facts = ThreadFacts(70, 5, "MainThread", False, "running", MAIN.frames, node=node)
    inside = SeenThread(70, 5, "", False, (SeenFrame("MulGradNode::operator()", TORCH, 0, TORCH), *SEEN.frames))
    assert merge([], AllThreadsBody([facts]), [inside])[0].node == node
    assert merge([], AllThreadsBody([MAIN]), [inside])[0].node == RunningNode("MulGradNode")


def test_who_waits_for_the_gil() -> None:
    waits = (*native("0x7f", "pthread_cond_timedwait"), *native("time_sleep", library=PYTHON))
    assert Thread(1, 5, frames=waits).waits_for_gil
    assert not Thread(1, 5, frames=waits, owns_gil=True).waits_for_gil
    own = (*native("pthread_cond_timedwait"), *native("c10d::Store::wait", library=TORCH))
    assert not Thread(1, 5, frames=own).waits_for_gil
    assert not Thread(1, 5, frames=native("pthread_cond_timedwait")).waits_for_gil


def test_which_threads_a_hold_disturbs() -> None:
    assert kernel(5, syscall="epoll_wait", library="libffi.so.8").disturbed_by_a_halt
    assert kernel(5, syscall="epoll_wait").disturbed_by_a_halt
    assert not kernel(5, syscall="epoll_wait", library="libtorch_cpu.so").disturbed_by_a_halt
    assert not kernel(5, syscall="epoll_wait", library="select.cpython-311-x86_64-linux-gnu.so").disturbed_by_a_halt
    assert not kernel(5, syscall="futex", library="libffi.so.8").disturbed_by_a_halt
